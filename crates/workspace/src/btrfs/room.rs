//! How large the image is: its blocks are reserved ahead of use, and the file system in it is only as large as what is
//! reserved. So when the disk below is full, the file system in the image says that it is full; it never meets an I/O
//! error, after which it would stop with every sandbox.
//!
//! A thread makes the image larger while little is left in it and the disk has more than what is kept for others. Nobody
//! does while the daemon is down. What is no longer used at the image's end goes back to the disk.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use protocol::room;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate};
use rustix::io::Errno;

use super::as_fd;
use super::image::holds;
use crate::sys::btrfs::{self, Size};
use crate::sys::loopdev;
use crate::{Error, Result};

/// So much is left in the image, or an eighth of it where that is more: what sandboxes can write between two looks.
const AHEAD: u64 = 512 << 20;
/// With more left than this multiple of it, the end of the image is given back.
const FAR_AHEAD: u64 = 4;
/// So much at a time of what the disk keeps for others.
const SPARE: u64 = 48 << 20;
/// So much may have to be moved for it.
const TO_MOVE: u64 = 32 << 20;
/// Sizes of the image are multiples of this.
const GRAIN: u64 = 16 << 20;
/// The kernel gives no smaller size to a btrfs.
const SMALLEST: u64 = 256 << 20;
/// How large a new image is, where the disk has so much.
const FIRST: u64 = 1 << 30;
/// How often the space left is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often, in looks, it is asked whether something can be given back.
const TIDY: u32 = 50;

/// Whether the image's blocks are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocks {
    /// All of them, and the image grows.
    Reserved,
    /// Some may be missing when they are needed: an image of an earlier version for which the disk has no room now, or a
    /// disk that reserves nothing.
    Sparse,
}

/// The size of one image.
#[derive(Debug)]
pub(crate) struct Room {
    place: Arc<Place>,
    blocks: Blocks,
    watch: Option<Watch>,
}

/// Where the parts of an image are.
#[derive(Debug)]
struct Place {
    image: PathBuf,
    device: PathBuf,
    mounted: PathBuf,
    /// The image never becomes larger.
    most: u64,
}

impl Room {
    /// Reserves what can be reserved of an image that is mounted, and keeps it large enough until this is dropped.
    pub(crate) fn open(
        image: &Path,
        device: PathBuf,
        at: &Path,
        most: Option<u64>,
    ) -> Result<Self> {
        let place = Arc::new(Place {
            image: image.to_owned(),
            device,
            mounted: at.to_owned(),
            most: most.unwrap_or(u64::MAX),
        });
        let blocks = place.settle()?;
        let watch = match blocks {
            Blocks::Reserved => Some(Watch::start(Arc::clone(&place))?),
            Blocks::Sparse => {
                tracing::warn!(
                    image = %place.image.display(),
                    "the blocks of the pool's image cannot be reserved: keep the disk from filling up, or the pool stops"
                );
                None
            }
        };
        Ok(Self {
            place,
            blocks,
            watch,
        })
    }

    /// Makes the image larger now, if that is due.
    pub(crate) fn look(&self) -> Result<()> {
        if self.blocks == Blocks::Reserved {
            self.place.grow()?;
        }
        Ok(())
    }

    /// Makes a full image a little larger out of what the disk keeps for others, for what must be possible in a full pool.
    /// `false`: that is used up, too.
    pub(crate) fn spare(&self) -> Result<bool> {
        if self.blocks == Blocks::Sparse {
            return Ok(false);
        }
        let image = self.place.lock()?;
        let step = self.place.growth(room::beside_output)?.min(SPARE);
        self.place.extend(&image, step)
    }

    /// Keeps the image at its size as long as what is returned lives.
    pub(crate) fn hold_still(&self) -> Result<File> {
        self.place.lock()
    }

    /// Returns how much the file system in the image can still grow.
    pub(crate) fn to_come(&self) -> Result<u64> {
        match self.blocks {
            Blocks::Reserved => self.place.growth(room::beside_pool),
            Blocks::Sparse => Ok(0),
        }
    }

    /// Returns how much of the disk there is for blocks that the image has not got yet; none if it needs no more.
    pub(crate) fn disk_free(&self) -> Result<Option<u64>> {
        if self.blocks == Blocks::Reserved {
            return Ok(None);
        }
        let held = self.place.metadata()?;
        let missing = held.len() > held.blocks() * 512;
        Ok(missing.then_some(self.place.disk()?.free))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.end();
        }
    }
}

/// Space of a file system.
#[derive(Debug, Clone, Copy)]
struct Space {
    total: u64,
    free: u64,
}

fn space(at: &Path) -> Result<Space> {
    let found = rustix::fs::statvfs(at).map_err(|e| Error::errno("look at", at, e))?;
    Ok(Space {
        total: found.f_blocks * found.f_frsize,
        free: found.f_bavail * found.f_frsize,
    })
}

