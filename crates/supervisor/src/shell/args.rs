//! The command line of a shell, as far as it must be understood: where the command is, and what belongs to the shell.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Long options of bash that take the next argument.
const WITH_VALUE: [&[u8]; 2] = [b"--rcfile", b"--init-file"];

/// A shell's command line, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Args {
    /// Our own option: where the last working directory is wanted.
    pub(super) cwd_file: Option<OsString>,
    /// Everything else, as it came.
    pub(super) all: Vec<OsString>,
    /// Where in `all` the command of `-c` is.
    pub(super) command: Option<usize>,
}

/// Takes a command line apart.
pub(super) fn parse(args: Vec<OsString>) -> Args {
    let mut args = args.into_iter().peekable();
    let mut cwd_file = None;
    while args.peek().is_some_and(|arg| arg == "--cwd-file") {
        args.next();
        cwd_file = args.next();
    }
    let all: Vec<OsString> = args.collect();
    let command = find_command(&all);
    Args {
        cwd_file,
        all,
        command,
    }
}

fn find_command(all: &[OsString]) -> Option<usize> {
    let (mut at, mut has_c) = (0, false);
    while let Some(arg) = all.get(at).map(|arg| OsStr::as_bytes(arg)) {
        let is_option = arg.len() > 1 && (arg[0] == b'-' || arg[0] == b'+');
        if !is_option || arg == b"--" {
            break;
        }
        at += 1;
        if arg.starts_with(b"--") {
            at += usize::from(WITH_VALUE.contains(&arg));
            continue;
        }
        has_c |= arg[0] == b'-' && arg.contains(&b'c');
        at += arg.iter().filter(|letter| b"oO".contains(letter)).count();
    }
    if all.get(at).is_some_and(|arg| arg == "--") {
        at += 1;
    }
    (has_c && at < all.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> (Option<String>, Option<String>) {
        let args = parse(line.split(' ').map(OsString::from).collect());
        let command = args.command.map(|at| args.all[at].to_string_lossy().into());
        let cwd_file = args.cwd_file.map(|file| file.to_string_lossy().into());
        (command, cwd_file)
    }

    #[test]
    fn the_command_is_found_behind_the_options() {
        for (line, command) in [
            ("-c ls", Some("ls")),
            ("-lc ls", Some("ls")),
            ("-l -c ls a b", Some("ls")),
            ("--login -c ls", Some("ls")),
            ("--rcfile x -ic ls", Some("ls")),
            ("-eo pipefail -c ls", Some("ls")),
            ("-c -l ls", Some("ls")),
            ("-c -- ls", Some("ls")),
            ("-c", None),
            ("script -c ls", None),
            ("-l", None),
            ("", None),
        ] {
            assert_eq!(parsed(line), (command.map(str::to_owned), None), "{line}");
        }
    }

    #[test]
    fn our_own_option_is_taken_out() {
        let args = parse(
            ["--cwd-file", "/tmp/x", "-c", "ls"]
                .map(OsString::from)
                .into(),
        );
        assert_eq!(args.cwd_file, Some("/tmp/x".into()));
        assert_eq!(args.all, ["-c", "ls"]);
        assert_eq!(args.command, Some(1));
    }
}
