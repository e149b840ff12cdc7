//! Puts the parts of a supervisor together and runs them until the end.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::core::Core;
use crate::doors::Doors;
use crate::files::Helpers;
use crate::harden;
use crate::launch::Launcher;
use crate::ledger::{Ledger, Opened};
use crate::ops::Ops;
use crate::outbox::Link;
use crate::owner::Owners;
use crate::reaper::Reaper;
use crate::shims::Shims;
use crate::spool::Spool;
use crate::tree::Proc;
use crate::{Handles, daemon, ledger, relay, shims, shutdown, sys};

/// Why a supervisor could not serve, or had to stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot {what}")]
    Setup {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    #[error("the operation table could not be written; what is on disk is not known any more")]
    LedgerFailed(#[source] io::Error),
    #[error("the {what} stopped")]
    Stopped {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

fn setup<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Setup {
        what,
        source: source.into(),
    }
}

/// Serves until the daemon orders the end.
pub(crate) fn run(mut handles: Handles) -> Result<(), Error> {
    failpoint::arm();
    sys::one_heap();
    harden::own_stdio().map_err(setup("open /dev/null"))?;
    let nofile = harden::many_files();
    let children = sys::child_events().map_err(setup("listen for children"))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(setup("adopt orphans"))?;
    let proc = Arc::new(Proc::open().map_err(setup("open /proc"))?);
    let launcher =
        Launcher::new(nofile, handles.has_ca).map_err(setup("prepare the starting of programs"))?;
    harden::children_get_little().map_err(setup("give up privileges"))?;
    rustix::process::fchdir(&handles.state).map_err(setup("enter the state directory"))?;
    let spool = Spool::open(&handles.state, handles.limits.spool_bytes)
        .map_err(setup("open the output spool"))?;
    let names = spool.dir().map_err(setup("open the output spool"))?;
    let Opened {
        ledger,
        table,
        boot,
        failed,
    } = Ledger::open(&handles.state, names)?;
    let (sockets, diag) = match handles.doors.take() {
        Some(doors) => (Some(doors.sockets), doors.diag),
        None => (None, None),
    };
    let core = Rc::new(Core {
        boot,
        epoch: Cell::new(table.epoch),
        witness: Cell::new(table.witness),
        ledger,
        launcher,
        spool: Arc::new(spool),
        owners: Owners::new(Arc::clone(&proc), diag),
        proc,
        reaper: Rc::default(),
        ops: Ops::of_rows(table.ops.values()),
        link: Link::default(),
        shims: Shims::new(boot),
        doors: Doors::new(sockets),
        helpers: Helpers::default(),
        closing: Cell::new(false),
    });
    drop(table);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(setup("start the event loop"))?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, async {
        tokio::select! {
            end = serve(&core, handles, children) => end,
            failed = failed => Err(Error::LedgerFailed(failed.unwrap_or_else(|_| {
                io::ErrorKind::BrokenPipe.into()
            }))),
        }
    });
    // Threads that still write output of stragglers are not waited for: the process ends now.
    runtime.shutdown_background();
    result
}

async fn serve(
    core: &Rc<Core>,
    handles: Handles,
    children: std::os::fd::OwnedFd,
) -> Result<(), Error> {
    let stopped = |what| move |source| Error::Stopped { what, source };
    let listener = |listener: std::os::unix::net::UnixListener| {
        listener.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(listener)
    };
    let control = listener(handles.control).map_err(setup("listen for the daemon"))?;
    let shim = listener(handles.shim).map_err(setup("listen for shims"))?;
    let model = handles.model.map(|model| {
        model.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(model)
    });
    let model = model
        .transpose()
        .map_err(setup("listen for model traffic"))?;
    let (order, mut orders) = mpsc::unbounded_channel();
    let relay = async {
        match model {
            Some(model) => relay::serve(Rc::clone(core), model).await,
            None => std::future::pending().await,
        }
    };
    let reaper = Rc::clone(&core.reaper);
    let ending = async {
        match orders.recv().await {
            Some(grace_ms) => shutdown::end(core, grace_ms).await,
            None => std::future::pending().await,
        }
    };
    if let Some(ready) = handles.ready {
        rustix::io::write(&ready, b"1").map_err(setup("say that it serves"))?;
    }
    tokio::select! {
        () = ending => Ok(()),
        result = Reaper::run(reaper, children) => result.map_err(stopped("taking of children")),
        result = daemon::serve(Rc::clone(core), control, order) => {
            result.map_err(stopped("control socket"))
        }
        result = shims::serve(Rc::clone(core), shim) => result.map_err(stopped("shim socket")),
        result = relay => result.map_err(stopped("model relay")),
    }
}
