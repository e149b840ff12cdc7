//! The daemon's connection: fencing first, then orders. At any byte it may end, and another take its place.

use std::io;
use std::rc::Rc;

use bytes::BytesMut;
use protocol::Epoch;
use protocol::control::{FromSupervisor, ToSupervisor, decode};
use protocol::table::Record;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use crate::core::Core;
use crate::ops::{Order, State};
use crate::outbox::Outbox;
use crate::shims::Answer;
use crate::{doors, files, owner, run};

/// Accepts daemons for ever. `shutdown` gets the grace of an order to end.
pub(crate) async fn serve(
    core: Rc<Core>,
    listener: UnixListener,
    shutdown: mpsc::UnboundedSender<u64>,
) -> io::Result<()> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = Connection {
                    core: Rc::clone(&core),
                    outbox: Rc::default(),
                    shutdown: shutdown.clone(),
                };
                tokio::task::spawn_local(connection.begin(stream));
            }
            Err(error) if crate::is_passing(&error) => {
                tokio::time::sleep(crate::ACCEPT_AGAIN).await;
            }
            Err(error) => return Err(error),
        }
    }
}

struct Connection {
    core: Rc<Core>,
    outbox: Rc<Outbox>,
    shutdown: mpsc::UnboundedSender<u64>,
}

/// Whether a connection goes on after a message.
#[derive(PartialEq, Eq)]
enum After {
    GoOn,
    End,
}

impl Connection {
    /// Finds out what the connection is for. One that says nothing understood ends without an answer.
    async fn begin(self, mut stream: UnixStream) {
        let mut input = BytesMut::new();
        let first = loop {
            match decode::<ToSupervisor>(&mut input) {
                Ok(Some(first)) => break first,
                Ok(None) => {}
                Err(_damaged) => return,
            }
            if !matches!(stream.read_buf(&mut input).await, Ok(1..)) {
                return;
            }
        };
        let core = Rc::clone(&self.core);
        // The daemon sees by the connection's end that there is no answer.
        let _served: io::Result<()> = match first {
            ToSupervisor::Files { epoch, user } => files::serve(core, stream, epoch, user).await,
            ToSupervisor::Doors { epoch } => doors::hand_out(&core, stream, epoch),
            ToSupervisor::Listen { epoch, ports } => doors::listen_at(&core, stream, epoch, &ports),
            ToSupervisor::Owner {
                epoch,
                client,
                server,
            } => owner::answer(core, stream, epoch, client, server).await,
            first => {
                self.run(stream, first, input).await;
                Ok(())
            }
        };
    }

    async fn run(self, stream: UnixStream, first: ToSupervisor, input: BytesMut) {
        let (from, mut to) = stream.into_split();
        // Whatever ends it, the daemon connects again; nothing is lost with a connection.
        tokio::select! {
            _ended = self.listen(from, first, input) => {}
            _ended = self.speak(&mut to) => {}
            () = self.outbox.over.notified() => {}
        }
        let _said: io::Result<()> = self.say_rest(&mut to).await;
        self.core.link.lost(&self.outbox);
    }

    /// Writes what is still there, without waiting for a daemon that does not read.
    async fn say_rest(&self, to: &mut OwnedWriteHalf) -> io::Result<()> {
        let mut out = BytesMut::new();
        self.outbox.take(&mut out).map_err(io::Error::other)?;
        if !out.is_empty() {
            to.try_write(&out)?;
        }
        to.shutdown().await
    }

    async fn speak(&self, to: &mut OwnedWriteHalf) -> io::Result<()> {
        let mut out = BytesMut::new();
        loop {
            self.outbox.take(&mut out).map_err(io::Error::other)?;
            if out.is_empty() {
                self.outbox.wait().await;
                continue;
            }
            to.write_all(&out).await?;
            out.clear();
            self.outbox.was_written();
        }
    }

