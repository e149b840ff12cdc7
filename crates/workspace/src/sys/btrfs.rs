//! The btrfs ioctls that the pool needs; layouts as in `linux/btrfs.h` and `linux/btrfs_tree.h`.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

use super::ioctl;

const NAME_MAX: usize = 255;

/// `_IOC` of `asm-generic/ioctl.h` for btrfs's type byte.
const fn ioc(direction: libc::c_ulong, number: libc::c_ulong, size: usize) -> libc::c_ulong {
    (direction << 30) | ((size as libc::c_ulong) << 16) | (0x94 << 8) | number
}
const WRITE: libc::c_ulong = 1;
const READ: libc::c_ulong = 2;

#[repr(C)]
struct VolArgs {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}
const SUBVOL_RDONLY: u64 = 1 << 1;
const SNAP_CREATE_V2: libc::c_ulong = ioc(WRITE, 23, size_of::<VolArgs>());
const SUBVOL_CREATE_V2: libc::c_ulong = ioc(WRITE, 24, size_of::<VolArgs>());
const SNAP_DESTROY_V2: libc::c_ulong = ioc(WRITE, 63, size_of::<VolArgs>());

/// Whether a snapshot may be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    Writable,
}

fn vol_args(name: impl AsRef<OsStr>) -> Result<VolArgs, Errno> {
    let name = name.as_ref().as_bytes();
    if name.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let mut args = VolArgs {
        fd: 0,
        transid: 0,
        flags: 0,
        unused: [0; 4],
        name: [0; 4040],
    };
    args.name[..name.len()].copy_from_slice(name);
    Ok(args)
}

/// Makes an empty subvolume `name` in `dir`.
pub(crate) fn create(dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let mut args = vol_args(name)?;
    // SAFETY: SUBVOL_CREATE_V2 takes a btrfs_ioctl_vol_args_v2; the name is NUL-terminated (checked against NAME_MAX).
    unsafe { ioctl(dir, SUBVOL_CREATE_V2, &mut args) }.map(drop)
}

/// Makes a snapshot `name` in `dir` of the subvolume `source`; on disk when it returns.
///
/// Before it looks at the name, the kernel writes out what is dirty in `source` (and in no other subvolume) and waits for it.
pub(crate) fn snapshot(
    source: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    name: &str,
    access: Access,
) -> Result<(), Errno> {
    let mut args = vol_args(name)?;
    args.fd = i64::from(source.as_raw_fd());
    args.flags = match access {
        Access::ReadOnly => SUBVOL_RDONLY,
        Access::Writable => 0,
    };
    // SAFETY: as for `create`; the fd in it is borrowed for the call.
    unsafe { ioctl(dir, SNAP_CREATE_V2, &mut args) }.map(drop)
}

/// Removes the subvolume `name` from `dir`; its space is given back later.
pub(crate) fn destroy(dir: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let mut args = vol_args(name)?;
    // SAFETY: as for `create`.
    unsafe { ioctl(dir, SNAP_DESTROY_V2, &mut args) }.map(drop)
}

#[repr(C)]
struct RawInfo {
    id: u64,
    name: [u8; 256],
    parent_id: u64,
    dir_id: u64,
    generation: u64,
    flags: u64,
    uuid: [u8; 16],
    parent_uuid: [u8; 16],
    received_uuid: [u8; 16],
    ctransid: u64,
    otransid: u64,
    stransid: u64,
    rtransid: u64,
    times: [u64; 8],
    reserved: [u64; 8],
}
const GET_SUBVOL_INFO: libc::c_ulong = ioc(READ, 60, size_of::<RawInfo>());

/// What the pool wants to know of a subvolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Info {
    /// The number of its tree.
    pub(crate) id: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) parent_uuid: [u8; 16],
    /// The transaction of the last change to any inode in it: live, not as of the last commit.
    pub(crate) changed: u64,
    /// The transaction that made it.
    pub(crate) made: u64,
}

