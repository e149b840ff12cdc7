//! One shim's connection, from its request to its end or its loss.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use protocol::shim::{Exec, Reply, Request};
use protocol::{OpId, Role};
use tokio::io::AsyncReadExt;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};

use super::Answer;
use super::deliver::{Target, deliver, say};
use crate::core::Core;
use crate::ops::{Op, Order, State};

/// The most shims at one time; further ones wait until they are accepted.
const MAX_SHIMS: usize = 1024;
/// The most of them that send their request at one time: it is held in memory before it is known to be one.
const MAX_READING: usize = 16;
/// The longest request.
const MAX_REQUEST: usize = 2 << 20;
/// How long a shim may take to send it.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How long a harness must outlive its shim for the loss to be its will.
const HARNESS_TIME: Duration = Duration::from_millis(500);
/// What an operation gets between SIGTERM and SIGKILL when its harness ends it.
const CANCEL_GRACE_MS: u64 = 2000;

/// Serves shims for ever.
pub(crate) async fn serve(core: Rc<Core>, listener: UnixListener) -> io::Result<()> {
    let places = std::sync::Arc::new(Semaphore::new(MAX_SHIMS));
    let reading = Rc::new(Semaphore::new(MAX_READING));
    loop {
        let place = std::sync::Arc::clone(&places).acquire_owned().await;
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if crate::is_passing(&error) => {
                tokio::time::sleep(crate::ACCEPT_AGAIN).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (core, reading) = (Rc::clone(&core), Rc::clone(&reading));
        tokio::task::spawn_local(async move {
            // A shim that cannot be reached has its own ways to hear of the end.
            let _served: io::Result<()> = serve_one(&core, stream, &reading).await;
            drop(place);
        });
    }
}

/// Why a shim is not served any longer.
enum Gone {
    /// It said that its harness wants the end.
    Cancelled,
    /// It is lost.
    Lost,
}

async fn serve_one(core: &Rc<Core>, stream: UnixStream, reading: &Semaphore) -> io::Result<()> {
    let peer = stream.peer_cred()?.pid();
    let (mut from, mut to) = stream.into_split();
    let mut input = BytesMut::new();
    let request = {
        let _turn = reading.acquire().await;
        let read = read_frame::<Exec>(&mut from, &mut input);
        match tokio::time::timeout(REQUEST_TIME, read).await {
            Ok(Ok(Some(request))) => request,
            _ => return Ok(()),
        }
    };
    let owner = peer.and_then(|pid| harness_of(core, pid));
    let Some(mut window) = Window::open(core, request) else {
        let message = "too many commands wait for the sandbox's daemon; try again later".to_owned();
        return say(&Reply::Refused { message }, &mut to).await;
    };
    let gone = tokio::select! {
        served = window.serve(&mut to) => return served,
        gone = watch(&mut from, &mut input) => gone,
    };
    drop((from, to));
    let is_wanted = match gone {
        Gone::Cancelled => false,
        Gone::Lost => !outlives_by_will(core, owner).await,
    };
    window.abandon(is_wanted);
    Ok(())
}

/// One request and what has been found for it.
struct Window<'a> {
    core: &'a Rc<Core>,
    /// The request's number and the way of answers, while the daemon is asked.
    asked: Option<(u64, mpsc::UnboundedReceiver<Answer>)>,
    op: Option<Rc<Op>>,
}

impl<'a> Window<'a> {
    /// Finds the operation, or asks the daemon for it.
    fn open(core: &'a Rc<Core>, request: Exec) -> Option<Self> {
        let known = core.ops.get(&request.op).filter(|op| {
            op.runs(&request.argv, &request.cwd) && !matches!(*op.state.borrow(), State::Lost)
        });
        let asked = match known {
            Some(_) => None,
            None => Some(core.shims.ask(&core.link, request)?),
        };
        let mut window = Self {
            core,
            asked,
            op: None,
        };
        if let Some(op) = known {
            window.attach(op);
        }
        Some(window)
    }

    fn attach(&mut self, op: Rc<Op>) {
        op.followers.set(op.followers.get() + 1);
        self.op = Some(op);
    }

    async fn serve(&mut self, to: &mut OwnedWriteHalf) -> io::Result<()> {
        let target = match self.op.clone() {
            Some(op) => Target::Known(op),
            None => match self.answer().await {
                Ok(target) => target,
                Err(message) => return say(&Reply::Refused { message }, to).await,
            },
        };
        deliver(self.core, &target, to).await
    }

