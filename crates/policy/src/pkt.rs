//! The first bytes of a push: pkt-lines with one command each, before the pack (gitprotocol-pack, "Reference Update Request").

/// How many bytes of commands are read; a push that says more than some hundred refs at once is refused.
pub const MAX_COMMANDS: usize = 64 << 10;
/// The longest pkt-line that git writes.
const MAX_LINE: usize = 65520;

/// One ref that a push changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushCommand {
    /// What it names now, as the client believes; zeros where it is new.
    pub old: String,
    /// What it shall name; zeros where it shall go.
    pub new: String,
    /// The ref, `refs/heads/main`.
    pub name: String,
}

/// Why the begin of a push cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the begin of a git push cannot be read: {0}")]
pub struct Malformed(pub &'static str);

/// Reads the commands at the begin of the body of a push; none where more of it is needed to know them all.
///
/// No command at all is what git sends to try whether it may push.
///
/// # Errors
///
/// [`Malformed`], where this is no such begin, where it is longer than [`MAX_COMMANDS`], or where the push is signed.
pub fn push_commands(pkt_lines: &[u8]) -> Result<Option<Vec<PushCommand>>, Malformed> {
    let mut commands = Vec::new();
    let mut rest = &pkt_lines[..pkt_lines.len().min(MAX_COMMANDS)];
    loop {
        let Some((head, after)) = rest.split_at_checked(4) else {
            return more(pkt_lines);
        };
        match length(head)? {
            0 => return Ok(Some(commands)),
            len @ 5..=MAX_LINE => {
                let Some((line, after)) = after.split_at_checked(len - 4) else {
                    return more(pkt_lines);
                };
                rest = after;
                if let Some(command) = command(line, commands.is_empty())? {
                    commands.push(command);
                }
            }
            _ => return Err(Malformed("a line has a length that none has")),
        }
    }
}

fn more(seen: &[u8]) -> Result<Option<Vec<PushCommand>>, Malformed> {
    match seen.len() < MAX_COMMANDS {
        true => Ok(None),
        false => Err(Malformed("it changes too many refs at once: push fewer")),
    }
}

fn length(head: &[u8]) -> Result<usize, Malformed> {
    let mut digits = head.iter().map(|&byte| char::from(byte).to_digit(16));
    let value = digits.try_fold(0, |all, digit| Some(all << 4 | digit?));
    let value = value.ok_or(Malformed("a line does not begin with its length"))?;
    Ok(usize::try_from(value).unwrap_or(usize::MAX))
}

/// Reads one line; none of a `shallow` one, which changes nothing.
fn command(line: &[u8], first: bool) -> Result<Option<PushCommand>, Malformed> {
    let line = match first {
        // What the client can do stands behind the first command.
        true => line.split(|&byte| byte == 0).next().unwrap_or_default(),
        false => line,
    };
    let text = std::str::from_utf8(line).map_err(|_| Malformed("a ref is no text"))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    if text.starts_with("push-cert") {
        return Err(Malformed(
            "signed pushes are not read: push without --signed",
        ));
    }
    if let Some(id) = text.strip_prefix("shallow ") {
        return match is_id(id) {
            true => Ok(None),
            false => Err(Malformed("a shallow commit has no id")),
        };
    }
    let mut words = text.splitn(3, ' ');
    let (Some(old), Some(new), Some(name)) = (words.next(), words.next(), words.next()) else {
        return Err(Malformed("a command has not two ids and a ref"));
    };
    if !is_id(old) || !is_id(new) || old.len() != new.len() {
        return Err(Malformed("a command has not two ids and a ref"));
    }
    if !is_ref(name) {
        return Err(Malformed("a ref has a name that git does not take"));
    }
    let [old, new, name] = [old, new, name].map(str::to_owned);
    Ok(Some(PushCommand { old, new, name }))
}

/// SHA-1 or SHA-256.
fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What `git check-ref-format` takes, so that no pattern of a rule is led astray by `..`, `//` or an invisible end.
fn is_ref(name: &str) -> bool {
    let bad =
        |c: char| c.is_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\');
    let whole =
        !name.contains("..") && !name.contains("@{") && !name.ends_with('.') && !name.contains(bad);
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    name.starts_with("refs/") && whole && name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::{MAX_COMMANDS, Malformed, PushCommand, push_commands};

    const A: &str = "1111111111111111111111111111111111111111";
    const B: &str = "0000000000000000000000000000000000000000";

    fn pkt(line: &str) -> String {
        format!("{:04x}{line}", line.len() + 4)
    }

    fn push() -> Vec<u8> {
        let first = pkt(&format!(
            "{A} {B} refs/heads/gone\0 report-status side-band-64k"
        ));
        let second = pkt(&format!("{B} {A} refs/tags/v1\n"));
        format!(
            "{}{first}{second}0000PACK\x00\x01",
            pkt(&format!("shallow {A}\n"))
        )
        .into_bytes()
    }

    #[test]
    fn a_push_is_read_to_its_flush_and_no_further() {
        let commands = push_commands(&push()).unwrap().unwrap();
        let want = |old: &str, new: &str, name: &str| PushCommand {
            old: old.into(),
            new: new.into(),
            name: name.into(),
        };
        assert_eq!(
            commands,
            [want(A, B, "refs/heads/gone"), want(B, A, "refs/tags/v1")]
        );
        assert_eq!(push_commands(b"0000"), Ok(Some(Vec::new())));
    }

    #[test]
    fn a_push_that_comes_byte_by_byte_is_known_with_its_flush() {
        let whole = push();
        let flush = whole.len() - b"PACK\x00\x01".len();
        for end in 0..flush {
            assert_eq!(push_commands(&whole[..end]), Ok(None), "{end}");
        }
        assert!(push_commands(&whole[..flush]).unwrap().is_some());
    }

    #[test]
    fn what_is_no_push_is_refused() {
        let line = |text: &str| push_commands(pkt(text).as_bytes());
        for text in [
            "",
            "hello",
            &format!("{A} {B} refs/heads/../x"),
            &format!("{A} {B} refs/heads/a\nb"),
            &format!("{A} {B} refs//x"),
            &format!("{A} {B} HEAD"),
            &format!("{A} {B}"),
            &format!("{A} 11 refs/heads/x"),
            "shallow x",
            "push-cert\0",
        ] {
            assert!(line(text).is_err(), "{text:?}");
        }
        for bytes in [&b"0001"[..], b"0002", b"0004", b"zzzz", b"+00f", b"fffff"] {
            assert!(push_commands(bytes).is_err(), "{bytes:?}");
        }
        // The end of the capabilities of a second line would hide its ref.
        let second =
            pkt(&format!("{A} {B} refs/heads/a")) + &pkt(&format!("{A} {B} refs/heads/b\0x"));
        assert!(push_commands(second.as_bytes()).is_err());
    }

    #[test]
    fn commands_without_end_are_refused() {
        let endless = pkt(&format!("{A} {B} refs/heads/x")).repeat(2000);
        assert!(endless.len() > MAX_COMMANDS);
        assert!(matches!(
            push_commands(endless.as_bytes()),
            Err(Malformed(_))
        ));
    }
}
