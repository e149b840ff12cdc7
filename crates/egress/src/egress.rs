//! One sandbox's gateway as a whole: its doors are served here, its policy is changed here, and here it ends.

use std::io;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};
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
use crate::seam::{Approver, Ledger, Owners, Resolver, Secrets};
use crate::upstream::{Dialer, Pool};

/// Connections of one sandbox at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 1024;
/// Requests of one sandbox that are on their way at a time; more wait.
const MAX_REQUESTS: usize = 2048;
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
    pub(crate) approver: Arc<dyn Approver>,
    pub(crate) resolver: Arc<dyn Resolver>,
    pub(crate) answerer: Arc<Answerer>,
    pub(crate) denials: Denials,
    flows: Arc<Flows>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) apps: Apps,
    pub(crate) pool: Arc<Pool>,
    pub(crate) budgets: Budgets,
    /// Connections, and ends of effects that are being journaled.
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: Handle,
    pub(crate) closing: CancellationToken,
    room: Arc<Semaphore>,
    pub(crate) requests: Arc<Semaphore>,
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
            approver: parts.approver,
            apps: Apps::new(dialer.clone(), parts.resolver.clone()),
            resolver: parts.resolver,
            answerer: Arc::default(),
            flows: Arc::default(),
            dialer,
            pool: Arc::default(),
            budgets: Budgets::default(),
            tasks: TaskTracker::new(),
            runtime: Handle::current(),
            closing: CancellationToken::new(),
            room: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
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
    }

    /// Serves doors, and what goes with them, until [`Egress::close`] or the future is dropped.
    pub async fn serve(self: Arc<Self>, doors: Doors) {
        let core = &self.core;
        let mut served = self.open_doors(doors);
        let keep = core.clone();
        served.spawn(async move {
            let run = async {
                tokio::join!(keep.denials.run(), tidy(&keep.pool));
            };
            keep.closing.run_until_cancelled(run).await;
        });
        ended(served).await;
    }

    /// Serves doors that came later, as [`Egress::serve`].
    pub async fn serve_more(self: Arc<Self>, doors: Doors) {
        ended(self.open_doors(doors)).await;
    }

    fn open_doors(&self, doors: Doors) -> JoinSet<()> {
        let core = &self.core;
        let mut served = JoinSet::new();
        for listener in doors.tcp {
            served.spawn(accept(core.clone(), listener, Entrance::Open));
        }
        if let Some(listener) = doors.proxy {
            served.spawn(accept(core.clone(), listener, Entrance::Proxy));
        }
        if let Some(socket) = doors.dns {
            let (closing, answerer) = (core.closing.clone(), core.answerer.clone());
            served.spawn(async move {
                let ended = closing
                    .run_until_cancelled(serve_udp(socket, answerer))
                    .await;
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

async fn tidy(pool: &Pool) {
    loop {
        tokio::time::sleep(TIDY).await;
        pool.tidy();
    }
}

async fn accept(core: Arc<Core>, listener: std::net::TcpListener, entrance: Entrance) {
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
    let closing = core.closing.clone();
    closing
        .run_until_cancelled(accept_all(core, listener, entrance))
        .await;
}

async fn accept_all(core: Arc<Core>, listener: TcpListener, entrance: Entrance) {
    loop {
        let Ok(permit) = core.room.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Boxed: what wraps it would hold its memory several times over, for each connection.
                let served = Box::pin(connection::serve(
                    core.clone(),
                    stream,
                    peer,
                    entrance,
                    permit,
                ));
                let closing = core.closing.clone();
                core.tasks.spawn(async move {
                    closing.run_until_cancelled(served).await;
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
