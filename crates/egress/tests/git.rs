//! Pushes and fetches by git itself, through a rule about repositories and refs.

use std::path::Path;
use std::process::{Command, Output};

use crate::client::Http;
use crate::origin::{Origin, rule, text};
use crate::world::World;
use http::Version;

fn pkt(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}

fn push(refname: &str) -> String {
    let zero = "0".repeat(40);
    let new = "1".repeat(40);
    let first = pkt(&format!("{zero} {new} {refname}\0 report-status\n"));
    format!("{first}0000PACK")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_is_judged_by_its_refs_and_streamed_after_that() {
    let origin = Origin::tls(&["a.test"], true).await;
    let git =
        "git = { fetch = [\"acme/*\"], push = [\"acme/app\"], refs = [\"refs/heads/agent/*\"] }";
    let world = World::new(&rule("r", "a.test", &origin, git), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let port = origin.port;
    let kind = [("content-type", "application/x-git-receive-pack-request")];
    for (repo, refname, status) in [
        ("acme/app", "refs/heads/agent/one", 200),
        ("acme/app", "refs/heads/main", 403),
        ("acme/other", "refs/heads/agent/one", 403),
        ("evil/app", "refs/heads/agent/one", 403),
    ] {
        let path = format!("/{repo}.git/git-receive-pack");
        let answer = http
            .ask("POST", "a.test", port, &path, &kind, text(push(refname)))
            .await;
        assert_eq!(answer.status(), status, "{repo} {refname}");
    }
    // What git sends to try whether it may.
    let probe = http
        .ask(
            "POST",
            "a.test",
            port,
            "/acme/app.git/git-receive-pack",
            &kind,
            text("0000"),
        )
        .await;
    assert_eq!(probe.status(), 200);
    let nonsense = http
        .ask(
            "POST",
            "a.test",
            port,
            "/acme/app.git/git-receive-pack",
            &kind,
            text("zzzz"),
        )
        .await;
    assert_eq!(nonsense.status(), 400);
    let packed = [kind[0], ("content-encoding", "gzip")];
    let packed = http
        .ask(
            "POST",
            "a.test",
            port,
            "/acme/app.git/git-receive-pack",
            &packed,
            text("x"),
        )
        .await;
    assert_eq!(packed.status(), 400);
    for (path, status) in [
        ("/acme/other.git/info/refs?service=git-upload-pack", 200),
        ("/acme/other.git/info/refs?service=git-receive-pack", 403),
        ("/evil/app.git/info/refs?service=git-upload-pack", 403),
    ] {
        assert_eq!(
            http.get("a.test", port, path).await.status,
            status,
            "{path}"
        );
    }
    assert_eq!(origin.seen().len(), 3);
}

fn git(world: &World, dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("git");
    command.current_dir(dir).env_clear();
    for (name, value) in [
        ("HOME", dir.as_os_str()),
        ("GIT_CONFIG_NOSYSTEM", "1".as_ref()),
        ("GIT_TERMINAL_PROMPT", "0".as_ref()),
        ("GIT_ALLOW_PROTOCOL", "https".as_ref()),
        (
            "GIT_SSL_CAINFO",
            world.dir.path().join("ca/ca.pem").as_os_str(),
        ),
        ("https_proxy", format!("http://{}", world.proxy).as_ref()),
        ("PATH", std::env::var_os("PATH").unwrap().as_ref()),
    ] {
        command.env(name, value);
    }
    command.args([
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@a.test",
        "-c",
        "init.defaultBranch=main",
    ]);
    command.args(arguments).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn git_shows_its_user_why_it_was_refused() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(
        &rule("r", "a.test", &origin, "git = { fetch = [\"acme/*\"] }"),
        &[],
    );
    let dir = tempfile::tempdir().unwrap();
    let url = format!("https://a.test:{}/evil/app.git", origin.port);
    let path = dir.path().to_owned();
    let refused = tokio::task::block_in_place(|| git(&world, &path, &["ls-remote", &url]));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && error.contains("403"),
        "{error}"
    );
    assert!(origin.seen().is_empty());
}

/// Runs git and says what it said where it fails.
fn done(output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// 8 MiB that do not get smaller by packing.
fn noise() -> Vec<u8> {
    let mut bytes = vec![0; 8 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_and_pushes_with_a_secret_that_it_never_sees() {
    let origin = Origin::tls(&["a.test"], true).await;
    let git_rule = "git = { fetch = [\"acme/*\"], push = [\"acme/app\"], refs = [\"refs/heads/agent/*\"] }\n\
         inject = [{ secret = \"token\", basic = \"x-access-token\" }]";
    let policy = format!(
        "[[secret]]\nname = \"token\"\nfrom = \"env:TOKEN\"\n{}",
        rule("r", "a.test", &origin, git_rule)
    );
    let world = World::new(&policy, &[]);
    world.secrets.set("token", "ghp_realRealReal0123456789");
    let root = origin.repositories().join("acme/app.git");
    std::fs::create_dir_all(&root).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("https://a.test:{}/acme/app.git", origin.port);
    tokio::task::block_in_place(|| {
        let own = |arguments: &[&str]| done(git(&world, &root, arguments));
        own(&["init", "--quiet", "--bare", "."]);
        own(&["config", "http.receivepack", "true"]);
        let inside = |arguments: &[&str]| git(&world, dir.path(), arguments);
        done(inside(&["clone", "--quiet", &url, "app"]));
        std::fs::write(dir.path().join("app/noise"), noise()).unwrap();
        let app = dir.path().join("app");
        let app = |arguments: &[&str]| git(&world, &app, arguments);
        done(app(&["add", "noise"]));
        done(app(&["commit", "--quiet", "-m", "noise"]));
        // Larger than http.postBuffer: git tries with four bytes first, and sends the rest in chunks.
        done(app(&[
            "push",
            "--quiet",
            "origin",
            "HEAD:refs/heads/agent/one",
        ]));
        let refused = app(&["push", "origin", "HEAD:refs/heads/main"]);
        let words = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && words.contains("egress denied (no_rule)"),
            "{words}"
        );
        done(inside(&[
            "clone",
            "--quiet",
            "--branch",
            "agent/one",
            &url,
            "again",
        ]));
        let again = std::fs::read(dir.path().join("again/noise")).unwrap();
        assert!(again == noise());
        assert_eq!(
            own(&["for-each-ref", "--format=%(refname)"]),
            "refs/heads/agent/one\n"
        );
    });
    assert!(
        origin
            .seen()
            .iter()
            .all(|seen| seen.header("authorization").is_some())
    );
    assert!(!world.written().contains("ghp_real"));
}
