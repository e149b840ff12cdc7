//! Choosing and opening the pool of a data directory.

use std::path::Path;

use crate::{Error, Pool, Result};

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
    /// The size of a new loop image; none: most of the free space. The image is sparse.
    pub image_bytes: Option<u64>,
}

/// Opens the pool of a data directory; makes it where there is none.
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
    let _ = options;
    Err(Error::Unavailable {
        kind: "any",
        path: data_dir.to_owned(),
        why: "not built yet".into(),
    })
}
