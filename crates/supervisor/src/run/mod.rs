//! One operation from its row to its settlement.
//!
//! row durable → execute → (output, input, orders) → main process ended → output in the pipes taken → output durable →
//! settlement durable → told. Background children keep their pipes and go on; what they write comes after the settled
//! length. An operation that we end, by order or for its time, settles only when nothing of it is left that can be found.

mod end;
mod settle;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use protocol::control::FromSupervisor;
use protocol::table::{Record, RunSpec};
use protocol::{Head, OpId, Stream};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::core::Core;
use crate::input::{Input, Kind};
use crate::launch::Child;
use crate::ops::{Live, Op, Order, State};
use crate::outbox::Reach;
use crate::pump::{Listener, Pump};
use crate::reaper::Exit;
use crate::spool::Sink;
use crate::{pty, spool, sys};

use end::{Ending, Why};

/// How often the daemon hears of growing output.
const TELL_EVERY: Duration = Duration::from_millis(5);
/// Growth that is told at once.
const TELL_BYTES: u64 = 256 << 10;
/// Commands longer than this cannot be executed by any kernel, and must not bloat the table.
const MAX_COMMAND: usize = 3 << 20;

/// Starts an operation, or says again what is known of one with this id.
pub(crate) fn start(core: &Rc<Core>, id: OpId, attempt: u32, run: RunSpec, witness: Head) {
    core.see(witness);
    if let Some(known) = core.ops.get(&id)
        && (known.attempt >= attempt || known.is_open())
    {
        say_again(core, &known);
        return;
    }
    if core.closing.get() {
        return;
    }
    let input = run.stdin.then(|| {
        Input::new(match run.tty {
            Some(_) => Kind::Terminal,
            None => Kind::Pipe,
        })
    });
    let (op, orders) = Op::starting(id.clone(), attempt, core.boot, &run, input);
    core.ops.add(Rc::clone(&op));
    let is_too_long = length(&run) > MAX_COMMAND;
    let kept = if is_too_long { cut(&run) } else { run.clone() };
    let record = Record::Starting {
        op: id,
        attempt,
        boot: core.boot,
        run: kept,
        witness,
    };
    // Handed in now, not in the task: a fence that comes next must find it on its way.
    let durable = core.ledger.commit(vec![record], Vec::new());
    let core = Rc::clone(core);
    tokio::task::spawn_local(async move {
        durable.await;
        failpoint::hit("sup_starting");
        if is_too_long {
            let why = "its arguments and environment are too long".to_owned();
            settle::never_ran(&core, &op, why).await;
        } else {
            drive(&core, &op, &run, orders).await;
        }
    });
}

fn length(run: &RunSpec) -> usize {
    let env = run.env.iter().map(|(name, value)| name.len() + value.len());
    run.argv.iter().map(String::len).chain(env).sum()
}

fn cut(run: &RunSpec) -> RunSpec {
    RunSpec {
        argv: Vec::new(),
        env: std::collections::BTreeMap::new(),
        ..run.clone()
    }
}

/// Answers a start of an operation that is there already.
fn say_again(core: &Rc<Core>, op: &Rc<Op>) {
    let (id, attempt) = (op.id.clone(), op.attempt);
    match &*op.state.borrow() {
        // Its own task will say so.
        State::Starting => {}
        State::Running(_) => {
            core.link.say(FromSupervisor::Started { op: id, attempt });
            core.link.output(&op.id, op.reach());
        }
        State::Settled(settlement) => {
            core.link.last_output(&op.id, op.reach());
            core.link.say(FromSupervisor::Settled {
                op: id,
                attempt,
                settlement: settlement.clone(),
            });
        }
        State::Lost => {
            let (core, op) = (Rc::clone(core), Rc::clone(op));
            tokio::task::spawn_local(async move { settle::lost(&core, &op).await });
        }
    }
}

/// A running operation, as its task sees it.
struct Running<'a> {
    core: &'a Rc<Core>,
    op: &'a Rc<Op>,
    pid: rustix::process::Pid,
    begun: Instant,
    stdout: Rc<Pump>,
    stderr: Option<Rc<Pump>>,
    terminal: Option<std::os::fd::OwnedFd>,
    ending: Option<Ending>,
    told: Option<(Instant, Reach)>,
    tell_at: Option<Instant>,
}

async fn drive(
    core: &Rc<Core>,
    op: &Rc<Op>,
    run: &RunSpec,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let mut early = Vec::new();
    while let Ok(order) = orders.try_recv() {
        if let Order::Cancel { why, .. } = order {
            settle::never_ran(core, op, why).await;
            return;
        }
        early.push(order);
    }
    let child = match core.launcher.start(&op.id, run) {
        Ok(child) => child,
        Err(why) => {
            settle::never_ran(core, op, why).await;
            return;
        }
    };
    let begun = Instant::now();
    let exit = core.reaper.expect(child.pid);
    let progress = Arc::new(Notify::new());
    let (failed, mut failures) = mpsc::unbounded_channel();
    let listener = Listener {
        progress: Arc::clone(&progress),
        failed,
    };
    let deadline = run.timeout_ms.map(|ms| begun + Duration::from_millis(ms));
    let is_terminal = run.tty.is_some();
    let (mut running, input) = match Running::new(core, op, child, begun, is_terminal, &listener) {
        Ok(parts) => parts,
        Err((pid, error)) => {
            // It runs and we cannot hear it: it must not go on unheard.
            let _killed: std::io::Result<()> = sys::kill(-pid.as_raw_pid(), libc::SIGKILL);
            let _exit: Result<Exit, _> = exit.await;
            let why = format!("its output could not be taken: {error}");
            settle::never_ran(core, op, why).await;
            return;
        }
    };
    let stopped = running
        .until_exit(early, exit, deadline, &progress, &mut orders, &mut failures)
        .await;
    failpoint::hit("sup_exited");
    running.finish_ending(&mut failures).await;
    let error = running.drain(&mut failures).await;
    drop(input);
    settle::ended(&running, stopped, error).await;
}

