//! Where values come from, and when a new one is used.

use std::fs;
use std::path::Path;

use futures_util::future::join_all;

use crate::world::{World, got, source, value};

#[tokio::test]
async fn every_source_gives_its_value() {
    let mut world = World::new();
    for (name, value) in [
        ("A_TOKEN", "from env"),
        ("OP_SERVICE_ACCOUNT_TOKEN", "x"),
        ("VAULT_ADDR", "https://vault.test"),
        ("VAULT_TOKEN", "x"),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/x"),
    ] {
        world.set(name, value);
    }
    let file = world.write("token", "from file\n");
    world.write("op", "from op");
    world.write("vault/secret/team/app/token", "from vault\n");
    world.write("keyring/service=gh:github.com,username=ada", "from keyring");
    world.write("keyring/service=own,account=ada", "from account");
    let secrets = world.secrets();
    secrets
        .set("github", value("from store\n"))
        .await
        .expect("it is kept");
    for (text, wanted) in [
        ("env:A_TOKEN".to_owned(), "from env"),
        (format!("file:{}", file.display()), "from file"),
        ("github".to_owned(), "from store\n"),
        ("age:github".to_owned(), "from store\n"),
        ("keyring:gh:github.com/ada".to_owned(), "from keyring"),
        ("keyring:own/ada".to_owned(), "from account"),
        ("op://Private/GitHub/token".to_owned(), "from op"),
        ("vault:secret/team/app#token".to_owned(), "from vault"),
        (
            r#"command:["printf","from %s","command"]"#.to_owned(),
            "from command",
        ),
    ] {
        assert_eq!(got(&secrets, &text).await.as_deref(), Ok(wanted), "{text}");
    }
    assert_eq!(
        world.calls(),
        [
            "secret-tool lookup service gh:github.com username ada",
            "secret-tool lookup service own username ada",
            "secret-tool lookup service own account ada",
            "op read --no-newline op://Private/GitHub/token",
            "vault kv get -field=token secret/team/app",
        ]
    );
}