/// Reads what the kernel knows of the subvolume that holds `fd`.
pub(crate) fn info(fd: BorrowedFd<'_>) -> Result<Info, Errno> {
    let mut raw = RawInfo {
        id: 0,
        name: [0; 256],
        parent_id: 0,
        dir_id: 0,
        generation: 0,
        flags: 0,
        uuid: [0; 16],
        parent_uuid: [0; 16],
        received_uuid: [0; 16],
        ctransid: 0,
        otransid: 0,
        stransid: 0,
        rtransid: 0,
        times: [0; 8],
        reserved: [0; 8],
    };
    // SAFETY: GET_SUBVOL_INFO fills a btrfs_ioctl_get_subvol_info_args, plain numbers and bytes of this layout.
    unsafe { ioctl(fd, GET_SUBVOL_INFO, &mut raw) }?;
    Ok(Info {
        id: raw.id,
        uuid: raw.uuid,
        parent_uuid: raw.parent_uuid,
        changed: raw.ctransid,
        made: raw.otransid,
    })
}

const START_SYNC: libc::c_ulong = ioc(READ, 24, 8);
const WAIT_SYNC: libc::c_ulong = ioc(WRITE, 22, 8);

/// Commits the running transaction and returns its number; everything done before the call is in it or an earlier one.
pub(crate) fn commit(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut transid = 0_u64;
    // SAFETY: START_SYNC writes one u64.
    unsafe { ioctl(fd, START_SYNC, &mut transid) }?;
    let committed = transid;
    // SAFETY: WAIT_SYNC reads one u64.
    unsafe { ioctl(fd, WAIT_SYNC, &mut transid) }?;
    Ok(committed)
}

#[repr(C)]
struct RootRefs {
    min_id: u64,
    refs: [[u64; 2]; 255],
    count: u8,
    align: [u8; 7],
}
const GET_SUBVOL_ROOTREF: libc::c_ulong = ioc(READ | WRITE, 61, size_of::<RootRefs>());

/// Lists the directories (inodes in the subvolume of `fd`) that hold other subvolumes: the first 255.
pub(crate) fn holders(fd: BorrowedFd<'_>) -> Result<Vec<u64>, Errno> {
    let mut raw = RootRefs {
        min_id: 0,
        refs: [[0; 2]; 255],
        count: 0,
        align: [0; 7],
    };
    // SAFETY: GET_SUBVOL_ROOTREF fills a btrfs_ioctl_get_subvol_rootref_args of this layout.
    match unsafe { ioctl(fd, GET_SUBVOL_ROOTREF, &mut raw) } {
        // There are more than fit.
        Ok(_) | Err(Errno::OVERFLOW) => {}
        Err(errno) => return Err(errno),
    }
    let count = usize::from(raw.count);
    Ok(raw.refs[..count]
        .iter()
        .map(|&[_id, directory]| directory)
        .collect())
}

#[repr(C)]
struct InoLookup {
    tree: u64,
    inode: u64,
    name: [u8; 4080],
}
const INO_LOOKUP: libc::c_ulong = ioc(READ | WRITE, 18, size_of::<InoLookup>());

/// Returns the path of a directory inode below the root of the subvolume of `fd`, with a slash at its end; empty for the root.
pub(crate) fn path_of(fd: BorrowedFd<'_>, inode: u64) -> Result<Vec<u8>, Errno> {
    let mut raw = InoLookup {
        tree: 0,
        inode,
        name: [0; 4080],
    };
    // SAFETY: INO_LOOKUP fills a btrfs_ioctl_ino_lookup_args of this layout.
    unsafe { ioctl(fd, INO_LOOKUP, &mut raw) }?;
    let end = raw
        .name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(raw.name.len());
    Ok(raw.name[..end].to_vec())
}

