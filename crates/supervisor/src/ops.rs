//! Every operation that this supervisor knows: the table's rows, and for those that run the way to them.

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use protocol::table::{OpRow, RunSpec};
use protocol::{Boot, OpId, Role, Settlement, TtySize};
use rustix::process::Pid;
use tokio::sync::{Notify, mpsc};

use crate::input::Input;
use crate::outbox::Reach;
use crate::spool::Tail;

/// How many operations whose settlement the journal has are remembered, for shims that come late.
const MAX_REMEMBERED: usize = 256;

/// Where an operation stands.
///
/// starting ──▶ running ──▶ settled ──▶ announced (a flag of its own)
///     └──────────────────────▲
pub(crate) enum State {
    /// Its row is on the way to the disk; nothing of it runs.
    Starting,
    Running(Live),
    Settled(Settlement),
    /// A former supervisor started it and did not see its end.
    Lost,
}

/// What is at hand of a running operation.
pub(crate) struct Live {
    pub(crate) pid: Pid,
    pub(crate) stdout: Arc<Tail>,
    pub(crate) stderr: Option<Arc<Tail>>,
}

/// What can be ordered of an operation. Orders given before it runs are followed when it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    Signal(u8),
    Cancel { grace_ms: u64, why: String },
    Resize(TtySize),
}

/// One operation.
pub(crate) struct Op {
    pub(crate) id: OpId,
    pub(crate) attempt: u32,
    pub(crate) boot: Boot,
    pub(crate) role: Role,
    /// Of what was started; unknown for those of a former boot.
    command: Option<u64>,
    pub(crate) state: RefCell<State>,
    pub(crate) announced: Cell<bool>,
    pub(crate) input: Option<Rc<Input>>,
    /// How many shims follow it.
    pub(crate) followers: Cell<u32>,
    orders: Option<mpsc::UnboundedSender<Order>>,
    /// Wakes whoever follows it: more output, its end, its announcement.
    pub(crate) changed: Notify,
}

impl Op {
    /// A new one, about to be started, and where its orders arrive.
    pub(crate) fn starting(
        id: OpId,
        attempt: u32,
        boot: Boot,
        run: &RunSpec,
        input: Option<Rc<Input>>,
    ) -> (Rc<Self>, mpsc::UnboundedReceiver<Order>) {
        let (orders, arriving) = mpsc::unbounded_channel();
        let op = Rc::new(Self {
            id,
            attempt,
            boot,
            role: run.role,
            command: Some(command_of(&run.argv, &run.cwd)),
            state: RefCell::new(State::Starting),
            announced: Cell::new(false),
            input,
            followers: Cell::new(0),
            orders: Some(orders),
            changed: Notify::new(),
        });
        (op, arriving)
    }

    fn of_row(row: &OpRow) -> Rc<Self> {
        let state = row.settlement.clone().map_or(State::Lost, State::Settled);
        Rc::new(Self {
            id: row.op.clone(),
            attempt: row.attempt,
            boot: row.boot,
            role: Role::Command,
            command: None,
            state: RefCell::new(state),
            announced: Cell::new(row.announced),
            input: None,
            followers: Cell::new(0),
            orders: None,
            changed: Notify::new(),
        })
    }

    /// Returns what the table says of it.
    pub(crate) fn row(&self) -> OpRow {
        OpRow {
            op: self.id.clone(),
            attempt: self.attempt,
            boot: self.boot,
            settlement: self.settlement(),
            announced: self.announced.get(),
        }
    }

    pub(crate) fn settlement(&self) -> Option<Settlement> {
        match &*self.state.borrow() {
            State::Settled(settlement) => Some(settlement.clone()),
            State::Starting | State::Running(_) | State::Lost => None,
        }
    }

