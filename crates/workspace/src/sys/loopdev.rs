//! Loop devices; layouts as in `linux/loop.h`.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::{ioctl, last};

const CTL_GET_FREE: libc::c_ulong = 0x4C82;
const CONFIGURE: libc::c_ulong = 0x4C0A;
const GET_STATUS64: libc::c_ulong = 0x4C05;
const SET_CAPACITY: libc::c_ulong = 0x4C07;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;

#[repr(C)]
#[derive(Clone, Copy)]
struct Info64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const BLANK: Info64 = Info64 {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info64,
    reserved: [u64; 8],
}

/// How a loop device reads and writes its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Io {
    Direct,
    Cached,
}

/// Returns the number of a loop device that is free at this moment; it may be taken by the time it is configured.
pub(crate) fn free_number(control: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument.
    match unsafe { libc::ioctl(control.as_raw_fd(), CTL_GET_FREE) } {
        -1 => Err(last()),
        number => u32::try_from(number).map_err(|_| Errno::IO),
    }
}

/// Attaches `image` to a free device, to be detached by the kernel when its last user is gone. Busy: somebody was faster.
pub(crate) fn attach(device: BorrowedFd<'_>, image: BorrowedFd<'_>, io: Io) -> Result<(), Errno> {
    let mut info = BLANK;
    info.flags = match io {
        Io::Direct => AUTOCLEAR | DIRECT_IO,
        Io::Cached => AUTOCLEAR,
    };
    let fd = u32::try_from(image.as_raw_fd()).map_err(|_| Errno::BADF)?;
    let mut config = Config {
        fd,
        block_size: 4096,
        info,
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads a struct loop_config of this layout.
    unsafe { ioctl(device, CONFIGURE, &mut config) }.map(drop)
}

/// Makes the device as large as its image is now.
pub(crate) fn follow_size(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    match unsafe { libc::ioctl(device.as_raw_fd(), SET_CAPACITY) } {
        -1 => Err(last()),
        _ => Ok(()),
    }
}

/// Returns the device and inode numbers of the file that is attached; none where nothing is.
pub(crate) fn attached(device: BorrowedFd<'_>) -> Result<Option<(u64, u64)>, Errno> {
    let mut info = BLANK;
    // SAFETY: LOOP_GET_STATUS64 fills a struct loop_info64 of this layout.
    match unsafe { ioctl(device, GET_STATUS64, &mut info) } {
        Ok(_) => Ok(Some((info.device, info.inode))),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_have_the_sizes_that_the_kernel_expects() {
        assert_eq!(size_of::<Info64>(), 232);
        assert_eq!(size_of::<Config>(), 304);
    }
}