#[tokio::test]
async fn a_program_sees_nothing_of_the_daemons_environment_but_what_it_needs() {
    let mut world = World::new();
    for name in [
        "GITHUB_TOKEN",
        "LD_AUDIT",
        "OP_SERVICE_ACCOUNT_TOKEN",
        "DURABLE_TOKEN",
    ] {
        world.set(name, "hunter2");
    }
    world.set("HOME", "/home/ada");
    let seen = got(&world.secrets(), r#"command:["env"]"#)
        .await
        .expect("it runs");
    let mut names: Vec<&str> = seen
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["HOME", "PATH"]);
    let errors = r#"command:["readlink","/proc/self/fd/2"]"#;
    assert_eq!(
        got(&world.secrets(), errors).await.as_deref(),
        Ok("/dev/null")
    );
    let inherited = r#"command:["sh","-c","ls -l /proc/self/fd | grep -c -v -e pipe: -e /dev/null -e /proc/ -e total; pwd; cat"]"#;
    assert_eq!(
        got(&world.secrets(), inherited).await.as_deref(),
        Ok("0\n/")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_requests_at_once_ask_once() {
    let mut world = World::new();
    world.set("OP_SERVICE_ACCOUNT_TOKEN", "x");
    world.write("op", "one");
    let secrets = world.secrets();
    let asking = (0..100).map(|_| {
        let secrets = secrets.clone();
        tokio::spawn(async move { got(&secrets, "op://v/i/f").await })
    });
    for got in join_all(asking).await {
        assert_eq!(got.expect("nobody panicked").as_deref(), Ok("one"));
    }
    assert_eq!(world.calls().len(), 1);
    world.write("op", "two");
    assert_eq!(got(&secrets, "op://v/i/f").await.as_deref(), Ok("one"));
    secrets.changed(&source("op://v/i/f"));
    assert_eq!(got(&secrets, "op://v/i/f").await.as_deref(), Ok("two"));
    secrets.all_changed();
    assert_eq!(got(&secrets, "op://v/i/f").await.as_deref(), Ok("two"));
    assert_eq!(world.calls().len(), 3);
}

#[tokio::test]
async fn a_file_that_is_written_or_replaced_is_used_by_the_next_request() {
    let world = World::new();
    let path = world.write("token", "one");
    let text = format!("file:{}", path.display());
    let secrets = world.secrets();
    assert_eq!(got(&secrets, &text).await.as_deref(), Ok("one"));
    // As long, in the same file.
    world.write("token", "two");
    assert_eq!(got(&secrets, &text).await.as_deref(), Ok("two"));
    fs::rename(world.write("new", "six"), &path).expect("it is there");
    assert_eq!(got(&secrets, &text).await.as_deref(), Ok("six"));
    fs::remove_file(&path).expect("it is there");
    let why = got(&secrets, &text)
        .await
        .expect_err("it is gone")
        .to_string();
    assert!(why.contains(&text), "{why}");
    world.write("token", "ten");
    assert_eq!(got(&secrets, &text).await.as_deref(), Ok("ten"));
    // The way in which orchestrators rotate what they mount.
    let link = world.at("link");
    std::os::unix::fs::symlink(world.write("a", "a1"), &link).expect("it is new");
    let text = format!("file:{}", link.display());
    assert_eq!(got(&secrets, &text).await.as_deref(), Ok("a1"));
    let next = world.at("next");
    std::os::unix::fs::symlink(world.write("b", "b1"), &next).expect("it is new");
    fs::rename(&next, &link).expect("it is there");
    assert_eq!(got(&secrets, &text).await.as_deref(), Ok("b1"));
}

#[tokio::test]
async fn changes_that_follow_each_other_at_once_are_all_seen() {
    let world = World::new();
    let secrets = world.secrets();
    let text = format!("file:{}", world.at("token").display());
    for n in 100..300 {
        // As long, in the same file, in the same tick of the kernel's clock.
        world.write("token", format!("{n}"));
        let got = got(&secrets, &text).await;
        assert_eq!(got.as_deref(), Ok(n.to_string().as_str()));
    }
}

#[tokio::test]
async fn a_secret_of_the_store_that_is_set_or_removed_is_so_for_the_next_request() {
    let world = World::new();
    let (here, there) = (world.secrets(), world.secrets());
    here.set("k", value("one")).await.expect("it is kept");
    assert_eq!(got(&there, "k").await.as_deref(), Ok("one"));
    here.set("k", value("two")).await.expect("it is kept");
    // Another process, as it were.
    assert_eq!(got(&there, "k").await.as_deref(), Ok("two"));
    assert_eq!(got(&here, "k").await.as_deref(), Ok("two"));
    let held = there.resolve(&source("k")).await.expect("it is there");
    assert_eq!(here.remove("k").await, Ok(true));
    assert_eq!(here.remove("k").await, Ok(false));
    for secrets in [&here, &there] {
        let why = got(secrets, "k").await.expect_err("it is gone").to_string();
        assert!(
            why.contains("age:k") && why.contains("durable secret set"),
            "{why}"
        );
    }
    // Who is in the middle of a request goes on with what it has.
    assert_eq!(held.expose(), b"two");
}

#[tokio::test]
async fn versions_are_told_apart_by_fingerprints_that_only_this_directory_makes() {
    let (world, other) = (World::new(), World::new());
    let secrets = world.secrets();
    let print = |text| value(text).fingerprint(secrets.fingerprint_key());
    secrets.set("k", value("one")).await.expect("it is kept");
    let listed = secrets.list().await.expect("it is listed");
    assert_eq!(listed[0].fingerprint, Ok(print("one")));
    assert_ne!(print("one"), print("two"));
    let again = world.secrets();
    assert_eq!(
        value("one").fingerprint(again.fingerprint_key()),
        print("one")
    );
    let there = other.secrets();
    assert_ne!(
        value("one").fingerprint(there.fingerprint_key()),
        print("one")
    );
    assert!(Path::new(&world.at("data/fingerprint.key")).exists());
}