    /// Whether it has started or will, and has not ended.
    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), State::Starting | State::Running(_))
    }

    pub(crate) fn live(&self) -> Option<Ref<'_, Live>> {
        Ref::filter_map(self.state.borrow(), |state| match state {
            State::Running(live) => Some(live),
            State::Starting | State::Settled(_) | State::Lost => None,
        })
        .ok()
    }

    /// Returns how far its output can be read now.
    pub(crate) fn reach(&self) -> Reach {
        let (stdout, stderr) = match &*self.state.borrow() {
            State::Starting | State::Lost => (0, 0),
            State::Running(live) => (
                live.stdout.length(),
                live.stderr.as_ref().map_or(0, |tail| tail.length()),
            ),
            State::Settled(settlement) => (settlement.stdout_bytes.0, settlement.stderr_bytes.0),
        };
        Reach {
            attempt: self.attempt,
            stdout,
            stderr,
        }
    }

    /// Whether it was started with this command; `false` if that is not known any more.
    pub(crate) fn runs(&self, argv: &[String], cwd: &str) -> bool {
        self.command == Some(command_of(argv, cwd))
    }

    /// Gives an order; one for an operation that has ended is void.
    pub(crate) fn order(&self, order: Order) {
        if let Some(orders) = self.orders.as_ref().filter(|_| self.is_open()) {
            // It ends in this very moment.
            let _given: Result<(), _> = orders.send(order);
        }
    }
}

fn command_of(argv: &[String], cwd: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (argv, cwd).hash(&mut hasher);
    hasher.finish()
}

/// All of them.
#[derive(Default)]
pub(crate) struct Ops {
    all: RefCell<BTreeMap<OpId, Rc<Op>>>,
    remembered: RefCell<VecDeque<OpId>>,
    /// Wakes whoever waits for an operation to come up.
    added: Notify,
}

impl Ops {
    /// Takes over what former supervisors left.
    pub(crate) fn of_rows<'a>(rows: impl Iterator<Item = &'a OpRow>) -> Self {
        let ops = Self::default();
        for row in rows.filter(|row| !row.announced) {
            ops.add(Op::of_row(row));
        }
        ops
    }

    pub(crate) fn get(&self, id: &OpId) -> Option<Rc<Op>> {
        self.all.borrow().get(id).cloned()
    }

    pub(crate) fn add(&self, op: Rc<Op>) {
        self.all.borrow_mut().insert(op.id.clone(), op);
        self.added.notify_waiters();
    }

    /// Ends when some operation is added after this was called.
    pub(crate) fn next_added(&self) -> impl Future<Output = ()> {
        self.added.notified()
    }

    /// Marks it as known to the journal; from now on it may be forgotten.
    pub(crate) fn announce(&self, op: &Op) {
        if op.announced.replace(true) {
            return;
        }
        op.changed.notify_waiters();
        let mut remembered = self.remembered.borrow_mut();
        remembered.push_back(op.id.clone());
        if remembered.len() > MAX_REMEMBERED {
            let oldest = remembered.pop_front();
            let mut all = self.all.borrow_mut();
            // A later attempt under the same id is not what was announced.
            if let Some(id) = oldest.filter(|id| all.get(id).is_some_and(|op| op.announced.get())) {
                all.remove(&id);
            }
        }
    }

    /// Returns those that the journal is not known to have settled.
    pub(crate) fn unannounced(&self) -> Vec<Rc<Op>> {
        let all = self.all.borrow();
        all.values()
            .filter(|op| !op.announced.get())
            .cloned()
            .collect()
    }

    /// Returns the main process of each that runs.
    pub(crate) fn running(&self) -> Vec<(i32, OpId)> {
        let all = self.all.borrow();
        all.values()
            .filter_map(|op| Some((op.live()?.pid.as_raw_pid(), op.id.clone())))
            .collect()
    }

    /// Returns those that have not ended.
    pub(crate) fn open(&self) -> Vec<Rc<Op>> {
        let all = self.all.borrow();
        all.values().filter(|op| op.is_open()).cloned().collect()
    }
}
