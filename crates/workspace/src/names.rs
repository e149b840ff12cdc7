//! How a pool is laid out on disk, which both engines share.
//!
//! ```text
//! heads/WORKSPACE/{up,work}      the writable heads
//! cuts/WORKSPACE/CUT/up          the cuts, whole or not there
//! tmp/…                          what is being made or removed; litter after a crash
//! ```
//! Names below `heads` and `cuts` are ids, which cannot hold a slash or start with a dot.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use protocol::{CutId, WorkspaceId};
use rustix::io::Errno;

use crate::{Error, Layout, Result};

/// The directories of one pool.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) root: PathBuf,
}

impl Names {
    pub(crate) fn heads(&self) -> PathBuf {
        self.root.join("heads")
    }

    pub(crate) fn cuts(&self) -> PathBuf {
        self.root.join("cuts")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    pub(crate) fn head(&self, workspace: &WorkspaceId) -> PathBuf {
        self.heads().join(workspace.as_str())
    }

    pub(crate) fn cuts_of(&self, workspace: &WorkspaceId) -> PathBuf {
        self.cuts().join(workspace.as_str())
    }

    pub(crate) fn cut(&self, workspace: &WorkspaceId, cut: &CutId) -> PathBuf {
        self.cuts_of(workspace).join(cut.as_str())
    }

    pub(crate) fn layout(&self, workspace: &WorkspaceId) -> Result<Layout> {
        let head = self.head(workspace);
        if !head.join("up").is_dir() {
            return Err(Error::NoHead {
                workspace: workspace.clone(),
            });
        }
        Ok(Layout {
            upper: head.join("up"),
            work: head.join("work"),
        })
    }

    /// Makes the pool's own directories.
    pub(crate) fn prepare(&self) -> Result<()> {
        for dir in [self.heads(), self.cuts(), self.tmp()] {
            fs::create_dir_all(&dir).map_err(Error::io("make the directory", &dir))?;
        }
        Ok(())
    }
}

/// Makes the two directories of an empty head in `head`, with the rights of a root directory whatever the umask says.
pub(crate) fn make_head(head: &Path) -> Result<()> {
    for name in ["up", "work"] {
        let made = head.join(name);
        fs::create_dir(&made).map_err(Error::io("make the directory", &made))?;
        fs::set_permissions(&made, fs::Permissions::from_mode(0o755))
            .map_err(Error::io("open", &made))?;
    }
    Ok(())
}

/// Removes what is in a directory of ours that no other process has.
///
/// # Errors
/// What cannot be listed or removed.
pub fn empty(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Returns a workspace name that was never used: 64 random bits.
///
/// # Errors
/// The system gives no random bytes.
pub fn new_workspace() -> Result<WorkspaceId> {
    let mut bytes = [0; 8];
    crate::sys::random(&mut bytes).map_err(|errno| Error::errno("read", "/dev/urandom", errno))?;
    let text = format!("w-{:016x}", u64::from_le_bytes(bytes));
    text.parse()
        .map_err(|_| Error::errno("name", text, Errno::INVAL))
}

/// Lists the ids that stand in a directory. A directory that is not there is empty; what is no id is not ours.
pub(crate) fn ids_in<T: std::str::FromStr>(dir: &Path) -> Result<Vec<T>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io("list", dir)(e)),
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::io("list", dir))?.file_name();
        ids.extend(name.to_str().and_then(|name| name.parse().ok()));
    }
    Ok(ids)
}
