//! What git 2.47.3 posts: the begin of three pushes, as a server got them.

use policy::push_commands;

/// Returns the refs that a push changes, those that it removes with a minus.
fn refs(body: &[u8]) -> Vec<String> {
    let commands = push_commands(body).unwrap().unwrap();
    let shown = commands
        .iter()
        .map(|command| match command.new.trim_matches('0') {
            "" => format!("-{}", command.name),
            _ => command.name.clone(),
        });
    shown.collect()
}

#[test]
fn a_push_of_a_shallow_clone_is_read() {
    assert_eq!(refs(include_bytes!("pushes/shallow")), ["refs/heads/three"]);
}

#[test]
fn a_push_of_many_refs_with_an_option_is_read() {
    assert_eq!(
        refs(include_bytes!("pushes/options")),
        [
            "-refs/tags/v1",
            "refs/heads/two",
            "refs/heads/agent/b",
            "refs/notes/n"
        ]
    );
}

#[test]
fn a_push_of_a_repository_with_sha256_is_read() {
    assert_eq!(refs(include_bytes!("pushes/sha256")), ["refs/heads/x"]);
}
