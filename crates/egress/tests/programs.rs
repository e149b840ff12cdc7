//! Programs as they are installed: curl, through every door and in every version.

use std::process::Command;

use crate::origin::{LOOK, Origin, rule};
use crate::world::World;

/// Runs curl; returns what it printed and the status line's code.
fn curl(world: &World, arguments: &[&str]) -> (String, String) {
    let ca = world.dir.path().join("ca/ca.pem");
    let output = Command::new("curl")
        .env_remove("https_proxy")
        .env_remove("http_proxy")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "30",
            "--write-out",
            "\n%{http_code}",
            "--cacert",
        ])
        .arg(ca)
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let (body, code) = text.rsplit_once('\n').unwrap();
    (format!("{body}{error}"), code.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_is_served_and_refused_through_every_door() {
    let origin = Origin::tls(&["a.test"], true).await;
    let plain = Origin::plain().await;
    let policy = rule("r", "a.test", &origin, LOOK) + &rule("p", "a.test", &plain, "");
    let world = World::new(&policy, &[origin.port, plain.port]);
    let (https, http) = (
        format!("https://a.test:{}", origin.port),
        format!("http://a.test:{}", plain.port),
    );
    let resolve: Vec<String> = [
        ("a.test", origin.port),
        ("a.test", plain.port),
        ("b.test", origin.port),
    ]
    .map(|(name, port)| format!("{name}:{port}:127.0.0.2"))
    .to_vec();
    let doors: Vec<Vec<String>> = vec![
        resolve
            .iter()
            .flat_map(|one| ["--resolve".to_owned(), one.clone()])
            .collect(),
        vec!["--proxy".to_owned(), format!("http://{}", world.proxy)],
    ];
    let file = world.dir.path().join("upload");
    std::fs::write(&file, vec![7; 3 << 20]).unwrap();
    let upload = format!("@{}", file.display());
    for door in &doors {
        for version in ["--http1.1", "--http2"] {
            let run = |arguments: &[&str]| {
                let mut all: Vec<&str> = door.iter().map(String::as_str).collect();
                all.push(version);
                all.extend(arguments);
                tokio::task::block_in_place(|| curl(&world, &all))
            };
            assert_eq!(run(&[&https]), ("hello".into(), "200".into()));
            // More than a megabyte: curl asks first (Expect: 100-continue).
            let sink = format!("{https}/sink");
            assert_eq!(
                run(&["--data-binary", &upload, &sink]),
                ((3 << 20).to_string(), "200".into())
            );
            let (head, code) = run(&["--head", &https]);
            assert_eq!(code, "200", "{head}");
            let (head, code) = run(&["--head", &format!("https://b.test:{}/", origin.port)]);
            assert!(
                head.contains("403") && (code == "403" || code == "000"),
                "{head}"
            );
            let (text, code) = run(&[&format!("https://b.test:{}/", origin.port)]);
            if door[0] == "--proxy" {
                assert!(text.contains("403"), "{text}");
            } else {
                assert_eq!(code, "403");
                assert!(
                    text.contains("egress_denied") && text.contains("b.test"),
                    "{text}"
                );
            }
            assert_eq!(run(&[&http]), ("hello".into(), "200".into()));
        }
    }
}
