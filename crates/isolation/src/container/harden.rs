//! What PID 1 gives up before it serves anybody, and with it everything that it will ever start.

use protocol::caps;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::seccomp::Filters;
use crate::Error;

/// Gives up privilege for good.
pub(super) fn harden(filters: &Filters) -> Result<(), Error> {
    let failed = |what: &'static str| move |e: Errno| Error::step(what, e);
    // One byte is the value at which the kernel also refuses to pipe a core to a program of the host.
    let one = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    rustix::process::setrlimit(Resource::Core, one).map_err(failed("forbid core dumps"))?;
    rustix::thread::set_no_new_privs(true).map_err(failed("set no_new_privs"))?;
    bound(caps::OP_CAPS).map_err(failed("drop the bounding set"))?;
    let kept = CapabilitySet::from_bits_retain(caps::SUPERVISOR_CAPS);
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).map_err(failed("drop capabilities"))?;
    rustix::thread::clear_ambient_capability_set().map_err(failed("clear ambient capabilities"))?;
    // Operations of the same user must not trace PID 1, nor open its descriptors, memory or program.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(failed("become undumpable"))?;
    filters
        .apply()
        .map_err(|e| Error::step("install the system call filter", e))
}

fn bound(kept: u64) -> Result<(), Errno> {
    for bit in 0..u64::BITS {
        if kept & (1 << bit) != 0 {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(
            1 << bit,
        )) {
            Ok(()) => {}
            // Past the kernel's last capability.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
