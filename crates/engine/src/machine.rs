//! In which boot of the machine the data directory was served last.
//!
//! A machine that went down took every write with it that had not reached the disk. Settlements are on disk before their cut
//! is, so after such a start an exit code may be known whose files are gone ([`crate::recover::Files`]).

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

const FILE: &str = "machine.boot";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns whether the machine went down since the data directory was last served. One that never was: no.
pub(crate) fn went_down(data: &Path) -> bool {
    match fs::read_to_string(data.join(FILE)) {
        Ok(served) => !fs::read_to_string(BOOT_ID).is_ok_and(|now| now.trim() == served.trim()),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Writes down that everything was recovered in this boot. A crash before that leaves the doubt in place.
pub(crate) fn remember(data: &Path) -> io::Result<()> {
    let (path, half) = (data.join(FILE), data.join("machine.boot.new"));
    if path.exists() && !went_down(data) {
        return Ok(());
    }
    let mut file = File::create(&half)?;
    file.write_all(fs::read_to_string(BOOT_ID)?.trim().as_bytes())?;
    file.sync_all()?;
    fs::rename(half, path)?;
    File::open(data)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_boot_is_told_until_it_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!went_down(dir.path()));
        remember(dir.path()).unwrap();
        assert!(!went_down(dir.path()));
        fs::write(dir.path().join(FILE), "another").unwrap();
        assert!(went_down(dir.path()));
        remember(dir.path()).unwrap();
        assert!(!went_down(dir.path()));
    }
}
