//! Owners, modes, times and extended attributes, as an entry states them.

use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown, flistxattr,
    fremovexattr, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::error::LayerError;
use super::tar::Entry;
use super::tree::{Place, os};
use crate::text::shown;

/// The most notes that are kept of one image.
const MAX_NOTES: usize = 64;

/// What was left out of an image, for people to read.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    lines: Vec<String>,
    more: u64,
}

impl Notes {
    pub(crate) fn add(&mut self, line: impl FnOnce() -> String) {
        if self.lines.len() < MAX_NOTES {
            self.lines.push(line());
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn into_lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.lines.push(format!("and {} more", self.more));
        }
        self.lines
    }
}

/// The metadata of one entry.
pub(crate) struct Meta {
    mode: Mode,
    owner: (Uid, Gid),
    times: Timestamps,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Meta {
    /// Takes an entry's, without the attributes that a layer may not set.
    pub(crate) fn of(entry: &mut Entry, notes: &mut Notes) -> Result<Self, LayerError> {
        let id = |id: u64| match u32::try_from(id) {
            // The last number means "leave it" to the system.
            Ok(id) if id != u32::MAX => Ok(id),
            _ => Err(LayerError::refused(
                &entry.path,
                "its owner is beyond all user ids",
            )),
        };
        let owner = (Uid::from_raw(id(entry.uid)?), Gid::from_raw(id(entry.gid)?));
        let time = Timespec {
            tv_sec: entry.mtime.0,
            tv_nsec: entry.mtime.1.into(),
        };
        let mut xattrs = std::mem::take(&mut entry.xattrs);
        xattrs.retain(|(name, _)| {
            let allowed = is_allowed(name);
            if !allowed {
                notes.add(|| format!("{}: attribute {} left out", shown(&entry.path), shown(name)));
            }
            allowed
        });
        Ok(Self {
            mode: Mode::from_raw_mode(entry.mode & 0o7777),
            owner,
            times: Timestamps {
                last_access: time,
                last_modification: time,
            },
            xattrs,
        })
    }

    /// Sets all of an open file or directory. A directory's mode and times may have to be set again at the end.
    pub(crate) fn set(
        &self,
        fd: &OwnedFd,
        path: &[u8],
        is_root: bool,
        notes: &mut Notes,
    ) -> Result<(), LayerError> {
        if is_root {
            let (uid, gid) = self.owner;
            fchown(fd, Some(uid), Some(gid)).map_err(LayerError::io("set the owner of", path))?;
        }
        // After the owner, which takes these bits and the capabilities away.
        fchmod(fd, self.mode).map_err(LayerError::io("set the mode of", path))?;
        for (name, value) in &self.xattrs {
            match fsetxattr(fd, os(name), value, XattrFlags::empty()) {
                Ok(()) => {}
                // Not here, not for us, or too long for this file system: the file is of use without it.
                Err(
                    errno @ (Errno::OPNOTSUPP
                    | Errno::PERM
                    | Errno::TOOBIG
                    | Errno::RANGE
                    | Errno::NOSPC),
                ) => {
                    notes.add(|| {
                        format!(
                            "{}: attribute {} left out: {errno}",
                            shown(path),
                            shown(name)
                        )
                    });
                }
                Err(errno) => return Err(LayerError::io("set an attribute of", path)(errno)),
            }
        }
        futimens(fd, &self.times).map_err(LayerError::io("set the time of", path))
    }

    /// Sets the owner and the time of what cannot be opened: a link, or a pipe.
    pub(crate) fn set_by_name(
        &self,
        place: &Place,
        name: &[u8],
        path: &[u8],
        is_root: bool,
        notes: &mut Notes,
    ) -> Result<(), LayerError> {
        if is_root {
            let (uid, gid) = self.owner;
            chownat(
                &*place.fd,
                os(name),
                Some(uid),
                Some(gid),
                AtFlags::SYMLINK_NOFOLLOW,
            )
            .map_err(LayerError::io("set the owner of", path))?;
        }
        if !self.xattrs.is_empty() {
            notes.add(|| {
                format!(
                    "{}: attributes left out: only files and directories have them",
                    shown(path)
                )
            });
        }
        utimensat(&*place.fd, os(name), &self.times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(LayerError::io("set the time of", path))
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// While layers are applied, whoever is not root must get into the directory.
    pub(crate) fn opened_for_owner(mut self) -> Self {
        self.mode |= Mode::RWXU;
        self
    }

    pub(crate) fn times(&self) -> Timestamps {
        self.times.clone()
    }
}

/// What an image may carry: file capabilities, and what any user may set. An overlay's marks would change what is seen.
fn is_allowed(name: &[u8]) -> bool {
    let plain = !name.contains(&0) && name.len() <= 255;
    plain
        && (name == b"security.capability"
            || (name.starts_with(b"user.")
                && name.len() > 5
                && !name.starts_with(b"user.overlay.")))
}

/// Takes the attributes away that a layer may have set.
pub(crate) fn clear_xattrs(fd: &OwnedFd) -> Result<(), Errno> {
    // The kernel gives no longer list.
    let mut buffer = vec![0_u8; 64 << 10];
    let length = match flistxattr(fd, &mut buffer) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    for name in buffer[..length]
        .split(|&b| b == 0)
        .filter(|name| is_allowed(name))
    {
        fremovexattr(fd, os(name))?;
    }
    Ok(())
}