/// Ends the task that hands on input, with the operation.
struct InputTask(Option<tokio::task::AbortHandle>);

impl Drop for InputTask {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl<'a> Running<'a> {
    fn new(
        core: &'a Rc<Core>,
        op: &'a Rc<Op>,
        child: Child,
        begun: Instant,
        is_terminal: bool,
        listener: &Listener,
    ) -> Result<(Self, InputTask), (rustix::process::Pid, std::io::Error)> {
        let pid = child.pid;
        let fail = |error| (pid, error);
        let sink = |stream| Sink::new(Arc::clone(&core.spool), &op.id, op.attempt, stream);
        let copy = |wanted: bool| wanted.then(|| child.stdout.try_clone()).transpose();
        let terminal = copy(is_terminal).map_err(fail)?;
        let typed = copy(is_terminal && op.input.is_some()).map_err(fail)?;
        let mut out = sink(Stream::Stdout);
        if is_terminal {
            out.is_terminal();
        }
        let stdout = Pump::start(child.stdout, out, listener.clone()).map_err(fail)?;
        let stderr = child
            .stderr
            .map(|fd| Pump::start(fd, sink(Stream::Stderr), listener.clone()))
            .transpose()
            .map_err(fail)?;
        let input = op
            .input
            .clone()
            .zip(child.stdin.or(typed))
            .map(|(input, fd)| {
                let (core, id) = (Rc::clone(core), op.id.clone());
                let task = input.run(fd, move |accepted| say_accepted(&core, &id, accepted));
                tokio::task::spawn_local(task).abort_handle()
            });
        op.state.replace(State::Running(Live {
            pid,
            stdout: Arc::clone(stdout.tail()),
            stderr: stderr.as_ref().map(|pump| Arc::clone(pump.tail())),
        }));
        op.changed.notify_waiters();
        core.link.say(FromSupervisor::Started {
            op: op.id.clone(),
            attempt: op.attempt,
        });
        let running = Self {
            core,
            op,
            pid,
            begun,
            stdout,
            stderr,
            terminal,
            ending: None,
            told: None,
            tell_at: None,
        };
        Ok((running, InputTask(input)))
    }

    /// Serves the operation until its main process has ended; returns how that was.
    async fn until_exit(
        &mut self,
        early: Vec<Order>,
        mut exit: tokio::sync::oneshot::Receiver<Exit>,
        deadline: Option<Instant>,
        progress: &Notify,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        failures: &mut mpsc::UnboundedReceiver<spool::Error>,
    ) -> Exit {
        early.into_iter().for_each(|order| self.obey(order));
        loop {
            let is_ending = self.ending.is_some();
            tokio::select! {
                biased;
                exit = &mut exit => return exit.unwrap_or(Exit::Signal(0)),
                Some(error) = failures.recv() => self.cut_off(&error),
                Some(order) = orders.recv() => self.obey(order),
                () = at(deadline), if !is_ending => {
                    self.end(Why::Time, end::TIMEOUT_GRACE);
                }
                () = at(self.kill_at()) => self.kill(),
                () = progress.notified() => self.tell(),
                () = at(self.tell_at) => self.tell_now(),
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Signal(signal) => {
                let group = -self.pid.as_raw_pid();
                // A number that is no signal is void, and so is one to a group that has just ended.
                let _sent: std::io::Result<()> = sys::kill(group, i32::from(signal));
            }
            Order::Resize(size) => {
                if let Some(terminal) = &self.terminal {
                    // A terminal that hung up has no size.
                    let _resized: std::io::Result<()> = pty::resize(terminal, size);
                }
            }
            Order::Cancel { grace_ms, why } => {
                self.end(Why::Order(why), Duration::from_millis(grace_ms));
            }
        }
    }

    /// Tells of new output: the first and much of it at once, the rest a little later.
    fn tell(&mut self) {
        // Shims follow without delay: for them nothing is coalesced but by their own reading.
        self.op.changed.notify_waiters();
        let now = self.op.reach();
        let due = match self.told {
            None => Instant::now(),
            Some((at, told)) => {
                let grown = now.stdout - told.stdout + now.stderr - told.stderr;
                if grown >= TELL_BYTES {
                    Instant::now()
                } else {
                    at + TELL_EVERY
                }
            }
        };
        if due <= Instant::now() {
            self.tell_now();
        } else {
            self.tell_at = Some(due);
        }
    }

    fn tell_now(&mut self) {
        let reach = self.op.reach();
        self.tell_at = None;
        self.told = Some((Instant::now(), reach));
        self.core.link.output(&self.op.id, reach);
    }

    /// Takes what the pipes hold; returns what went wrong with keeping it.
    async fn drain(
        &mut self,
        failures: &mut mpsc::UnboundedReceiver<spool::Error>,
    ) -> Option<spool::Error> {
        let mut error = None;
        for pump in [Some(&self.stdout), self.stderr.as_ref()]
            .into_iter()
            .flatten()
        {
            if let Err(new) = pump.drain().await {
                error.get_or_insert(new);
                pump.stop();
            }
        }
        error.or_else(|| failures.try_recv().ok())
    }
}

fn say_accepted(core: &Core, op: &OpId, (offset, closed): crate::input::Accepted) {
    core.link.say(FromSupervisor::StdinAccepted {
        op: op.clone(),
        offset,
        closed,
    });
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
