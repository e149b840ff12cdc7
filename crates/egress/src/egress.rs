//! One sandbox's gateway as a whole: its doors are served here, its policy is changed here, and here it ends.

use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use policy::Policy;
use protocol::{EffectId, Event};

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::authority::Authority;
use crate::budget::Budgets;
use crate::connection::{self, Entrance};
use crate::deny::Denials;
use crate::dns::{Answerer, serve_udp};
use crate::flow::{Flows, Ticket};
use crate::github::Apps;
use crate::life::Life;
use crate::scrub::Scrubs;
use crate::seam::{Approver, Ledger, Owners, Records, Resolver, Secrets};
use crate::upstream::{Dialer, Pool};

/// Connections of one sandbox at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 1024;
/// Requests of one sandbox that are on their way at a time; more wait.
const MAX_REQUESTS: usize = 2048;
/// Requests of one sandbox whose bodies are held in memory at a time, to be compared with recorded ones.
const MAX_REPEATING: usize = 4;
/// How often idle upstream connections are looked at.
const TIDY: Duration = Duration::from_secs(10);
/// What accepting waits after an error that may go away, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The sockets of a sandbox's doors, as the supervisor keeps them.
#[derive(Debug, Default)]
pub struct Doors {
    /// Where connections to any address end, one for each port.
    pub tcp: Vec<std::net::TcpListener>,
    /// Where clients speak to a proxy.
    pub proxy: Option<std::net::TcpListener>,
    /// Where DNS is asked.
    pub dns: Option<std::net::UdpSocket>,
}

/// What a gateway is made of.
pub struct Parts {
    /// Makes certificates for names.
    pub authority: Arc<Authority>,
    /// What may leave.
    pub policy: Arc<Policy>,
    /// The sandbox's journal.
    pub ledger: Arc<dyn Ledger>,
    /// Who connects.
    pub owners: Arc<dyn Owners>,
    /// The secrets it may use.
    pub secrets: Arc<dyn Secrets>,
    /// What is recorded of operations that may be run again.
    pub records: Arc<dyn Records>,
    /// Who is asked.
    pub approver: Arc<dyn Approver>,
    /// Where names lead.
    pub resolver: Arc<dyn Resolver>,
}

/// A policy with its number, so that what was made under one is not used under another.
pub(crate) struct Current {
    policy: Arc<Policy>,
    pub(crate) number: u64,
}

impl Deref for Current {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.policy
    }
}

/// What every part of the gateway sees.
pub(crate) struct Core {
    pub(crate) authority: Arc<Authority>,
    policy: RwLock<Arc<Current>>,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) owners: Arc<dyn Owners>,
    pub(crate) secrets: Arc<dyn Secrets>,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) approver: Arc<dyn Approver>,
    pub(crate) resolver: Arc<dyn Resolver>,
    pub(crate) answerer: Arc<Answerer>,
    pub(crate) denials: Denials,
    flows: Arc<Flows>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) apps: Apps,
    pub(crate) pool: Arc<Pool>,
    pub(crate) scrubs: Scrubs,
    pub(crate) budgets: Budgets,
    /// Connections, and ends of effects that are being journaled.
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: Handle,
    pub(crate) closing: CancellationToken,
    room: Arc<Semaphore>,
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) repeating: Semaphore,
    /// The boot whose doors are served now.
    life: Mutex<Arc<Life>>,
}

impl Core {
    /// Returns the policy of this moment.
    pub(crate) fn policy(&self) -> Arc<Current> {
        self.policy
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes a flow in that `still` was just true of; its ticket says when that is over.
    pub(crate) fn enter(&self, still: impl Fn(&Policy) -> bool + Send + 'static) -> Ticket {
        let ticket = self.flows.enter(still);
        // The policy may have become another between the verdict and this.
        self.flows.judge_one(&ticket, &self.policy());
        ticket
    }
}

/// One boot of a sandbox: what comes through doors of another is not its own.
pub struct Boot(Arc<Life>);

/// The gateway of one sandbox.
pub struct Egress {
    core: Arc<Core>,
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Egress").finish_non_exhaustive()
    }
}

impl Egress {
    /// Makes a gateway; nothing is accepted before [`Egress::serve`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn open(parts: Parts) -> Arc<Self> {
        let dialer = Arc::new(Dialer::new());
        let closing = CancellationToken::new();
        let life = Mutex::new(Life::new(&closing));
        let core = Core {
            authority: parts.authority,
            policy: RwLock::new(Arc::new(Current {
                policy: parts.policy,
                number: 1,
            })),
            denials: Denials::new(parts.ledger.clone()),
            ledger: parts.ledger,
            owners: parts.owners,
            secrets: parts.secrets,
            records: parts.records,
            approver: parts.approver,
            apps: Apps::new(dialer.clone(), parts.resolver.clone()),
            resolver: parts.resolver,
            answerer: Arc::default(),
            flows: Arc::default(),
            dialer,
            pool: Arc::default(),
            scrubs: Scrubs::default(),
            budgets: Budgets::default(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
            closing,
            room: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            repeating: Semaphore::new(MAX_REPEATING),
            life,
        };
        Arc::new(Self {
            core: Arc::new(core),
        })
    }

