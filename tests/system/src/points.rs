//! Stops a process of the system under test at a named place (`failpoint::hit`), for the test to kill it or another one.
//!
//! Every process of a world tells of every place; all but the one that a test waits for are let go on at once.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Res;

/// All places that tests know of.
pub const ALL: &[&str] = &[
    "before_intent",
    "after_intent",
    "before_settled",
    "before_announce",
    "mid_cut",
    "mid_model_stream",
    "sup_starting",
    "sup_exited",
    "sup_settled",
    "before_rewound",
    "after_rewound",
    "before_flushed_start",
    "before_push_commit",
    "after_push_commit",
    "after_push_ref",
    "mid_pull",
    "before_pulled",
    "after_forked",
    "mid_fork",
    "frozen",
    "before_removed",
    "after_removed",
    "before_serving",
    "after_cuts_dropped",
    "mid_compose",
    "egress_accepted",
    "egress_parked",
    "egress_approved",
    "egress_begun",
    "egress_settling",
    "before_effect_begun",
    "after_effect_begun",
    "before_effect_settled",
    "after_effect_settled",
    "after_effect_replayed",
];

/// A process that stands at a place. Dropped, it is let go on.
#[derive(Debug)]
pub struct Hit {
    /// Where it stands.
    pub point: String,
    stream: UnixStream,
}

impl Drop for Hit {
    fn drop(&mut self) {
        // It may have been killed meanwhile: that was the point.
        let _gone = self.stream.write_all(b"g");
    }
}

struct Armed {
    points: Vec<String>,
    skip: u64,
    tell: Sender<Hit>,
}

/// The test's end of all failpoints of a world.
pub struct Points {
    socket: PathBuf,
    armed: Arc<Mutex<Option<Armed>>>,
}

fn lock(armed: &Mutex<Option<Armed>>) -> MutexGuard<'_, Option<Armed>> {
    armed.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Points {
    /// Listens in a directory.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn new(dir: &Path) -> Res<Self> {
        let socket = dir.join("points.sock");
        let listener = UnixListener::bind(&socket)?;
        let armed = Arc::<Mutex<Option<Armed>>>::default();
        let ours = Arc::downgrade(&armed);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), Some(armed)) = (stream, ours.upgrade()) else {
                    return;
                };
                std::thread::spawn(move || serve(&stream, &armed));
            }
        });
        Ok(Self { socket, armed })
    }

    /// The environment that makes a process of the system tell of its places.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [
            (
                "DURABLE_FAILPOINT_SOCKET",
                self.socket.to_string_lossy().into_owned(),
            ),
            ("DURABLE_FAILPOINT", ALL.join(",")),
        ]
    }

    /// Stops the first process that comes to one of `points` from now on, after `skip` others went by.
    #[must_use]
    pub fn arm(&self, points: &[&str], skip: u64) -> Receiver<Hit> {
        let (tell, hits) = channel();
        *lock(&self.armed) = Some(Armed {
            points: points.iter().map(|p| (*p).to_owned()).collect(),
            skip,
            tell,
        });
        hits
    }

    /// Stops nobody any more.
    pub fn disarm(&self) {
        *lock(&self.armed) = None;
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        self.disarm();
        // Wakes the listener, which finds nobody left.
        self.armed = Arc::default();
        let _woken = UnixStream::connect(&self.socket);
    }
}

/// One process: a line for each place, one byte to go on.
fn serve(stream: &UnixStream, armed: &Mutex<Option<Armed>>) {
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(line)) = lines.next() {
        let point = line.split(' ').next().unwrap_or_default().to_owned();
        let Ok(copy) = stream.try_clone() else { return };
        let hit = Hit {
            point,
            stream: copy,
        };
        let mut slot = lock(armed);
        let wanted = slot
            .as_mut()
            .is_some_and(|armed| armed.points.contains(&hit.point));
        if !wanted {
            drop(slot);
            drop(hit);
            continue;
        }
        if let Some(armed) = slot.as_mut()
            && armed.skip > 0
        {
            armed.skip -= 1;
            continue;
        }
        if let Some(armed) = slot.take() {
            // Nobody waits any more: then it goes on, by the drop.
            let _told = armed.tell.send(hit);
        }
    }
}
