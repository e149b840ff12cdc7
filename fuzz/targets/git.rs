//! What a request is to git, and the commands of a push: however they are cut, they are the same or not yet known.

#![no_main]

use libfuzzer_sys::fuzz_target;
use policy::{MAX_COMMANDS, git_act, push_commands};

fuzz_target!(|data: &[u8]| {
    let whole = push_commands(data);
    if let Ok(Some(commands)) = &whole {
        assert!(
            commands
                .iter()
                .all(|command| command.name.starts_with("refs/") && !command.name.contains(".."))
        );
        assert!(commands.len() * 4 <= MAX_COMMANDS);
    }
    for end in [data.len() / 3, data.len() / 2, data.len().saturating_sub(1)] {
        match (push_commands(&data[..end]), &whole) {
            (Ok(None), _) => {}
            // What was an error or known before more of it came stays so.
            (before, whole) => assert_eq!(&before, whole),
        }
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let (path, query) = match text.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (text, None),
        };
        for method in ["GET", "POST"] {
            if let Some(act) = git_act(method, path, query) {
                assert!(act.to_string().bytes().all(|byte| byte >= b' '));
            }
        }
    }
});
