//! Files that writes had begun beside their targets and were killed over.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Dir};
use rustix::io::Errno;
use rustix::process::Pid;

/// Names that are looked at: a write must not take longer the more there is in its directory.
const LOOKED_AT: usize = 4096;
const MARK: &[u8] = b".durable-";

/// What a file beside `name` is called: hidden, and with the number of the process that fills it.
pub(super) fn beside(name: &[u8]) -> Vec<u8> {
    // Names may be 255 bytes long; the ending must fit too.
    let mut beside = [b".", &name[..name.len().min(200)], MARK].concat();
    beside.extend(std::process::id().to_string().into_bytes());
    beside
}

/// Removes such files whose process is gone, as far as we may.
pub(super) fn remove(dir: impl AsFd) {
    let Ok(entries) = Dir::read_from(&dir) else {
        return;
    };
    for entry in entries.take(LOOKED_AT) {
        // What cannot be read is no reason not to write.
        let Ok(entry) = entry else { return };
        let name = entry.file_name();
        if writer(name.to_bytes()).is_some_and(is_gone) {
            let _gone: Result<(), Errno> = rustix::fs::unlinkat(&dir, name, AtFlags::empty());
        }
    }
}

fn writer(name: &[u8]) -> Option<Pid> {
    let rest = name.strip_prefix(b".")?;
    let at = rest.windows(MARK.len()).rposition(|part| part == MARK)?;
    let number = std::str::from_utf8(&rest[at + MARK.len()..]).ok()?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Pid::from_raw(number.parse().ok()?)
}

fn is_gone(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_write_left_goes_and_nothing_else() {
        let world = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = child.id();
        child.wait().unwrap();
        let (stale, live) = (
            format!(".file.durable-{gone}"),
            String::from_utf8(beside(b"file")).unwrap(),
        );
        let kept = [
            live.as_str(),
            ".durable-",
            ".file.durable-12x",
            &format!("file.durable-{gone}"),
            "file",
        ];
        for name in kept.into_iter().chain([stale.as_str()]) {
            std::fs::write(world.path().join(name), "").unwrap();
        }
        remove(std::fs::File::open(world.path()).unwrap());
        for name in kept {
            assert!(world.path().join(name).exists(), "{name}");
        }
        assert!(!world.path().join(stale).exists());
    }
}