    async fn listen(
        &self,
        mut from: OwnedReadHalf,
        first: ToSupervisor,
        mut input: BytesMut,
    ) -> io::Result<()> {
        if self.take(first).await == After::End {
            return Ok(());
        }
        loop {
            while let Some(message) = decode(&mut input).map_err(io::Error::other)? {
                if self.take(message).await == After::End {
                    return Ok(());
                }
            }
            if from.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn take(&self, message: ToSupervisor) -> After {
        if let ToSupervisor::Fence { epoch } = message {
            return self.fence(epoch).await;
        }
        if !self.core.link.is_current(&self.outbox) {
            return self.refuse();
        }
        self.obey(message);
        After::GoOn
    }

    fn refuse(&self) -> After {
        let highest = self.core.epoch.get();
        self.outbox.say(FromSupervisor::Refused { highest });
        After::End
    }

    async fn fence(&self, epoch: Epoch) -> After {
        let core = &self.core;
        if epoch < core.epoch.get() {
            return self.refuse();
        }
        // From here on the old daemon is not obeyed, even while the new epoch is on its way to the disk.
        if !core.link.is_current(&self.outbox) {
            core.link.cut();
        }
        let is_first = core.epoch.get() == Epoch(0);
        core.epoch.set(epoch);
        let written = core
            .ledger
            .commit(vec![Record::Fence { epoch }], Vec::new());
        // The first fence of all shuts nobody out. It is on its way, and on disk before any operation's row.
        if !is_first {
            written.await;
        }
        if epoch < core.epoch.get() {
            return self.refuse();
        }
        let ops = core.ops.unannounced();
        self.outbox.say(FromSupervisor::Fenced {
            boot: core.boot,
            ops: ops.iter().map(|op| op.row()).collect(),
            witness: core.witness.get(),
        });
        core.link.replace(&self.outbox);
        for op in ops.iter().filter(|op| op.is_open()) {
            if let State::Running(_) = &*op.state.borrow() {
                core.link.output(&op.id, op.reach());
            }
            if let Some((offset, closed)) = op.input.as_ref().map(|input| input.accepted()) {
                core.link.say(FromSupervisor::StdinAccepted {
                    op: op.id.clone(),
                    offset,
                    closed,
                });
            }
        }
        core.shims.ask_all(&core.link);
        After::GoOn
    }

    fn obey(&self, message: ToSupervisor) {
        let core = &self.core;
        match message {
            // Taken before; the others are never on a connection like this.
            ToSupervisor::Fence { .. }
            | ToSupervisor::Files { .. }
            | ToSupervisor::Doors { .. }
            | ToSupervisor::Listen { .. }
            | ToSupervisor::Owner { .. } => {}
            ToSupervisor::Check { token, run } => {
                let problem = core.launcher.check(&run);
                self.outbox.say(FromSupervisor::Checked { token, problem });
            }
            ToSupervisor::Start {
                op,
                attempt,
                run,
                witness,
            } => run::start(core, op, attempt, run, witness),
            ToSupervisor::Stdin {
                op,
                offset,
                data,
                eof,
            } => {
                let input = core.ops.get(&op).and_then(|op| op.input.clone());
                let accepted = match input {
                    Some(input) => input.feed(offset, data, eof),
                    None => Some((offset, true)),
                };
                if let Some((offset, closed)) = accepted {
                    self.outbox
                        .say(FromSupervisor::StdinAccepted { op, offset, closed });
                }
            }
            ToSupervisor::Signal { op, signal } => self.order(&op, Order::Signal(signal)),
            ToSupervisor::Cancel { op, grace_ms } => {
                let why = "it was cancelled".to_owned();
                self.order(&op, Order::Cancel { grace_ms, why });
            }
            ToSupervisor::Resize { op, size } => self.order(&op, Order::Resize(size)),
            ToSupervisor::Announce { op, witness } => self.announce(op, witness),
            ToSupervisor::ShimAnswer { shim, answer } => {
                let answer = answer.map_or_else(Answer::Refused, Answer::Attach);
                core.shims.answer(shim, answer);
            }
            ToSupervisor::ShimSettled {
                shim,
                op,
                attempt,
                settlement,
            } => {
                let answer = Answer::Settled {
                    op,
                    attempt,
                    settlement,
                };
                core.shims.answer(shim, answer);
            }
            ToSupervisor::Shutdown { grace_ms } => {
                // The receiver lives as long as the supervisor.
                let _sent: Result<(), _> = self.shutdown.send(grace_ms);
            }
        }
    }

    fn order(&self, op: &protocol::OpId, order: Order) {
        if let Some(op) = self.core.ops.get(op) {
            op.order(order);
        }
    }

    fn announce(&self, id: protocol::OpId, witness: protocol::Head) {
        let core = &self.core;
        core.see(witness);
        let known = core.ops.get(&id);
        if known.as_ref().is_some_and(|op| op.is_open()) {
            // The journal cannot have the end of what has none: only its head is of use.
            core.ledger.lazily(Record::Witness { head: witness });
            return;
        }
        core.ledger.lazily(Record::Announced { op: id, witness });
        if let Some(op) = known {
            core.ops.announce(&op);
        }
    }
}
