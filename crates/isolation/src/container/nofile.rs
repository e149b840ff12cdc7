//! The daemon's limit of open files, which sandboxes do not inherit: it holds the doors of all of them.

use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit};

/// As it was when the daemon started.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises this process's limit of open files as far as it goes. Sandboxes that it starts keep the one that it had.
pub fn many_files() {
    let before = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    // With fewer, fewer connections leave at one time.
    if rustix::process::setrlimit(Resource::Nofile, most).is_ok() {
        let _first = BEFORE.set(before);
    }
}

/// Gives a child the limit that this process had.
pub(super) fn as_before(child: u32) {
    let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(before)) = (pid, BEFORE.get()) {
        // Where it is refused, programs inside have more than they need.
        let _given = rustix::process::prlimit(Some(pid), Resource::Nofile, *before);
    }
}