    /// Puts another policy in place: requests from now on are judged by it, and what is on its way ends where it would not be
    /// allowed any more.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        let mut current = self
            .core
            .policy
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(Current {
            policy: policy.clone(),
            number: current.number + 1,
        });
        drop(current);
        // After the change: what begins in between is judged by the new policy, or is here already.
        self.core.flows.judge(&policy);
        self.core.pool.clear();
        self.core.apps.clear();
        self.core.scrubs.clear();
    }

    /// Returns the boot that is served now. To be asked for before its doors are.
    #[must_use]
    pub fn boot(&self) -> Boot {
        let life = self.core.life.lock();
        Boot(Arc::clone(&life.unwrap_or_else(PoisonError::into_inner)))
    }

    /// Ends a boot whose supervisor is gone: nothing more of it leaves, its connections end, and what has left is in the journal
    /// with its end on return. What is served next is another boot.
    pub async fn end_boot(&self) {
        let ended = {
            let mut life = self
                .core
                .life
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *life, Life::new(&self.core.closing))
        };
        ended.end().await;
    }

    /// Serves doors of the boot of this moment, and what goes with them, until that or the gateway ends, or the future is
    /// dropped.
    pub async fn serve(self: Arc<Self>, doors: Doors) {
        let boot = self.boot();
        self.serve_boot(boot, doors).await;
    }

    /// Serves doors of a boot until [`Egress::end_boot`] or [`Egress::close`].
    pub async fn serve_boot(self: Arc<Self>, boot: Boot, doors: Doors) {
        let core = &self.core;
        let mut served = self.open_doors(&boot.0, doors);
        let (keep, life) = (core.clone(), boot.0);
        served.spawn(async move {
            let run = async {
                tokio::join!(keep.denials.run(), tidy(&keep));
            };
            life.ended.run_until_cancelled(run).await;
        });
        ended(served).await;
    }

    /// Serves doors of the boot of this moment that came later, as [`Egress::serve`].
    pub async fn serve_more(self: Arc<Self>, doors: Doors) {
        ended(self.open_doors(&self.boot().0, doors)).await;
    }

    fn open_doors(&self, life: &Arc<Life>, doors: Doors) -> JoinSet<()> {
        let core = &self.core;
        let mut served = JoinSet::new();
        for listener in doors.tcp {
            let served_by = (core.clone(), life.clone());
            served.spawn(accept(served_by, listener, Entrance::Open));
        }
        if let Some(listener) = doors.proxy {
            let served_by = (core.clone(), life.clone());
            served.spawn(accept(served_by, listener, Entrance::Proxy));
        }
        if let Some(socket) = doors.dns {
            let (ended, answerer) = (life.ended.clone(), core.answerer.clone());
            served.spawn(async move {
                let ended = ended.run_until_cancelled(serve_udp(socket, answerer)).await;
                if let Some(Err(error)) = ended {
                    tracing::error!(%error, "names are not answered any more in this sandbox");
                }
            });
        }
        served
    }

    /// Journals the end of effects that an earlier daemon began: nobody knows any more how they ended.
    ///
    /// # Errors
    /// The journal takes nothing.
    pub async fn settle_broken(&self, effects: Vec<EffectId>) -> Result<(), String> {
        if effects.is_empty() {
            return Ok(());
        }
        let settled = effects.into_iter().map(|effect| Event::EffectSettled {
            effect,
            status: None,
            sent: None,
            received: None,
            millis: None,
            error: Some(
                "the daemon was lost while it was on its way: it may or may not have arrived"
                    .to_owned(),
            ),
            answer: None,
            unrecorded: None,
        });
        self.core.ledger.append(settled.collect()).await?;
        Ok(())
    }

    /// Ends everything: nothing is accepted any more, what is on its way is broken off, and all of it is in the journal.
    pub async fn close(&self) {
        self.core.closing.cancel();
        self.core.tasks.close();
        self.core.tasks.wait().await;
        self.core.denials.flush(true).await;
        self.core.pool.clear();
        self.core.scrubs.clear();
    }
}

/// Waits for the tasks of doors. Dropped, it ends them.
async fn ended(mut served: JoinSet<()>) {
    while let Some(one) = served.join_next().await {
        if let Err(error) = one {
            tracing::error!(%error, "a door's task failed");
        }
    }
}

async fn tidy(core: &Core) {
    loop {
        tokio::time::sleep(TIDY).await;
        core.pool.tidy();
        core.scrubs.tidy();
    }
}

async fn accept(
    (core, life): (Arc<Core>, Arc<Life>),
    listener: std::net::TcpListener,
    entrance: Entrance,
) {
    let listener = listener
        .set_nonblocking(true)
        .and_then(|()| TcpListener::from_std(listener));
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "a door cannot be served");
            return;
        }
    };
    let ended = life.ended.clone();
    ended
        .run_until_cancelled(accept_all(core, life, listener, entrance))
        .await;
}

async fn accept_all(core: Arc<Core>, life: Arc<Life>, listener: TcpListener, entrance: Entrance) {
    loop {
        let Ok(permit) = core.room.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let of = (core.clone(), life.clone());
                // Boxed: what wraps it would hold its memory several times over, for each connection.
                let served = Box::pin(connection::serve(of, stream, peer, entrance, permit));
                let ended = life.ended.clone();
                core.tasks.spawn(async move {
                    ended.run_until_cancelled(served).await;
                });
            }
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether an error belongs to a connection that was gone before we came.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}
