//! Choosing and opening the pool of a data directory.
//!
//! The kind is chosen once and written down: a machine that lost its loop devices must say so, not open an empty pool of
//! another kind beside the full one.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::btrfs::{Attached, Btrfs, is_btrfs};
use crate::copy::Copy;
use crate::{Error, Pool, Result};

/// Says in the data directory which kind of pool it has: `btrfs`, `btrfs-image` or `copy`.
pub(crate) const KIND: &str = "pool.kind";
/// The pool's own directory, or where its image is mounted.
const POOL: &str = "pool";

/// Which kind of pool is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// What the data directory already has; else btrfs where it can be had, else copies.
    #[default]
    Auto,
    /// btrfs or nothing.
    Btrfs,
    /// Copies.
    Copy,
}

/// How a pool is opened.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which kind.
    pub choice: Choice,
    /// The most that a loop image grows to; none: as far as the disk goes, but for what is kept for others.
    pub image_bytes: Option<u64>,
}

/// Opens the pool of a data directory; makes it where there is none.
///
/// One process at a time may have it open; holding to that is the daemon's business. A crash leaves nothing that the next
/// call does not finish or take away.
///
/// # Errors
/// The wanted kind cannot be had, or what is there cannot be opened.
pub fn open(data_dir: &Path, choice: Choice) -> Result<Box<dyn Pool>> {
    open_with(
        data_dir,
        &Options {
            choice,
            ..Options::default()
        },
    )
}

/// Opens the pool of a data directory as told by `options`.
///
/// # Errors
/// As [`open`].
pub fn open_with(data_dir: &Path, options: &Options) -> Result<Box<dyn Pool>> {
    // The mount table, which names an image's mount, knows no links.
    let data_dir = fs::canonicalize(data_dir).map_err(Error::io("open", data_dir))?;
    let data_dir = data_dir.as_path();
    let known = Kind::read(data_dir)?;
    let kinds: &[Kind] = match (known, options.choice) {
        (Some(kind), choice) if choice.allows(kind) => &[kind],
        (Some(kind), _) => {
            return Err(unavailable(
                options.choice,
                data_dir,
                format!("it has a pool of kind `{}`", kind.name()),
            ));
        }
        (None, Choice::Copy) => &[Kind::Copy],
        (None, Choice::Btrfs) => &[if is_btrfs(data_dir) {
            Kind::Btrfs
        } else {
            Kind::Image
        }],
        (None, Choice::Auto) => &[
            if is_btrfs(data_dir) {
                Kind::Btrfs
            } else {
                Kind::Image
            },
            Kind::Copy,
        ],
    };
    let mut refused = None;
    for &kind in kinds {
        match kind.open(data_dir, options) {
            Ok(pool) => {
                if known.is_none() {
                    kind.write(data_dir)?;
                }
                return Ok(pool);
            }
            Err(error @ Error::Unavailable { .. }) if known.is_none() => {
                tracing::info!(%error, "this kind of workspace pool cannot be had");
                refused.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(refused.unwrap_or_else(|| unavailable(options.choice, data_dir, "no kind fits")))
}

fn unavailable(choice: Choice, data_dir: &Path, why: impl Into<String>) -> Error {
    let kind = match choice {
        Choice::Auto => "workspace",
        Choice::Btrfs => "btrfs",
        Choice::Copy => "copy",
    };
    Error::Unavailable {
        kind,
        path: data_dir.to_owned(),
        why: why.into(),
    }
}

impl Choice {
    fn allows(self, kind: Kind) -> bool {
        match self {
            Self::Auto => true,
            Self::Btrfs => kind != Kind::Copy,
            Self::Copy => kind == Kind::Copy,
        }
    }
}

/// What a data directory's pool is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Btrfs,
    Image,
    Copy,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Image => "btrfs-image",
            Self::Copy => "copy",
        }
    }

    /// Reads what was chosen when the pool was made.
    pub(crate) fn read(data_dir: &Path) -> Result<Option<Self>> {
        let path = data_dir.join(KIND);
        match fs::read_to_string(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            text => {
                let text = text.map_err(Error::io("read", &path))?;
                let known = [Self::Btrfs, Self::Image, Self::Copy]
                    .into_iter()
                    .find(|kind| kind.name() == text.trim());
                // One that a later version wrote.
                let why = || {
                    format!(
                        "{} names a kind that this version does not know",
                        path.display()
                    )
                };
                known
                    .map(Some)
                    .ok_or_else(|| unavailable(Choice::Auto, data_dir, why()))
            }
        }
    }

    fn write(self, data_dir: &Path) -> Result<()> {
        let path = data_dir.join(KIND);
        let half = data_dir.join("pool.kind.new");
        let io = |e| Error::io("write", &path)(e);
        let mut file = File::create(&half).map_err(io)?;
        writeln!(file, "{}", self.name()).map_err(io)?;
        file.sync_all().map_err(io)?;
        fs::rename(&half, &path).map_err(io)?;
        File::open(data_dir)
            .and_then(|dir| dir.sync_all())
            .map_err(io)
    }

    fn open(self, data_dir: &Path, options: &Options) -> Result<Box<dyn Pool>> {
        let root = data_dir.join(POOL);
        if self != Self::Copy && !rustix::process::geteuid().is_root() {
            return Err(unavailable(Choice::Btrfs, data_dir, "only root may use it"));
        }
        let pool: Box<dyn Pool> = match self {
            Self::Btrfs => Box::new(Btrfs::open(root.clone(), None)?),
            Self::Image => {
                let image = Attached::open(data_dir, &root, options.image_bytes)?;
                Box::new(Btrfs::open(root.clone(), Some(image))?)
            }
            Self::Copy => Box::new(Copy::open(root.clone())?),
        };
        hide(&root.join("cuts"))?;
        hide(&root.join("tmp"))?;
        Ok(pool)
    }
}

/// Cuts hold whatever a sandbox's root made, set-user-id programs too: nobody on the host gets to them.
fn hide(dir: &PathBuf) -> Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(Error::io("close", dir))
}
