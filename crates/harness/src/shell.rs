//! The shim's side: what a harness asked its shell to do, and whether that is a tool call.
//!
//! Pi hands over the marked command as it is. Claude Code wraps it (`PRELUDE && eval 'MARKED' < /dev/null && pwd -P >| FILE`),
//! where the prelude restores the user's aliases and functions and the file tells it where the next command starts. An
//! operation's argv holds the model's command alone, so that the same call is the same operation after any restart;
//! prelude and file reach it through [`BASH_ENV`], which its bash reads before the command.

use std::collections::BTreeMap;

use protocol::{OpId, shim};

/// Names the file of [`BASH_ENV`] to the shim; set by a plan.
pub const BASH_ENV_AT: &str = "DURABLE_BASH_ENV";
/// Shell text to be evaluated before the command.
pub const PRELUDE: &str = "DURABLE_PRELUDE";
/// The file that gets the directory in which a successful command ended.
pub const CWD_FILE: &str = "DURABLE_CWD_FILE";

/// What the bash of an operation reads before its command. It takes its own variables away first, so that no bash
/// further down reads it again. As in the harness, a command that failed does not move the next one.
pub const BASH_ENV: &str = r#"unset BASH_ENV
if [ -n "${DURABLE_PRELUDE-}" ]; then
  __durable=$DURABLE_PRELUDE
  unset DURABLE_PRELUDE
  eval "$__durable"
  unset __durable
fi
if [ -n "${DURABLE_CWD_FILE-}" ]; then
  trap -- '[ $? -ne 0 ] || pwd -P >| '"'${DURABLE_CWD_FILE//\'/\'\\\'\'}'" EXIT
  unset DURABLE_CWD_FILE
fi
"#;

/// A tool call that reached the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its id.
    pub op: OpId,
    /// The operation's program and arguments: the same for the same call, whenever it comes.
    pub argv: Vec<String>,
    /// To be added to the environment that the shim was called with; it may differ when the same call comes again.
    pub env: BTreeMap<String, String>,
}

/// Returns the tool call in the text after the shim's `-c`; none where the real shell is to execute the text in place.
///
/// `bash_env` is the value of [`BASH_ENV_AT`] in the shim's environment.
#[must_use]
pub fn call(text: &str, bash_env: Option<&str>) -> Option<Call> {
    if let Some((op, command)) = shim::unmark(text) {
        return Some(make(op, command, BTreeMap::new()));
    }
    let wrapped = unwrap(text)?;
    let (op, command) = shim::unmark(&wrapped.command)?;
    let mut env = BTreeMap::new();
    if let Some(bash_env) = bash_env {
        env.insert("BASH_ENV".to_owned(), bash_env.to_owned());
        env.insert(PRELUDE.to_owned(), wrapped.prelude.to_owned());
        env.insert(CWD_FILE.to_owned(), wrapped.cwd_file);
    }
    Some(make(op, command, env))
}

fn make(op: OpId, command: &str, env: BTreeMap<String, String>) -> Call {
    Call {
        op,
        argv: ["/bin/bash", "-c", command].map(str::to_owned).into(),
        env,
    }
}

/// A command in Claude Code's wrapping.
#[derive(Debug, PartialEq, Eq)]
struct Wrapped<'a> {
    prelude: &'a str,
    command: String,
    cwd_file: String,
}

fn unwrap(text: &str) -> Option<Wrapped<'_>> {
    const EVAL: &str = " && eval ";
    text.match_indices(EVAL).find_map(|(at, _)| {
        let (command, rest) = word(&text[at + EVAL.len()..])?;
        let rest = rest.strip_prefix(" < /dev/null").unwrap_or(rest);
        let (cwd_file, rest) = word(rest.strip_prefix(" && pwd -P >| ")?)?;
        rest.is_empty().then_some(Wrapped {
            prelude: &text[..at],
            command,
            cwd_file,
        })
    })
}

