//! Output and operation table of the branches that rewinds left, in the sandbox's state directory.
//!
//! A supervisor never runs an id twice, and after a rewind an id may be used again: so each branch has a table and a spool
//! of its own. Which branch lies at the top is written beside them. The journal decides; a crash between its event and
//! the moves is put right at the next start, before any supervisor is.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use protocol::paths::state::{SPOOL, TABLE};

/// Holds the number of the branch whose table and spool lie at the top; absent for the first.
const MARK: &str = "branch";
const LEFT: &str = "branches";

/// Returns where the spool of a branch lies, `now` being the one that goes on.
pub(crate) fn dir(state: &Path, branch: u32, now: u32) -> PathBuf {
    if branch == now {
        return state.to_owned();
    }
    state.join(LEFT).join(branch.to_string())
}

/// Makes `now` the branch at the top. Nothing may run in the sandbox. May be repeated after a crash anywhere in it.
///
/// # Errors
/// What could not be moved.
pub(crate) fn settle(state: &Path, now: u32) -> io::Result<()> {
    let mark = state.join(MARK);
    let top: u32 = match fs::read_to_string(&mark) {
        Ok(text) => text.trim().parse().map_err(io::Error::other)?,
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => 0,
        Err(other) => return Err(other),
    };
    if top == now {
        return Ok(());
    }
    let left = dir(state, top, now);
    fs::create_dir_all(&left)?;
    for name in [SPOOL, TABLE] {
        match fs::rename(state.join(name), left.join(name)) {
            // Moved before a crash, or nothing ever ran on it.
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => {}
            // The new spool of a crash right after it was made.
            Err(_) if name == SPOOL && left.join(name).exists() => {}
            moved => moved?,
        }
    }
    fs::create_dir_all(state.join(SPOOL))?;
    let fresh = state.join("branch.new");
    let mut file = File::create(&fresh)?;
    writeln!(file, "{now}")?;
    file.sync_all()?;
    fs::rename(&fresh, &mark)?;
    File::open(&left)?.sync_all()?;
    File::open(state)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_branch_keeps_its_own_output_and_a_repeated_move_changes_nothing() {
        let dir_ = tempfile::tempdir().unwrap();
        let state = dir_.path();
        fs::create_dir(state.join(SPOOL)).unwrap();
        fs::write(state.join(SPOOL).join("a"), "one").unwrap();
        fs::write(state.join(TABLE), "t0").unwrap();
        settle(state, 1).unwrap();
        fs::write(state.join(SPOOL).join("a"), "two").unwrap();
        settle(state, 1).unwrap();
        let read = |branch| fs::read_to_string(dir(state, branch, 1).join(SPOOL).join("a"));
        assert_eq!(read(0).unwrap(), "one");
        assert_eq!(read(1).unwrap(), "two");
        assert!(!state.join(TABLE).exists());
        settle(state, 3).unwrap();
        assert_eq!(
            fs::read_to_string(dir(state, 1, 3).join(SPOOL).join("a")).unwrap(),
            "two"
        );
    }
}
