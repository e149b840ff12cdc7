//! A look into the write-ahead log before SQLite sees it.
//!
//! SQLite takes the first frame with a wrong checksum for the end of the log: right for a write that was torn by a power
//! cut, and silent loss where a byte went bad later. The two can be told apart. A commit is synced before the next frame is
//! written, so a good frame behind the end of a broken commit proves that the commit was whole once. What cannot be told
//! apart is damage in the very last commit; the supervisor's witness finds that one.
//!
//! The format is <https://www.sqlite.org/fileformat2.html#walformat>.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const MAGIC: u32 = 0x377f_0682;

/// Commits in the log that SQLite would pass over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalDamage {
    /// The first bad frame; 0 is the log's header.
    pub frame: u64,
    /// Commits at and behind it that were on disk.
    pub commits: u64,
}

impl fmt::Display for WalDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frame, commits } = self;
        write!(
            f,
            "frame {frame} is bad, {commits} commits from there on cannot be read"
        )
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Sum(u32, u32);

impl Sum {
    fn over(self, bytes: &[u8], big_endian: bool) -> Self {
        let word = |four: &[u8]| {
            let four = [four[0], four[1], four[2], four[3]];
            if big_endian {
                u32::from_be_bytes(four)
            } else {
                u32::from_le_bytes(four)
            }
        };
        bytes.chunks_exact(8).fold(self, |Self(a, b), eight| {
            let a = a.wrapping_add(word(&eight[..4])).wrapping_add(b);
            let b = b.wrapping_add(word(&eight[4..])).wrapping_add(a);
            Self(a, b)
        })
    }

    fn at(bytes: &[u8], offset: usize) -> Self {
        Self(number(bytes, offset), number(bytes, offset + 4))
    }
}

fn number(bytes: &[u8], offset: usize) -> u32 {
    let b = &bytes[offset..offset + 4];
    u32::from_be_bytes([b[0], b[1], b[2], b[3]])
}

/// Looks for commits that were on disk and cannot be reached any more in a database's log.
pub(super) fn inspect(database: &Path, log: &Path) -> io::Result<Option<WalDamage>> {
    let file = match File::open(log) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut log = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; HEADER];
    if !fill(&mut log, &mut header)? || header == [0; HEADER] {
        return Ok(None);
    }
    let page = number(&header, 8);
    let plausible = page.is_power_of_two() && (512..=65536).contains(&page);
    let whole = number(&header, 0) & !1 == MAGIC
        && plausible
        && Sum(0, 0).over(&header[..24], number(&header, 0) & 1 == 1) == Sum::at(&header, 24);
    // The header lies in one sector, so it is never torn: one that is bad hides the whole log. The database knows the page
    // size then, and the byte order is this machine's.
    let page = if whole { page } else { page_bytes(database) };
    let big_endian = whole && number(&header, 0) & 1 == 1;
    let mut salt = whole.then(|| Sum::at(&header, 16));
    let mut sum = whole.then(|| Sum::at(&header, 24));

    let mut frame = vec![0; FRAME_HEADER + page as usize];
    let mut bad = (!whole).then_some(0);
    let mut commits = 0;
    let mut closed = 0;
    let mut at = 0;
    while fill(&mut log, &mut frame)? {
        at += 1;
        let its = Sum::at(&frame, 8);
        let stored = Sum::at(&frame, 16);
        let salt = *salt.get_or_insert(its);
        let good = its == salt
            && sum.is_some_and(|sum| {
                sum.over(&frame[..8], big_endian)
                    .over(&frame[FRAME_HEADER..], big_endian)
                    == stored
            });
        if !good && bad.is_none() {
            bad = Some(at);
        }
        if bad.is_some() {
            // A commit counts once there is a good frame behind it.
            if good {
                closed = commits;
            }
            if number(&frame, 4) != 0 && its == salt {
                commits += 1;
            }
        }
        sum = Some(stored);
    }
    Ok(bad.filter(|_| closed > 0).map(|frame| WalDamage {
        frame,
        commits: commits.max(closed),
    }))
}

/// Returns the page size in the header of a database, or the one that we give to new ones.
fn page_bytes(database: &Path) -> u32 {
    let mut header = [0; 18];
    let read = File::open(database).and_then(|mut file| file.read_exact(&mut header));
    match (read, u16::from_be_bytes([header[16], header[17]])) {
        (Ok(()), 1) => 65536,
        (Ok(()), bytes) if bytes.is_power_of_two() && bytes >= 512 => u32::from(bytes),
        _ => super::PAGE_BYTES,
    }
}

/// Fills the buffer; false at the end of the file.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}
