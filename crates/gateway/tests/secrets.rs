//! The key reaches the upstream and nothing else.

use std::path::Path;

use crate::world::{KEY, World, relay_pid, say};

#[test]
fn the_key_is_injected_and_is_in_no_file_argument_or_environment() {
    let world = World::held();
    let daemon = world.daemon();
    let mut anthropic = world.post(&say("a body that stays secret"));
    anthropic.read_until("I will look").unwrap();
    let mut openai = world.post_to(
        "/v1/chat/completions",
        r#"{"stream":true,"tools":[{"name":"x"}]}"#,
    );
    openai.read_until("I will look").unwrap();
    assert!(
        world.get("/v1/models").text().contains(KEY),
        "passed on with the key"
    );
    // In the middle of the streams, when every file there ever is exists.
    look(&world);
    world.release();
    anthropic.finish().unwrap();
    openai.finish().unwrap();
    look(&world);
    let keys: Vec<_> = world
        .asked()
        .iter()
        .map(|entry| entry["key"].clone())
        .collect();
    assert_eq!(keys, [KEY, KEY]);
    drop(daemon);
}

fn look(world: &World) {
    let pid = relay_pid(world.path()).unwrap().as_raw_nonzero();
    for name in ["cmdline", "environ"] {
        let path = format!("/proc/{pid}/{name}");
        assert!(!holds(Path::new(&path), KEY), "{path}");
    }
    let mut files = 0;
    for dir in [world.path().to_owned(), world.path().join("answers")] {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let ours = entry.file_name() != "model.log" && entry.file_name() != "script";
            if ours && entry.file_type().unwrap().is_file() {
                files += 1;
                assert!(!holds(&entry.path(), KEY), "{:?}", entry.path());
                assert!(!holds(&entry.path(), "stays secret"), "{:?}", entry.path());
            }
        }
    }
    assert!(files >= 2, "journal and lock at least");
}

fn holds(path: &Path, word: &str) -> bool {
    // An answer's file may go in this moment.
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes
        .windows(word.len())
        .any(|window| window == word.as_bytes())
}

#[test]
fn the_relays_socket_and_files_are_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::held();
    let _daemon = world.daemon();
    let mut call = world.post(&say("go"));
    call.read_until("I will look").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&world.path().join("relay.sock")), 0o600);
    assert_eq!(mode(&world.path().join("answers")), 0o700);
    for file in std::fs::read_dir(world.path().join("answers")).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
}
