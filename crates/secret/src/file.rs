//! Reads a small file that should be private, without hanging on what is no file and without leaving copies in memory.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

use crate::error::Why;

/// Far longer than a tick of any kernel.
const TICKS: Duration = Duration::from_millis(200);

/// Who may be able to read the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Nobody but its owner.
    Owner,
    /// Anybody: it is encrypted.
    Anybody,
}

/// What tells that a file was written or replaced. The time of change is in it, which no program can set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    place: (u64, u64),
    size: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(told: &Metadata) -> Self {
        Self {
            place: (told.dev(), told.ino()),
            size: told.size(),
            written: (told.mtime(), told.mtime_nsec()),
            changed: (told.ctime(), told.ctime_nsec()),
        }
    }

    /// Tells whether a change after this look shows in the next one. File systems write times in ticks of some
    /// milliseconds, so of a file that was changed just before nobody can tell whether it is changed again.
    pub(crate) fn is_settled(&self, now: SystemTime) -> bool {
        let (secs, nanos) = self.changed;
        let changed = u64::try_from(secs)
            .ok()
            .zip(u32::try_from(nanos).ok())
            .map(|(secs, nanos)| UNIX_EPOCH + Duration::new(secs, nanos));
        changed.is_none_or(|at| now.duration_since(at).is_ok_and(|ago| ago > TICKS))
    }

    /// Looks at a file; none where there is no file to look at.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        path.metadata().ok().as_ref().map(Self::of)
    }
}

/// Reads at most `most` bytes. The stamp is that of before the reading, so a change meanwhile is noticed later.
///
/// # Errors
/// It is not there, is no regular file, is too long, or others may read it.
pub(crate) fn read(
    path: &Path,
    most: usize,
    readers: Readers,
) -> Result<(Zeroizing<Vec<u8>>, Stamp), Why> {
    let failed = |why: io::Error| failure("read", path, &why);
    // Before it is opened: to open a device can do something, and a pipe waits.
    regular(path, &path.metadata().map_err(failed)?)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let mut file = File::from(opened.map_err(|why| failed(why.into()))?);
    let told = file.metadata().map_err(failed)?;
    regular(path, &told)?;
    if readers == Readers::Owner && told.mode() & 0o077 != 0 {
        return Err(Why::Exposed {
            path: path.to_owned(),
            mode: told.mode() & 0o7777,
        });
    }
    let bytes = read_to_end(&mut file, most).map_err(failed)?;
    Ok((bytes.ok_or(Why::TooLong)?, Stamp::of(&told)))
}

/// Returns the system's word on a file.
pub(crate) fn failure(doing: &'static str, path: &Path, why: &io::Error) -> Why {
    Why::File {
        doing,
        path: path.to_owned(),
        because: why.to_string(),
    }
}

fn regular(path: &Path, told: &Metadata) -> Result<(), Why> {
    if told.is_file() {
        return Ok(());
    }
    Err(Why::NotRegular {
        path: path.to_owned(),
    })
}

/// Reads to the end into one buffer that never moves; none if there is more than `most`.
pub(crate) fn read_to_end(
    from: &mut impl Read,
    most: usize,
) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut bytes = Zeroizing::new(vec![0; most + 1]);
    let mut len = 0;
    loop {
        match from.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
        if len > most {
            return Ok(None);
        }
    }
    bytes.truncate(len);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_just_changed_is_not_settled() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a");
        std::fs::write(&path, "one").expect("it can be written");
        let stamp = Stamp::at(&path).expect("it is there");
        let (secs, nanos) = stamp.changed;
        let changed = UNIX_EPOCH
            + Duration::new(
                u64::try_from(secs).expect("it is after 1970"),
                u32::try_from(nanos).expect("it is below a second"),
            );
        for (ago, settled) in [(0, false), (100, false), (201, true), (60_000, true)] {
            let now = changed + Duration::from_millis(ago);
            assert_eq!(stamp.is_settled(now), settled, "{ago} ms");
        }
        // A clock elsewhere is ahead of ours.
        assert!(!stamp.is_settled(changed - Duration::from_secs(1)));
    }
}