    /// Waits for the daemon's answer and for the operation that it speaks of.
    async fn answer(&mut self) -> Result<Target, String> {
        let Some((shim, mut answers)) = self.asked.take() else {
            return Err("the request was answered already".to_owned());
        };
        let core = self.core;
        let mut wanted = None;
        let target = loop {
            let added = core.ops.next_added();
            if let Some(op) = wanted.as_ref().and_then(|id| findable(core, id)) {
                break Ok(Target::Known(op));
            }
            // Losing the race below must leave everything as it was: the shim may go at any moment.
            self.asked = Some((shim, answers));
            let answer = tokio::select! {
                answer = self.next_answer() => answer,
                () = added => None,
            };
            match self.asked.take() {
                Some((_, back)) => answers = back,
                None => break Err("the request was answered already".to_owned()),
            }
            match answer {
                Some(Answer::Attach(id)) => wanted = Some(id),
                Some(Answer::Refused(message)) => break Err(message),
                Some(Answer::Settled {
                    op,
                    attempt,
                    settlement,
                }) => {
                    break Ok(Target::Stored {
                        op,
                        attempt,
                        settlement,
                    });
                }
                None => {}
            }
        };
        core.shims.forget(shim);
        if let Ok(Target::Known(op)) = &target {
            self.attach(Rc::clone(op));
        }
        target
    }

    async fn next_answer(&mut self) -> Option<Answer> {
        match &mut self.asked {
            Some((_, answers)) => answers.recv().await,
            None => std::future::pending().await,
        }
    }

    /// The shim has gone. An operation that nobody wants is ended, once it is there.
    fn abandon(mut self, is_wanted: bool) {
        if let Some(op) = &self.op {
            if !is_wanted && op.followers.get() <= 1 {
                cancel(op);
            }
            return;
        }
        // A daemon that was asked may be making an operation of it at this moment.
        let is_coming = self
            .asked
            .as_ref()
            .is_some_and(|(shim, _)| self.core.shims.was_asked(*shim));
        if is_wanted || !is_coming {
            return;
        }
        let (core, asked) = (Rc::clone(self.core), self.asked.take());
        tokio::task::spawn_local(async move {
            let mut unwanted = Window {
                core: &core,
                asked,
                op: None,
            };
            if let Ok(Target::Known(op)) = unwanted.answer().await
                && op.followers.get() <= 1
            {
                cancel(&op);
            }
        });
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        if let Some((shim, _)) = &self.asked {
            self.core.shims.forget(*shim);
        }
        if let Some(op) = &self.op {
            op.followers.set(op.followers.get() - 1);
        }
    }
}

fn findable(core: &Core, id: &OpId) -> Option<Rc<Op>> {
    core.ops
        .get(id)
        .filter(|op| !matches!(*op.state.borrow(), State::Lost))
}

fn cancel(op: &Op) {
    op.order(Order::Cancel {
        grace_ms: CANCEL_GRACE_MS,
        why: "the harness that ran it ended it".to_owned(),
    });
}

/// Waits until the shim says that it wants the end, or is lost.
async fn watch(from: &mut OwnedReadHalf, input: &mut BytesMut) -> Gone {
    match read_frame::<Request>(from, input).await {
        Ok(Some(Request::Cancel)) => Gone::Cancelled,
        Ok(None) | Err(_) => Gone::Lost,
    }
}

async fn read_frame<T: serde::de::DeserializeOwned>(
    from: &mut OwnedReadHalf,
    input: &mut BytesMut,
) -> io::Result<Option<T>> {
    loop {
        if let Some(frame) = protocol::control::decode(input).map_err(io::Error::other)? {
            return Ok(Some(frame));
        }
        if input.len() > MAX_REQUEST {
            return Err(io::Error::other("the request is too long"));
        }
        if from.read_buf(input).await? == 0 {
            return Ok(None);
        }
    }
}

/// Finds the harness that a process belongs to.
fn harness_of(core: &Core, pid: i32) -> Option<Rc<Op>> {
    let open = core.ops.open();
    let harnesses = || open.iter().filter(|op| op.role == Role::Harness);
    let is = |op: &Op, number: i32| {
        op.live()
            .is_some_and(|live| live.pid.as_raw_pid() == number)
    };
    let chain = core.proc.ancestry(pid);
    let by_ancestry = chain
        .iter()
        .find_map(|(pid, session)| harnesses().find(|op| is(op, *pid) || is(op, *session)));
    // A harness may start its shell by way of a process that has ended; a single harness must be the one then.
    let mut only = harnesses();
    let only = only.next().filter(|_| only.next().is_none());
    by_ancestry.or(only).cloned()
}

/// Whether the harness is there some time after its shim was lost.
async fn outlives_by_will(core: &Core, harness: Option<Rc<Op>>) -> bool {
    let Some(harness) = harness else {
        return false;
    };
    let Some(pid) = harness.live().map(|live| live.pid) else {
        return false;
    };
    let end = tokio::time::sleep(HARNESS_TIME);
    tokio::pin!(end);
    loop {
        let next = core.reaper.next();
        if !core.reaper.is_waiting_for(pid) {
            return false;
        }
        tokio::select! {
            () = next => {}
            () = &mut end => return true,
        }
    }
}
