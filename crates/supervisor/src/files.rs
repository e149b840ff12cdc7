//! Files helpers: processes with a user's rights that serve one connection of the daemon each (see `protocol::files`).
//!
//! They are no operations: nothing of them is spooled or kept in the table. The supervisor starts them, bounds how many
//! there are, and ends one that does not go when its daemon has.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use protocol::Epoch;
use protocol::control::FromSupervisor;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::net::UnixStream;

use crate::core::Core;
use crate::request::{self, say};
use crate::sys;

/// The most of them at one time.
const MAX_HELPERS: usize = 64;
/// How long a helper may take to see that nobody wants it any more.
const GRACE: Duration = Duration::from_secs(2);

/// How many there are.
#[derive(Default)]
pub(crate) struct Helpers(Cell<usize>);

/// The place of one; given back when dropped.
struct Place(Rc<Core>);

impl Place {
    fn take(core: &Rc<Core>) -> Option<Self> {
        let taken = &core.helpers.0;
        (taken.get() < MAX_HELPERS).then(|| {
            taken.set(taken.get() + 1);
            Self(Rc::clone(core))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let taken = &self.0.helpers.0;
        taken.set(taken.get().saturating_sub(1));
    }
}

/// Puts a helper at the other end of a connection and looks after it until it is gone.
pub(crate) async fn serve(
    core: Rc<Core>,
    stream: UnixStream,
    epoch: Epoch,
    user: Option<String>,
) -> io::Result<()> {
    let Some(stream) = request::admit(&core, stream, epoch)? else {
        return Ok(());
    };
    let refuse = |passing, problem: &str| {
        let problem = problem.to_owned();
        say(&stream, &FromSupervisor::FilesRefused { passing, problem })
    };
    if core.closing.get() {
        return refuse(true, "the sandbox is being stopped");
    }
    let Some(place) = Place::take(&core) else {
        return refuse(true, "too many requests for files are being served");
    };
    let pid = match core.launcher.start_helper(user.as_deref(), &stream) {
        Ok(pid) => pid,
        Err(problem) => return refuse(false, &problem),
    };
    let exit = core.reaper.expect(pid);
    say(&stream, &FromSupervisor::FilesReady)?;
    tokio::select! {
        // Taken already: nobody is there to be killed.
        _exit = exit => {}
        () = abandoned(stream.into()) => kill(&core, pid),
    }
    drop(place);
    Ok(())
}

/// Ends some time after the daemon has closed the connection.
async fn abandoned(stream: OwnedFd) {
    let Ok(stream) = sys::watch(stream, Interest::READABLE) else {
        return std::future::pending().await;
    };
    loop {
        // It also wakes for what the daemon says to the helper, which is little.
        let Ok(mut ready) = stream.readable().await else {
            return std::future::pending().await;
        };
        let mut polled = [PollFd::new(stream.get_ref(), PollFlags::RDHUP)];
        let now = Timespec::default();
        if rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|n| n > 0) {
            break;
        }
        ready.clear_ready();
    }
    tokio::time::sleep(GRACE).await;
}

/// Kills a helper that was stopped, or hangs: sandboxed processes of the same user can do that to it.
fn kill(core: &Core, pid: Pid) {
    if core.reaper.is_waiting_for(pid) {
        // It ends in this very moment.
        let _killed: io::Result<()> = sys::kill(pid.as_raw_nonzero().get(), libc::SIGKILL);
    }
}
