//! Says for people what could not be started, and why.

use protocol::table::RunSpec;
use rustix::io::Errno;

use crate::sys::spawn::{Failure, Stage};

/// Longest piece of somebody else's text in a message.
const MAX_QUOTED: usize = 200;

/// Returns text of a guest for a message: escaped, cut, in backquotes.
pub(crate) fn quoted(text: &str) -> String {
    let mut cut: String = text
        .chars()
        .take(MAX_QUOTED)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(MAX_QUOTED).is_some() {
        cut.push('…');
    }
    format!("`{cut}`")
}

/// Says what kept `run` from being started.
pub(crate) fn describe(failure: Failure, run: &RunSpec) -> String {
    let user = || quoted(run.user.as_deref().unwrap_or("root"));
    let cwd = || quoted(&run.cwd);
    let Failure { stage, errno } = failure;
    match (stage, errno) {
        (Stage::Clone, Errno::AGAIN) => {
            "the sandbox's limit of processes is reached; nothing more can be started".to_owned()
        }
        (Stage::Clone, Errno::NOMEM) => "the sandbox has no memory left to start it".to_owned(),
        (Stage::Groups | Stage::Group | Stage::User, Errno::INVAL) => {
            format!(
                "user {} cannot exist in this sandbox: its number is not mapped",
                user()
            )
        }
        (Stage::Groups | Stage::Group | Stage::User, Errno::PERM) => {
            format!(
                "this sandbox has no right to run anything as user {}",
                user()
            )
        }
        (Stage::Cwd, Errno::NOENT) => format!("working directory {} does not exist", cwd()),
        (Stage::Cwd, Errno::NOTDIR) => format!("working directory {} is not a directory", cwd()),
        (Stage::Cwd, Errno::ACCESS) => {
            format!("user {} may not enter working directory {}", user(), cwd())
        }
        (Stage::Cwd, Errno::LOOP) => {
            format!(
                "working directory {} leads through too many links, or one of /proc",
                cwd()
            )
        }
        (Stage::Program, errno) => program(errno, run),
        (stage, errno) => format!(
            "{} could not be started: {stage:?} failed with {}",
            quoted(run.argv.first().map_or("", String::as_str)),
            std::io::Error::from(errno)
        ),
    }
}

fn program(errno: Errno, run: &RunSpec) -> String {
    let argv0 = run.argv.first().map_or("", String::as_str);
    let name = quoted(argv0);
    match errno {
        Errno::NOENT | Errno::NOTDIR if argv0.contains('/') => format!(
            "program {name} does not exist in this sandbox, or the interpreter it names does not"
        ),
        Errno::NOENT | Errno::NOTDIR => format!("program {name} is not on PATH in this sandbox"),
        Errno::ACCESS | Errno::ISDIR | Errno::PERM => format!(
            "program {name} is nothing that user {} may execute",
            quoted(run.user.as_deref().unwrap_or("root"))
        ),
        Errno::NOEXEC => format!("program {name} is of a format that this machine cannot execute"),
        Errno::TOOBIG => format!("arguments and environment of {name} are too long"),
        errno => format!(
            "program {name} could not be executed: {}",
            std::io::Error::from(errno)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_guest_is_escaped_and_cut() {
        assert_eq!(quoted("a\u{1b}[2Jb\n"), "`a\\u{1b}[2Jb\\n`");
        assert_eq!(quoted(&"x".repeat(500)).chars().count(), MAX_QUOTED + 3);
    }
}
