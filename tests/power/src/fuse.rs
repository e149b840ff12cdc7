//! A [`Tape`] as a file, for a loop device to lie on: the little of the FUSE protocol (7.31) that one file needs.
//!
//! The file is the root of its own file system, mounted over an empty one. One thread answers one request after another, so
//! the tape has writes and flushes in the order in which they were answered.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use bench::Failure;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::tape::{BLOCK, Tape};

/// The most that one write may carry; and of what the kernel puts before it, more than enough.
const MAX_WRITE: u32 = 1 << 20;
const HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// `FUSE_ASYNC_READ`, `FUSE_BIG_WRITES`, `FUSE_MAX_PAGES`.
const FLAGS: u32 = 1 | 1 << 5 | 1 << 22;
/// `FOPEN_DIRECT_IO`: nothing of it stays in the kernel's cache, so a write is here before it is answered.
const DIRECT_IO: u32 = 1;
const REGULAR: u32 = 0o100_600;

/// The mounted file. Dropped, it is unmounted, and its thread ends.
pub(crate) struct TapeFile {
    path: PathBuf,
    serving: Option<JoinHandle<()>>,
}

impl TapeFile {
    /// Shows the tape as the file `path`.
    pub(crate) fn mount(tape: Arc<Tape>, path: PathBuf) -> Result<Self, Failure> {
        let what = "mount a file of ours (this needs root, and FUSE)";
        File::create(&path).map_err(Failure::cannot(what))?;
        let fuse = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .map_err(Failure::cannot("open /dev/fuse"))?;
        let data = format!(
            "fd={},rootmode={REGULAR:o},user_id=0,group_id=0",
            fuse.as_raw_fd()
        );
        let data = CString::new(data).map_err(Failure::cannot(what))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("durable-power", &path, "fuse", flags, Some(data.as_c_str()))
            .map_err(Failure::cannot(what))?;
        let serving = std::thread::spawn(move || serve(&fuse, &tape));
        Ok(Self {
            path,
            serving: Some(serving),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TapeFile {
    fn drop(&mut self) {
        // What still has it open, after a failure, keeps it until then: the thread ends with it or with us.
        let clean = unmount(&self.path, UnmountFlags::empty()).is_ok();
        if !clean {
            let _gone = unmount(&self.path, UnmountFlags::DETACH);
        }
        if let Some(serving) = self.serving.take().filter(|_| clean) {
            let _ended = serving.join();
        }
        let _removed = std::fs::remove_file(&self.path);
    }
}

fn serve(mut fuse: &File, tape: &Tape) {
    let mut request = vec![0; MAX_WRITE as usize + 2 * BLOCK];
    loop {
        let size = match fuse.read(&mut request) {
            Ok(size) => size,
            Err(error) => match Errno::from_io_error(&error) {
                // The requester gave up, or we were interrupted.
                Some(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                // Unmounted.
                _ => return,
            },
        };
        let Some(request) = request[..size].split_at_checked(HEADER) else {
            return;
        };
        let (header, body) = request;
        let unique = &header[8..16];
        let Some(answer) = answer(u32_at(header, 4), body, tape) else {
            continue;
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno.raw_os_error(), Vec::new()),
        };
        let length = u32::try_from(OUT_HEADER + body.len()).unwrap_or(u32::MAX);
        let mut out = Vec::with_capacity(OUT_HEADER + body.len());
        out.extend(length.to_ne_bytes());
        out.extend(error.to_ne_bytes());
        out.extend(unique);
        out.extend(body);
        // The requester may be gone meanwhile.
        let _told = fuse.write_all(&out);
    }
}

/// Answers one request; `None` where no answer is wanted.
fn answer(opcode: u32, body: &[u8], tape: &Tape) -> Option<Result<Vec<u8>, Errno>> {
    Some(Ok(match opcode {
        // FORGET, INTERRUPT, BATCH_FORGET
        2 | 36 | 42 => return None,
        // GETATTR, SETATTR
        3 | 4 => attributes(tape),
        // OPEN: no handle
        14 => words(&[0, 0, DIRECT_IO, 0]),
        // READ
        15 => {
            let mut data = vec![0; (u32_at(body, 16) as usize).min(MAX_WRITE as usize)];
            let size = tape.read(u64_at(body, 8), &mut data);
            data.truncate(size);
            data
        }
        // WRITE
        16 => {
            let size = u32_at(body, 16);
            let data = body.get(40..).unwrap_or_default();
            let Some(data) = data.get(..size as usize) else {
                return Some(Err(Errno::INVAL));
            };
            tape.write(u64_at(body, 8), data);
            words(&[size, 0])
        }
        // STATFS: its block size is all that a loop device looks at
        17 => {
            let size = u32::try_from(BLOCK).unwrap_or(0);
            let counts = [0; 10];
            words(&[&counts[..], &[size, 255, size, 0], &[0; 6]].concat())
        }
        // RELEASE, FLUSH (the close of a descriptor), DESTROY
        18 | 25 | 38 => Vec::new(),
        // FSYNC
        20 => {
            tape.flush();
            Vec::new()
        }
        // INIT
        26 => {
            let offered = u32_at(body, 12);
            let read_ahead = u32_at(body, 8);
            let pages = MAX_WRITE / u32::try_from(BLOCK).unwrap_or(1);
            // Two numbers of 16 bits, in a word each: requests in the background, congestion; pages, alignment.
            let background = 64 | 48 << 16;
            let head = [7, 31, read_ahead, FLAGS & offered, background, MAX_WRITE, 1];
            words(&[&head[..], &[pages], &[0; 8]].concat())
        }
        _ => return Some(Err(Errno::NOSYS)),
    }))
}

/// The attributes of the one file, good for ever.
fn attributes(tape: &Tape) -> Vec<u8> {
    let mut out = Vec::with_capacity(104);
    // For how long: seconds; nanoseconds and nothing.
    out.extend(3600_u64.to_ne_bytes());
    out.extend(0_u64.to_ne_bytes());
    for number in [1, tape.bytes(), tape.bytes() / 512, 0, 0, 0] {
        out.extend(number.to_ne_bytes());
    }
    let size = u32::try_from(BLOCK).unwrap_or(0);
    // Three nanoseconds, mode, links, owner, group, device, block size, flags.
    out.extend(words(&[0, 0, 0, REGULAR, 1, 0, 0, 0, size, 0]));
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Numbers in what the kernel sends; 0 where it is too short for one.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    found.map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    found.map_or(0, u64::from_ne_bytes)
}