/// Gives a new image in `data_dir` its size.
pub(crate) fn begin(image: &File, path: &Path, data_dir: &Path, most: Option<u64>) -> Result<()> {
    let disk = space(data_dir)?;
    let left = disk.free.saturating_sub(room::beside_pool(disk.total));
    let left = left.min(most.unwrap_or(u64::MAX)) / GRAIN * GRAIN;
    if left < SMALLEST {
        return Err(Error::Full {
            doing: "make the pool's image",
            path: data_dir.to_owned(),
        });
    }
    let reserved = reserve(image, 0, left.min(FIRST));
    if !reserved.map_err(|e| Error::errno("reserve the blocks of", path, e))? {
        // It cannot grow by what it reserves, so it has its last size at once, without blocks.
        image.set_len(left).map_err(Error::io("size", path))?;
    }
    Ok(())
}

/// Gives a file its blocks from `from` up to `to`. `false`: this disk reserves nothing. On an error it may have some.
fn reserve(file: &File, from: u64, to: u64) -> std::result::Result<bool, Errno> {
    let whole = FallocateFlags::empty();
    match rustix::io::retry_on_intr(|| fallocate(file, whole, from, to - from)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

impl Place {
    fn metadata(&self) -> Result<std::fs::Metadata> {
        std::fs::metadata(&self.image).map_err(Error::io("look at", &self.image))
    }

    fn disk(&self) -> Result<Space> {
        space(self.image.parent().unwrap_or(&self.image))
    }

    /// Opens the image with a lock on it: whoever else has the pool open changes its size, too.
    fn lock(&self) -> Result<File> {
        let opened = OpenOptions::new().read(true).write(true).open(&self.image);
        let image = opened.map_err(Error::io("open", &self.image))?;
        rustix::fs::flock(&image, FlockOperation::LockExclusive)
            .map_err(|e| Error::errno("lock", &self.image, e))?;
        Ok(image)
    }

    /// Finishes what a crash interrupted, and reserves the blocks of an image that has not got all of them.
    fn settle(&self) -> Result<Blocks> {
        let image = self.lock()?;
        let held = self.metadata()?;
        // A crash after the image grew and before the file system did, or the reverse while it was made smaller.
        self.follow(&image, Size::Whole)?;
        if held.blocks() * 512 >= held.len() {
            return Ok(Blocks::Reserved);
        }
        let refused = |errno| Error::errno("reserve the blocks of", &self.image, errno);
        if !reserve(&image, 0, 1).map_err(refused)? {
            return Ok(Blocks::Sparse);
        }
        let mounted = self.open_mounted()?;
        let end = btrfs::end_of_use(as_fd(&mounted), TO_MOVE)
            .map_err(|e| Error::errno("look at the use of", &self.mounted, e))?;
        let used = held.blocks() * 512;
        let disk = self.disk()?;
        let size = (end + AHEAD)
            .next_multiple_of(GRAIN)
            .max(SMALLEST)
            .min(held.len());
        let missing = size.saturating_sub(used);
        if missing > disk.free.saturating_sub(room::beside_pool(disk.total)) {
            return Ok(Blocks::Sparse);
        }
        if size < held.len()
            && let Err(error) = self.shrink(&image, &mounted, size)
        {
            tracing::warn!(%error, "the pool's image keeps its size");
            return Ok(Blocks::Sparse);
        }
        match reserve(&image, 0, size) {
            Ok(true) => Ok(Blocks::Reserved),
            Ok(false) | Err(Errno::NOSPC | Errno::DQUOT) => Ok(Blocks::Sparse),
            Err(errno) => Err(refused(errno)),
        }
    }

    /// Returns by how much the image could be made larger now, if it leaves the disk what `kept` says.
    fn growth(&self, kept: fn(u64) -> u64) -> Result<u64> {
        let disk = self.disk()?;
        let left = disk.free.saturating_sub(kept(disk.total));
        let size = self.metadata()?.len();
        Ok(left.min(self.most.saturating_sub(size)) / GRAIN * GRAIN)
    }

    /// Makes the image larger if little is left in it and the disk has more.
    fn grow(&self) -> Result<()> {
        let left = |inside: Space| inside.free >= AHEAD.max(inside.total / 8);
        if left(space(&self.mounted)?) || self.growth(room::beside_pool)? == 0 {
            return Ok(());
        }
        let image = self.lock()?;
        let inside = space(&self.mounted)?;
        // Somebody else may have done it while we waited.
        if left(inside) {
            return Ok(());
        }
        let step = AHEAD.max(inside.total / 8) / GRAIN * GRAIN;
        self.extend(&image, step.min(self.growth(room::beside_pool)?))?;
        Ok(())
    }

    /// Makes the image larger; `false` where the disk has not got that.
    fn extend(&self, image: &File, step: u64) -> Result<bool> {
        if step == 0 {
            return Ok(false);
        }
        let size = self.metadata()?.len();
        let reserved = reserve(image, size, size + step)
            .and_then(|done| if done { Ok(()) } else { Err(Errno::OPNOTSUPP) });
        if let Err(errno) = reserved {
            // Half of it may be there.
            rustix::fs::ftruncate(image, size).map_err(|e| Error::errno("cut", &self.image, e))?;
            return match errno {
                // Somebody else took it meanwhile.
                Errno::NOSPC | Errno::DQUOT => Ok(false),
                errno => Err(Error::errno("reserve blocks for", &self.image, errno)),
            };
        }
        // A file system that is larger than its device is not mounted.
        image.sync_all().map_err(Error::io("sync", &self.image))?;
        self.follow(image, Size::Whole)?;
        tracing::info!(bytes = size + step, "the pool's image is larger");
        Ok(true)
    }

    /// Gives the end of the image back to the disk if nothing uses it and much is left.
    fn give_back(&self) -> Result<()> {
        let inside = space(&self.mounted)?;
        let ahead = AHEAD.max(inside.total / 8);
        if inside.free < FAR_AHEAD * ahead {
            return Ok(());
        }
        let image = self.lock()?;
        let size = self.metadata()?.len();
        let mounted = self.open_mounted()?;
        let end = btrfs::end_of_use(as_fd(&mounted), TO_MOVE)
            .map_err(|e| Error::errno("look at the use of", &self.mounted, e))?;
        let smaller = (end + 2 * ahead).next_multiple_of(GRAIN).max(FIRST);
        if smaller + ahead > size {
            return Ok(());
        }
        match self.shrink(&image, &mounted, smaller) {
            Ok(()) => tracing::info!(bytes = smaller, "the pool's image is smaller"),
            // No room to move what is there; it may be had another time.
            Err(Error::Full { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes the file system smaller, then the image.
    fn shrink(&self, image: &File, mounted: &File, size: u64) -> Result<()> {
        btrfs::resize(as_fd(mounted), Size::Bytes(size))
            .map_err(|e| Error::errno("make smaller", &self.mounted, e))?;
        rustix::fs::ftruncate(image, size).map_err(|e| Error::errno("cut", &self.image, e))?;
        self.follow(image, Size::Bytes(size))
    }

    /// Makes the device as large as the image, and the file system as large as that.
    fn follow(&self, image: &File, size: Size) -> Result<()> {
        let opened = OpenOptions::new().read(true).write(true).open(&self.device);
        let device = opened.map_err(Error::io("open", &self.device))?;
        if !holds(&device, image, &self.device)? {
            return Err(Error::errno("find the image of", &self.device, Errno::NXIO));
        }
        loopdev::follow_size(as_fd(&device))
            .map_err(|e| Error::errno("set the size of", &self.device, e))?;
        if size == Size::Whole {
            btrfs::resize(as_fd(&self.open_mounted()?), size)
                .map_err(|e| Error::errno("make larger", &self.mounted, e))?;
        }
        Ok(())
    }

    fn open_mounted(&self) -> Result<File> {
        File::open(&self.mounted).map_err(Error::io("open", &self.mounted))
    }
}

/// The thread that looks.
#[derive(Debug)]
struct Watch {
    ending: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl Watch {
    fn start(place: Arc<Place>) -> Result<Self> {
        let ending = Arc::new((Mutex::new(false), Condvar::new()));
        let (ended, image) = (Arc::clone(&ending), place.image.clone());
        let thread = std::thread::Builder::new()
            .name("pool-size".into())
            .spawn(move || watch(&place, &ended))
            .map_err(Error::io("start the thread that sizes", image))?;
        Ok(Self { ending, thread })
    }

    fn end(self) {
        *self.ending.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ending.1.notify_all();
        // One that panicked has said so already.
        drop(self.thread.join());
    }
}

fn watch(place: &Place, (ending, ended): &(Mutex<bool>, Condvar)) {
    // What a daemon left that was told to end is given back by the next.
    let mut looks = u32::MAX;
    let mut told = false;
    let mut over = ending.lock().unwrap_or_else(PoisonError::into_inner);
    while !*over {
        drop(over);
        looks = looks.wrapping_add(1);
        let looked = match looks % TIDY {
            0 => place.grow().and_then(|()| place.give_back()),
            _ => place.grow(),
        };
        match looked {
            Ok(()) => told = false,
            // Once for each time that it begins to fail.
            Err(error) if !told => {
                told = true;
                tracing::error!(%error, cause = std::error::Error::source(&error), "the pool's image keeps its size");
            }
            Err(_) => {}
        }
        over = ending.lock().unwrap_or_else(PoisonError::into_inner);
        if !*over {
            let waited = ended.wait_timeout(over, LOOK);
            over = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