#[repr(C)]
struct Search {
    tree: u64,
    min_inode: u64,
    max_inode: u64,
    min_offset: u64,
    max_offset: u64,
    min_transid: u64,
    max_transid: u64,
    min_type: u32,
    max_type: u32,
    count: u32,
    unused: [u32; 9],
    items: [u8; 3992],
}
const TREE_SEARCH: libc::c_ulong = ioc(READ | WRITE, 17, size_of::<Search>());
const INODE_ITEM: u32 = 1;
const INODE_REF: u32 = 12;
const INODE_EXTREF: u32 = 13;
const EXTENT_DATA: u32 = 108;
const EXTENT_INLINE: u8 = 0;
const ITEM_HEADER: usize = 32;

/// Calls `see` with each inode of the subvolume that was changed in a transaction after `since`, as far as committed.
pub(crate) fn changed_inodes(
    fd: BorrowedFd<'_>,
    since: u64,
    mut see: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), Errno> {
    young_items(fd, since, |inode, kind, item| {
        // An inode item: its generation, then the transaction that changed it last.
        if kind == INODE_ITEM && item.len() >= 16 && number(item, 8) > since {
            return see(inode);
        }
        ControlFlow::Continue(())
    })
}

/// The inode of a subvolume's own root.
pub(crate) const ROOT_INODE: u64 = 256;

/// Returns every name of an inode, with the directory it stands in; none of an inode that is not there.
pub(crate) fn names_of(fd: BorrowedFd<'_>, inode: u64) -> Result<Vec<(u64, Vec<u8>)>, Errno> {
    let range = Range {
        tree: OWN_TREE,
        first: (inode, INODE_REF, 0),
        last: (inode, INODE_EXTREF, u64::MAX),
        since: 0,
    };
    let mut names = Vec::new();
    let mut is_whole = true;
    items(fd, range, |(_, kind, offset), mut item| {
        // All names in one directory stand in one item: an index (8 bytes), the name's length (2), the name. Of an inode
        // with too many names for that the rest are items of their own, with the directory (8) before these.
        while !item.is_empty() {
            let head = if kind == INODE_REF { 8 } else { 16 };
            let Some(len) = item.get(head..head + 2) else {
                is_whole = false;
                break;
            };
            let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
            let Some(name) = item.get(head + 2..head + 2 + len) else {
                is_whole = false;
                break;
            };
            let dir = if kind == INODE_REF {
                offset
            } else {
                number(item, 0)
            };
            names.push((dir, name.to_vec()));
            item = &item[head + 2 + len..];
        }
        ControlFlow::Continue(())
    })?;
    if is_whole { Ok(names) } else { Err(Errno::IO) }
}

/// Returns the bytes that file content written after `since` takes on disk in the subvolume.
pub(crate) fn young_bytes(fd: BorrowedFd<'_>, since: u64) -> Result<u64, Errno> {
    let mut bytes = 0;
    young_items(fd, since, |_, kind, item| {
        // A file extent: its transaction, its length in memory, four bytes of encoding, its type, then for one that is
        // not inline where it lies on disk, none being a hole, and its length there.
        if kind == EXTENT_DATA && item.len() >= 21 && number(item, 0) > since {
            bytes += match item[20] {
                EXTENT_INLINE => number(item, 8),
                _ if item.len() >= 37 && number(item, 21) != 0 => number(item, 29),
                _ => 0,
            };
        }
        ControlFlow::Continue(())
    })?;
    Ok(bytes)
}

/// Calls `see` with inode, kind and content of each item in tree blocks that are younger than `since`.
///
/// The kernel walks those blocks only, so this costs what changed, not what is there.
fn young_items(
    fd: BorrowedFd<'_>,
    since: u64,
    mut see: impl FnMut(u64, u32, &[u8]) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let range = Range {
        tree: OWN_TREE,
        first: (0, 0, 0),
        last: (u64::MAX, u32::from(u8::MAX), u64::MAX),
        since,
    };
    items(fd, range, |(inode, kind, _), item| see(inode, kind, item))
}

