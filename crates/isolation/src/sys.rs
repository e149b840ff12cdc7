//! The system calls that have no safe wrapper elsewhere. Everything unsafe of this crate is here.

pub(crate) mod calls;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::thread::UnshareFlags;

/// What a mount gets; the kernel's `struct mount_attr`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct MountAttr {
    pub(crate) set: u64,
    pub(crate) clear: u64,
    pub(crate) propagation: u64,
    pub(crate) userns_fd: u64,
}

pub(crate) const MOUNT_ATTR_RDONLY: u64 = 0x1;
pub(crate) const MOUNT_ATTR_NOSUID: u64 = 0x2;
pub(crate) const MOUNT_ATTR_NODEV: u64 = 0x4;
pub(crate) const MOUNT_ATTR_NOEXEC: u64 = 0x8;
pub(crate) const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;

/// Whether a call is about one mount or also about those below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    One,
    Below,
}

/// Changes the attributes of the mount that `mount` refers to.
pub(crate) fn mount_setattr(
    mount: BorrowedFd<'_>,
    reach: Reach,
    attr: MountAttr,
) -> io::Result<()> {
    let below = match reach {
        Reach::One => 0,
        Reach::Below => libc::AT_RECURSIVE,
    };
    // SAFETY: the path is a static C string, the attribute struct lives over the call and its true size is given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | below,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Forks a process that has one thread. Returns the child's pid in the parent and `None` in the child.
///
/// # Errors
/// The system's. More than one thread is refused.
pub(crate) fn fork() -> io::Result<Option<i32>> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    // SAFETY: with a single thread no lock can be held by a thread that the child lacks, so the child may go on running
    // ordinary code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Leaves the namespaces that `flags` names for new ones.
pub(crate) fn unshare(flags: UnshareFlags) -> Result<(), rustix::io::Errno> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: what could break other code, unsharing the table of descriptors, is not asked for.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Ends the process without running anything of it.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: takes no pointer and never returns.
    unsafe { libc::_exit(status) }
}

/// What happens to descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fds {
    Close,
    CloseOnExec,
}

/// Closes or marks every descriptor from 3 on.
pub(crate) fn from_3_on(fds: Fds) -> io::Result<()> {
    let flags = match fds {
        Fds::Close => 0,
        Fds::CloseOnExec => libc::CLOSE_RANGE_CLOEXEC,
    };
    // SAFETY: called first thing in the launcher, whose contract is that nothing there owns a descriptor above 2 yet.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flags) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets the interface `lo` of this network namespace up.
pub(crate) fn loopback_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `ifreq` is plain data for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name: &CStr = c"lo";
    for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
        *to = (*from).cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP).unwrap_or(1);
    // SAFETY: SIOCSIFFLAGS reads an `ifreq`, which lives over the call.
    let done = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Has a socket for datagrams tell with each of them where it was sent to (`IP_PKTINFO`, `IPV6_PKTINFO`).
pub(crate) fn tell_destinations(socket: BorrowedFd<'_>, is_v6: bool) -> io::Result<()> {
    // One of both families tells of IPv4 in either form.
    let options = [
        (libc::IPPROTO_IP, libc::IP_PKTINFO),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    ];
    let on: libc::c_int = 1;
    for (level, option) in options.into_iter().take(1 + usize::from(is_v6)) {
        // SAFETY: the kernel reads one int, which lives over the call and whose size is given.
        let done = unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), 4)
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
