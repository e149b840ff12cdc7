//! The pax records of an entry, and what they and its header say of owner, mode, times and attributes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use tar::Header;

/// More is no list of records of ours.
const MOST: u64 = 16 << 20;
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// Keys and values.
#[derive(Debug, Default)]
pub(super) struct Records(Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        from.take(MOST).read_to_end(&mut bytes)?;
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "a record is not whole");
        let mut rest = bytes.as_slice();
        let mut records = Vec::new();
        while !rest.is_empty() {
            let space = rest.iter().position(|b| *b == b' ').ok_or_else(bad)?;
            let length = std::str::from_utf8(&rest[..space]).ok();
            let length: usize = length.and_then(|l| l.parse().ok()).ok_or_else(bad)?;
            let record = rest.get(space + 1..length).ok_or_else(bad)?;
            let record = record.strip_suffix(b"\n").ok_or_else(bad)?;
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(bad)?;
            records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
            rest = &rest[length..];
        }
        Ok(Self(records))
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let found = self.0.iter().rev().find(|(of, _)| of == key);
        found.map(|(_, value)| value.as_slice())
    }
}

/// All of an entry but its type and content.
#[derive(Debug)]
pub(super) struct Meta {
    pub(super) mode: u32,
    uid: u32,
    gid: u32,
    time: Timespec,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Meta {
    pub(super) fn of(header: &Header, records: &Records) -> io::Result<Self> {
        let id = |id: u64| u32::try_from(id).map_err(io::Error::other);
        let seconds = i64::try_from(header.mtime()?).unwrap_or(0);
        let time = match records.get(b"mtime") {
            Some(text) => std::str::from_utf8(text).ok().and_then(moment),
            None => Some((seconds, 0)),
        };
        let (tv_sec, tv_nsec) = time.unwrap_or((seconds, 0));
        let attributes = records.0.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(ATTRIBUTE)?;
            Some((name.to_vec(), value.clone()))
        });
        Ok(Self {
            mode: header.mode()? & 0o7777,
            uid: id(header.uid()?)?,
            gid: id(header.gid()?)?,
            time: Timespec { tv_sec, tv_nsec },
            attributes: attributes.collect(),
        })
    }

    /// Gives all that to something new. A link has no mode.
    pub(super) fn dress(&self, path: &Path, is_link: bool) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        for (name, value) in &self.attributes {
            let set = rustix::fs::lsetxattr(path, name.as_slice(), value, XattrFlags::empty());
            carried(name, set)?;
        }
        if !is_link {
            rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(self.mode), AtFlags::empty())?;
        }
        rustix::fs::utimensat(CWD, path, &self.times(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    /// Gives it to a directory that may have been there before.
    pub(super) fn dress_directory(&self, dir: &File) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::fs::fchown(dir, Some(uid), Some(gid))?;
        let mut names = vec![0; 64 << 10];
        let length = match rustix::fs::flistxattr(dir, names.as_mut_slice()) {
            Err(Errno::OPNOTSUPP) => 0,
            other => other?,
        };
        for name in names[..length].split(|byte| *byte == 0) {
            if name.starts_with(b"user.") && !self.attributes.iter().any(|(of, _)| of == name) {
                rustix::fs::fremovexattr(dir, name)?;
            }
        }
        for (name, value) in &self.attributes {
            let set = rustix::fs::fsetxattr(dir, name.as_slice(), value, XattrFlags::empty());
            carried(name, set)?;
        }
        rustix::fs::fchmod(dir, Mode::from_raw_mode(self.mode))?;
        rustix::fs::futimens(dir, &self.times())?;
        Ok(())
    }

    fn times(&self) -> Timestamps {
        Timestamps {
            last_access: self.time,
            last_modification: self.time,
        }
    }
}

/// Those of users must arrive. Others are the kernel's affair: it may not let a sandbox set them.
fn carried(name: &[u8], set: Result<(), Errno>) -> io::Result<()> {
    match set {
        Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL)
            if !name.starts_with(b"user.") =>
        {
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Reads seconds with a fraction, which counts away from zero.
fn moment(text: &str) -> Option<(i64, i64)> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let whole: i64 = whole.parse().ok()?;
    let nanos: i64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    if sign < 0 && nanos > 0 {
        return Some((-whole - 1, 1_000_000_000 - nanos));
    }
    Some((sign * whole, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_hold_lines_and_a_time_lie_before_1970() {
        let records = Records::read(&mut &b"12 a=b\n=c\nd\n9 path=x\n"[..]).unwrap();
        assert_eq!(records.get(b"a"), Some(&b"b\n=c\nd"[..]));
        assert_eq!(records.get(b"path"), Some(&b"x"[..]));
        assert!(Records::read(&mut &b"12 a=b\n"[..]).is_err());
        assert_eq!(moment("-1.500000000"), Some((-2, 500_000_000)));
        assert_eq!(moment("7.000000001"), Some((7, 1)));
        assert_eq!(moment("-3"), Some((-3, 0)));
    }
}