/// Where an item stands in its tree: object, kind, offset.
type Key = (u64, u32, u64);

/// The tree of the subvolume that the descriptor is in.
const OWN_TREE: u64 = 0;

/// Which items are looked at.
struct Range {
    tree: u64,
    first: Key,
    last: Key,
    /// Tree blocks of this transaction and older ones are left out.
    since: u64,
}

/// Calls `see` with place and content of each item of a range.
fn items(
    fd: BorrowedFd<'_>,
    range: Range,
    mut see: impl FnMut(Key, &[u8]) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let (mut inode, mut kind, mut offset) = range.first;
    loop {
        let mut raw = Search {
            tree: range.tree,
            min_inode: inode,
            max_inode: range.last.0,
            min_offset: offset,
            max_offset: range.last.2,
            min_transid: range.since + 1,
            max_transid: u64::MAX,
            min_type: kind,
            max_type: range.last.1,
            count: 4096,
            unused: [0; 9],
            items: [0; 3992],
        };
        // SAFETY: TREE_SEARCH fills a btrfs_ioctl_search_args of this layout.
        unsafe { ioctl(fd, TREE_SEARCH, &mut raw) }?;
        if raw.count == 0 {
            return Ok(());
        }
        let mut rest = &raw.items[..];
        for _ in 0..raw.count {
            let Some((header, after)) = rest.split_at_checked(ITEM_HEADER) else {
                return Err(Errno::IO);
            };
            inode = number(header, 8);
            offset = number(header, 16);
            let tail = number(header, 24);
            // The type and the length are two u32 side by side.
            let [type_bytes, len_bytes] = [tail & 0xffff_ffff, tail >> 32];
            kind = u32::try_from(type_bytes).map_err(|_| Errno::IO)?;
            let len = usize::try_from(len_bytes).map_err(|_| Errno::IO)?;
            let Some((item, after)) = after.split_at_checked(len) else {
                return Err(Errno::IO);
            };
            if see((inode, kind, offset), item).is_break() {
                return Ok(());
            }
            rest = after;
        }
        let Some(next) = offset.checked_add(1) else {
            return Err(Errno::IO);
        };
        if (inode, kind, next) > range.last {
            return Ok(());
        }
        offset = next;
    }
}

const RESIZE: libc::c_ulong = ioc(WRITE, 3, size_of::<RawResize>());

#[repr(C)]
struct RawResize {
    fd: i64,
    name: [u8; 4088],
}

/// How large the file system is to be on its one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// All of the device.
    Whole,
    /// So many bytes. What lies beyond is moved, which takes its time.
    Bytes(u64),
}

/// Gives the file system of `fd` another size; on disk when it returns.
pub(crate) fn resize(fd: BorrowedFd<'_>, size: Size) -> Result<(), Errno> {
    let text = match size {
        Size::Whole => "max".to_owned(),
        Size::Bytes(bytes) => bytes.to_string(),
    };
    let mut raw = RawResize {
        fd: 0,
        name: [0; 4088],
    };
    raw.name[..text.len()].copy_from_slice(text.as_bytes());
    // SAFETY: RESIZE reads a btrfs_ioctl_vol_args; the text is far shorter than its field and NUL-terminated.
    match unsafe { ioctl(fd, RESIZE, &mut raw) }? {
        0 => Ok(()),
        // Something else changes its devices at this moment.
        _ => Err(Errno::BUSY),
    }
}

const DEVICE_TREE: u64 = 4;
const DEVICE_EXTENT: u32 = 204;

