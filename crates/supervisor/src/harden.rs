//! What the supervisor gives up at its start, so that nothing it starts can have it.

use std::io;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// What an operation of root may hold: enough to own a file system and to serve a port, nothing over the machine.
pub(crate) const OP_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SETFCAP);

/// Makes children inherit no more than they may have. The supervisor itself keeps what it holds: it executes nothing.
pub(crate) fn children_get_little() -> io::Result<()> {
    // Children run on our memory until they execute, with the operation's rights already. Nobody with those may look in.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::clear_ambient_capability_set()?;
    let have = rustix::thread::capabilities(None)?;
    let sets = CapabilitySets {
        inheritable: CapabilitySet::empty(),
        ..have
    };
    rustix::thread::set_capabilities(None, sets)?;
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if OP_CAPABILITIES.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Beyond the last one this kernel knows.
            Err(Errno::INVAL) => break,
            // Without the right to shrink the set we hold nothing that a child could gain.
            Err(Errno::PERM) => break,
            other => other?,
        }
    }
    Ok(())
}

/// Fills descriptors 0 to 2, so that none of ours ever gets such a number.
pub(crate) fn own_stdio() -> io::Result<()> {
    loop {
        let fd = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR, Mode::empty())?;
        let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
        if number > 2 {
            return Ok(());
        }
        std::mem::forget(fd);
    }
}

/// Raises our own limit of open files as far as it goes; returns the one that operations are to get.
pub(crate) fn many_files() -> Rlimit {
    let before = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    // Running with fewer only means fewer operations at one time.
    let _raised: Result<(), Errno> = rustix::process::setrlimit(Resource::Nofile, most);
    before
}