/// Takes one quoted word of a shell off the start of `text`. Expansions are not known: such a word is none.
fn word(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut rest = text;
    loop {
        match rest.chars().next() {
            None | Some(' ') => break,
            Some('\'') => {
                let (quoted, after) = rest[1..].split_once('\'')?;
                out.push_str(quoted);
                rest = after;
            }
            Some('"') => {
                let (quoted, after) = rest[1..].split_once('"')?;
                if quoted.contains(['$', '`', '\\']) {
                    return None;
                }
                out.push_str(quoted);
                rest = after;
            }
            Some('\\') => {
                let escaped = rest[1..].chars().next().filter(|c| *c != '\n')?;
                out.push(escaped);
                rest = &rest[1 + escaped.len_utf8()..];
            }
            Some(c) if c.is_alphanumeric() || "_-./:,@%+=".contains(c) => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
            Some(_) => return None,
        }
    }
    (rest.len() < text.len()).then_some((out, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRE: &str = "source /h/.claude/shell-snapshots/s.sh 2>/dev/null || true && { \\builtin unalias -- 'which'; } >/dev/null 2>&1 || true";

    fn wrap(command: &str, id: &str) -> String {
        let marked = shim::mark(&id.parse().unwrap(), command).replace('\'', r#"'"'"'"#);
        format!("{PRE} && eval '{marked}' < /dev/null && pwd -P >| /tmp/claude-21db-cwd")
    }

    #[test]
    fn both_harnesses_lead_to_the_same_argv() {
        for command in [
            "ls",
            "it's; a && eval 'x'",
            "",
            "cat <<'E'\nx\nE",
            "a\\\n b 😀",
        ] {
            let id = "toolu_1".parse().unwrap();
            let pi = call(&shim::mark(&id, command), Some("/h/e")).unwrap();
            let claude = call(&wrap(command, "toolu_1"), Some("/h/e")).unwrap();
            assert_eq!(pi.argv, ["/bin/bash", "-c", command]);
            assert_eq!((&pi.op, &pi.argv), (&claude.op, &claude.argv));
            assert!(pi.env.is_empty());
            assert_eq!(claude.env[CWD_FILE], "/tmp/claude-21db-cwd");
            assert_eq!(claude.env[PRELUDE], PRE);
        }
    }

    #[test]
    fn what_is_not_a_tool_call_goes_to_the_real_shell() {
        let unmarked = format!("{PRE} && eval 'ls' < /dev/null && pwd -P >| /tmp/f");
        for text in ["ls", &unmarked, &wrap("ls", "a")[..40], "x && eval '", ""] {
            assert_eq!(call(text, None), None);
        }
        let more = format!("{} && rm x", wrap("ls", "a"));
        assert_eq!(call(&more, None), None);
    }

    #[test]
    fn the_environment_file_restores_the_prelude_and_tells_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (file, cwd) = (dir.path().join("env"), dir.path().join("it's cwd"));
        std::fs::write(&file, BASH_ENV).unwrap();
        let run = |command: &str| {
            std::process::Command::new("/bin/bash")
                .args(["-c", command])
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .env("BASH_ENV", &file)
                .env(
                    PRELUDE,
                    "shopt -s expand_aliases; alias hi='echo hello'; f() { echo f; }",
                )
                .env(CWD_FILE, &cwd)
                .output()
                .unwrap()
        };
        let out = run("hi\nf\ncd /usr\nbash -c 'f; env' | grep -c 'DURABLE\\|BASH_ENV'");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "hello\nf\n0\n");
        assert!(
            !cwd.exists(),
            "grep -c of nothing fails, so nothing is told"
        );
        run("cd /usr; echo x");
        assert_eq!(std::fs::read_to_string(&cwd).unwrap(), "/usr\n");
        assert_eq!(run("cd /; exit 7").status.code(), Some(7));
        assert_eq!(std::fs::read_to_string(&cwd).unwrap(), "/usr\n");
    }
}