/// Returns up to where the file system of `fd` uses its first device, but for what takes no more than `spare` bytes to move.
pub(crate) fn end_of_use(fd: BorrowedFd<'_>, spare: u64) -> Result<u64, Errno> {
    let mut extents = Vec::new();
    let range = Range {
        tree: DEVICE_TREE,
        first: (1, DEVICE_EXTENT, 0),
        last: (1, DEVICE_EXTENT, u64::MAX),
        since: 0,
    };
    // An extent of a device: two numbers, where its chunk is, its length.
    items(fd, range, |(_, kind, start), item| {
        if kind == DEVICE_EXTENT && item.len() >= 32 {
            extents.push((start.saturating_add(number(item, 24)), number(item, 16)));
        }
        ControlFlow::Continue(())
    })?;
    extents.sort_unstable();
    let mut moved = 0_u64;
    for (end, chunk) in extents.into_iter().rev() {
        moved = moved.saturating_add(used_of(fd, chunk)?);
        if moved > spare {
            return Ok(end);
        }
    }
    Ok(0)
}

const EXTENT_TREE: u64 = 2;
const BLOCK_GROUP_TREE: u64 = 11;
const BLOCK_GROUP: u32 = 192;

/// Returns the bytes of a chunk that hold something; all of them where that cannot be told.
fn used_of(fd: BorrowedFd<'_>, chunk: u64) -> Result<u64, Errno> {
    for tree in [BLOCK_GROUP_TREE, EXTENT_TREE] {
        let mut used = None;
        let range = Range {
            tree,
            first: (chunk, BLOCK_GROUP, 0),
            last: (chunk, BLOCK_GROUP, u64::MAX),
            since: 0,
        };
        let found = items(fd, range, |(at, kind, _), item| {
            if at == chunk && kind == BLOCK_GROUP && item.len() >= 8 {
                used = Some(number(item, 0));
            }
            ControlFlow::Continue(())
        });
        match (found, used) {
            (_, Some(used)) => return Ok(used),
            // This file system has no such tree.
            (Ok(()) | Err(Errno::NOENT), None) => {}
            (Err(errno), None) => return Err(errno),
        }
    }
    Ok(u64::MAX)
}

#[repr(C)]
struct QuotaCtl {
    command: u64,
    status: u64,
}
const QUOTA_CTL: libc::c_ulong = ioc(READ | WRITE, 40, size_of::<QuotaCtl>());
const QUOTA_ON: u64 = 1;

#[repr(C)]
struct QgroupLimit {
    qgroup: u64,
    flags: u64,
    most_referenced: u64,
    most_exclusive: u64,
    reserved: [u64; 2],
}
const QGROUP_LIMIT: libc::c_ulong = ioc(READ, 43, size_of::<QgroupLimit>());
const LIMIT_REFERENCED: u64 = 1;

#[repr(C)]
struct Rescan {
    flags: u64,
    progress: u64,
    reserved: [u64; 6],
}
const QUOTA_RESCAN: libc::c_ulong = ioc(WRITE, 44, size_of::<Rescan>());
const QUOTA_RESCAN_WAIT: libc::c_ulong = ioc(0, 46, 0);

const QUOTA_TREE: u64 = 8;
const QGROUP_STATUS: u32 = 240;
const QGROUP_INFO: u32 = 242;

/// What a file system counts for each of its subvolumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quota {
    /// Nothing.
    Off,
    /// What each refers to, and the counts are right, or will be when the count under way is done.
    Counting,
    /// The same, but something was not counted: it must count anew.
    Doubtful,
    /// What each made first, whoever has it now.
    Simple,
}

/// Returns what the file system of `fd` counts.
pub(crate) fn quota(fd: BorrowedFd<'_>) -> Result<Quota, Errno> {
    const ON: u64 = 1;
    const RESCAN: u64 = 2;
    const INCONSISTENT: u64 = 4;
    const SIMPLE: u64 = 8;
    let mut flags = 0;
    // Two numbers, the version and the transaction, then the flags.
    let found = quota_item(fd, QGROUP_STATUS, 0, |item| {
        if item.len() >= 24 {
            flags = number(item, 16);
        }
    });
    match found {
        // There is no such tree.
        Err(Errno::NOENT) => return Ok(Quota::Off),
        found => found?,
    }
    Ok(if flags & ON == 0 {
        Quota::Off
    } else if flags & SIMPLE != 0 {
        Quota::Simple
    } else if flags & INCONSISTENT != 0 && flags & RESCAN == 0 {
        Quota::Doubtful
    } else {
        Quota::Counting
    })
}

