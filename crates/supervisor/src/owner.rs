//! Whose a connection is: from the two addresses of it to the operation whose process holds the client's end.
//!
//! A process is of the operation that it descends from, or whose session it is in; that it cannot change. Who left the session
//! and lost its parents is believed what its environment says, which it could have changed.

mod inode;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use protocol::control::FromSupervisor;
use protocol::{Epoch, OpId};
use rustix::fs::{Dir, Mode, OFlags};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot};

use crate::core::Core;
use crate::launch::OP_VARIABLE;
use crate::tree::Proc;
use crate::{request, threads};

/// The most searches at one time; each takes a thread.
const MAX_SEARCHES: usize = 4;
/// The most descriptors that one search looks at, of all processes together: some tens of milliseconds.
const MAX_LOOKS: usize = 1 << 16;

/// Finds them.
pub(crate) struct Owners {
    sight: Arc<Sight>,
    places: Semaphore,
}

/// What a search looks at.
struct Sight {
    proc: Arc<Proc>,
    /// Of netlink's `sock_diag`; one question at a time.
    diag: Option<Mutex<OwnedFd>>,
}

/// One search, on a thread of its own.
struct Search {
    sight: Arc<Sight>,
    client: SocketAddr,
    server: SocketAddr,
    /// The main process of each operation that runs.
    running: Vec<(i32, OpId)>,
    tell: oneshot::Sender<Option<OpId>>,
}

impl Owners {
    pub(crate) fn new(proc: Arc<Proc>, diag: Option<OwnedFd>) -> Self {
        let diag = diag.map(Mutex::new);
        Self {
            sight: Arc::new(Sight { proc, diag }),
            places: Semaphore::new(MAX_SEARCHES),
        }
    }

    async fn find(&self, core: &Core, client: SocketAddr, server: SocketAddr) -> Option<OpId> {
        let _place = self.places.acquire().await.ok()?;
        let (tell, told) = oneshot::channel();
        let search = Search {
            sight: Arc::clone(&self.sight),
            client,
            server,
            running: core.ops.running(),
            tell,
        };
        match threads::start("owner", Search::run) {
            Ok(thread) => thread.give(search),
            // Short of threads: then everybody waits for this. An operation must not hide by taking all there are.
            Err(_) => search.run(),
        }
        told.await.ok().flatten()
    }
}

impl Search {
    fn run(self) {
        let found = self.find();
        // The daemon may have gone.
        let _told: Result<(), _> = self.tell.send(found);
    }

    fn find(&self) -> Option<OpId> {
        let Sight { proc, diag } = &*self.sight;
        let inode = inode::of_socket(diag.as_ref(), proc, self.client, self.server)?;
        let pid = holder(proc, inode)?;
        let chain = proc.ancestry(pid);
        let by_ancestry = chain.iter().find_map(|(pid, session)| {
            let is = |number: &i32| number == pid || number == session;
            self.running.iter().find(|(root, _)| is(root))
        });
        match by_ancestry {
            Some((_, op)) => Some(op.clone()),
            None => chain.iter().find_map(|(pid, _)| said(proc, *pid)),
        }
    }
}

/// Returns the operation that a process was told to be of when it started.
fn said(proc: &Proc, pid: i32) -> Option<OpId> {
    let environ = proc.environ(pid)?;
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = std::str::from_utf8(entry).ok()?.strip_prefix(OP_VARIABLE)?;
        value.strip_prefix('=')?.parse().ok()
    })
}

/// Finds a process that has the socket with this number open.
fn holder(proc: &Proc, inode: u64) -> Option<i32> {
    let wanted = format!("socket:[{inode}]");
    let (mut looks, mut text) = (0, Vec::new());
    // Who connects is young as a rule, and PID 1 has most of the descriptors.
    let mut pids: Vec<i32> = proc.pids().collect();
    pids.sort_unstable();
    for pid in pids.into_iter().rev() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = format!("{pid}/fd");
        // It ends at this moment, or nobody may look.
        let Ok(fds) = rustix::fs::openat(proc.dir(), path, flags, Mode::empty()) else {
            continue;
        };
        let Ok(entries) = Dir::read_from(&fds) else {
            continue;
        };
        for entry in entries.flatten() {
            looks += 1;
            if looks > MAX_LOOKS {
                return None;
            }
            let Ok(link) = rustix::fs::readlinkat(&fds, entry.file_name(), text) else {
                text = Vec::new();
                continue;
            };
            if link.as_bytes() == wanted.as_bytes() {
                return Some(pid);
            }
            text = link.into_bytes();
        }
    }
    None
}

/// Answers `ToSupervisor::Owner`.
pub(crate) async fn answer(
    core: Rc<Core>,
    stream: UnixStream,
    epoch: Epoch,
    client: SocketAddr,
    server: SocketAddr,
) -> io::Result<()> {
    let Some(stream) = request::admit(&core, stream, epoch)? else {
        return Ok(());
    };
    let op = core.owners.find(&core, client, server).await;
    request::say(&stream, &FromSupervisor::Owner { op })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_process_is_found_by_its_end_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let inode = rustix::fs::fstat(&client).unwrap().st_ino;
        let proc = Proc::open().unwrap();
        let me = rustix::process::getpid().as_raw_pid();
        assert_eq!(holder(&proc, inode), Some(me));
        drop(client);
        assert_eq!(holder(&proc, inode), None);
    }
}