/// Returns the bytes that a subvolume refers to, as of the last commit; none where they are not counted.
pub(crate) fn referenced(fd: BorrowedFd<'_>, subvolume: u64) -> Result<Option<u64>, Errno> {
    let mut bytes = None;
    // The transaction, then the bytes.
    let found = quota_item(fd, QGROUP_INFO, subvolume, |item| {
        if item.len() >= 16 {
            bytes = Some(number(item, 8));
        }
    });
    match found {
        Err(Errno::NOENT) => Ok(None),
        found => found.map(|()| bytes),
    }
}

fn quota_item(
    fd: BorrowedFd<'_>,
    wanted: u32,
    of: u64,
    mut see: impl FnMut(&[u8]),
) -> Result<(), Errno> {
    let range = Range {
        tree: QUOTA_TREE,
        first: (0, wanted, of),
        last: (0, wanted, of),
        since: 0,
    };
    items(fd, range, |(_, kind, offset), item| {
        if kind == wanted && offset == of {
            see(item);
        }
        ControlFlow::Continue(())
    })
}

/// Makes the file system of `fd` count what each subvolume refers to, from now on; what is there is counted meanwhile.
pub(crate) fn count(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut raw = QuotaCtl {
        command: QUOTA_ON,
        status: 0,
    };
    // SAFETY: QUOTA_CTL takes a btrfs_ioctl_quota_ctl_args of this layout.
    unsafe { ioctl(fd, QUOTA_CTL, &mut raw) }.map(drop)
}

/// Begins to count everything anew. Busy: it does so already.
pub(crate) fn count_anew(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut raw = Rescan {
        flags: 0,
        progress: 0,
        reserved: [0; 6],
    };
    // SAFETY: QUOTA_RESCAN takes a btrfs_ioctl_quota_rescan_args of this layout.
    unsafe { ioctl(fd, QUOTA_RESCAN, &mut raw) }.map(drop)
}

/// Returns when everything that is there is counted; at once where it is.
pub(crate) fn counted(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: QUOTA_RESCAN_WAIT takes no argument.
    unsafe { ioctl(fd, QUOTA_RESCAN_WAIT, &mut ()) }.map(drop)
}

/// Limits the bytes that the subvolume of `fd` may refer to.
pub(crate) fn limit(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), Errno> {
    let mut raw = QgroupLimit {
        // That of the subvolume itself.
        qgroup: 0,
        flags: LIMIT_REFERENCED,
        most_referenced: bytes,
        most_exclusive: 0,
        reserved: [0; 2],
    };
    // SAFETY: QGROUP_LIMIT takes a btrfs_ioctl_qgroup_limit_args of this layout.
    unsafe { ioctl(fd, QGROUP_LIMIT, &mut raw) }.map(drop)
}

/// Reads a number at `at`; the callers checked the length.
fn number(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_have_the_sizes_that_the_kernel_expects() {
        assert_eq!(size_of::<VolArgs>(), 4096);
        assert_eq!(size_of::<RawInfo>(), 504);
        assert_eq!(size_of::<RootRefs>(), 4096);
        assert_eq!(size_of::<InoLookup>(), 4096);
        assert_eq!(size_of::<Search>(), 4096);
        assert_eq!(size_of::<RawResize>(), 4096);
        assert_eq!(size_of::<QuotaCtl>(), 16);
        assert_eq!(size_of::<QgroupLimit>(), 48);
        assert_eq!(size_of::<Rescan>(), 64);
    }
}
