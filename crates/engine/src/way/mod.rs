//! The way out of a sandbox: the gateway at its doors, from the start of its task to its end.

mod people;
mod placeholders;
mod recordings;
mod rules;
mod seams;
mod secrets;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egress::{Doors, Egress, Parts};
use policy::Policy;
use protocol::control::{Door, DoorKind};
use protocol::{EffectId, Epoch};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use self::people::People;
pub(crate) use self::placeholders::copy_placeholders;
use self::recordings::Recordings;
pub(crate) use self::rules::parse;
use self::seams::{Released, Supervisor};
use crate::models::Writer;
use crate::sandbox::{Handle, Note};
use crate::{error, link};

/// What is served of the doors of this boot.
#[derive(Default)]
struct Serving {
    tasks: Vec<AbortHandle>,
    ports: BTreeSet<u16>,
}

/// The gateway of one sandbox, from the start of its task to its end. A boot's doors are given to it when they are there.
pub(crate) struct Way {
    dir: PathBuf,
    epoch: Epoch,
    /// Where the sandbox's task takes notes.
    pub(crate) notes: mpsc::Sender<Note>,
    egress: watch::Sender<Option<Arc<Egress>>>,
    policy: Mutex<Arc<Policy>>,
    serving: Mutex<Serving>,
    /// Placeholders by the names of their secrets, once they were read or made.
    shown: Mutex<Option<BTreeMap<String, String>>>,
    /// Held while placeholders are made: two for one secret would make the first one nobody's.
    making: tokio::sync::Mutex<()>,
}

impl Way {
    /// Makes one with the policy that the journal holds; closed as yet.
    pub(crate) fn new(
        dir: PathBuf,
        epoch: Epoch,
        policy: Option<&str>,
        notes: mpsc::Sender<Note>,
    ) -> Self {
        Self {
            dir,
            epoch,
            notes,
            egress: watch::Sender::new(None),
            policy: Mutex::new(Arc::new(rules::journaled(policy))),
            serving: Mutex::default(),
            shown: Mutex::default(),
            making: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the ports at which the policy wants doors, besides those that every sandbox has.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.policy().ports().into_iter().collect()
    }

    /// Takes the doors of the boot that was just reached, and serves them until the next one is, or the way is closed.
    pub(crate) fn serve(self: &Arc<Self>) {
        let way = Arc::clone(self);
        let task = tokio::spawn(async move {
            let mut opened = way.egress.subscribe();
            let egress = match opened.wait_for(Option::is_some).await {
                Ok(opened) => opened.clone(),
                Err(_) => None,
            };
            let Some(egress) = egress else { return };
            let boot = egress.boot();
            match link::doors::doors(&way.dir, way.epoch).await {
                Ok(open) => {
                    way.unserved(&open);
                    egress.serve_boot(boot, sorted(open)).await;
                }
                Err(why) => {
                    // Nothing leaves then, which is what an empty policy says.
                    tracing::warn!(why = %error::chain(&why), dir = %way.dir.display(), "a sandbox has no way out");
                }
            }
        });
        self.replace(Some(task.abort_handle()));
    }

    /// Lets nothing more of a boot leave that is over; what has left is in the journal with its end on return.
    pub(crate) async fn end_boot(&self) {
        self.replace(None);
        let egress = self.egress.borrow().clone();
        if let Some(egress) = egress {
            egress.end_boot().await;
        }
    }

    /// Nothing leaves any more.
    pub(crate) fn close(&self) {
        self.replace(None);
        if let Some(egress) = self.egress.send_replace(None) {
            tokio::spawn(async move { egress.close().await });
        }
    }

    /// Serves doors that were opened later, those that are served already left out.
    fn serve_more(&self, mut open: Vec<(Door, OwnedFd)>) {
        let Some(egress) = self.egress.borrow().clone() else {
            return;
        };
        let new = self.unserved(&open);
        open.retain(|(door, _)| new.contains(&door.port));
        if !open.is_empty() {
            let task = tokio::spawn(egress.serve_more(sorted(open)));
            self.serving().tasks.push(task.abort_handle());
        }
    }

    /// Notes the ports of doors for TCP as served, and returns those that were not.
    fn unserved(&self, open: &[(Door, OwnedFd)]) -> BTreeSet<u16> {
        let tcp = open.iter().filter(|(door, _)| door.kind == DoorKind::Tcp);
        let ports: BTreeSet<u16> = tcp.map(|(door, _)| door.port).collect();
        let mut serving = self.serving();
        let new = ports.difference(&serving.ports).copied().collect();
        serving.ports.extend(ports);
        new
    }

    fn replace(&self, task: Option<AbortHandle>) {
        let before = std::mem::replace(
            &mut *self.serving(),
            Serving {
                tasks: task.into_iter().collect(),
                ports: BTreeSet::new(),
            },
        );
        for task in before.tasks {
            task.abort();
        }
    }

    fn serving(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn policy(&self) -> Arc<Policy> {
        let policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&policy)
    }

    pub(crate) fn set_policy(&self, policy: &Arc<Policy>) {
        let mut current = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::clone(policy);
        drop(current);
        if let Some(egress) = &*self.egress.borrow() {
            egress.set_policy(Arc::clone(policy));
        }
    }
}

/// Sorts a boot's doors by what arrives there.
fn sorted(open: Vec<(Door, OwnedFd)>) -> Doors {
    let mut doors = Doors::default();
    for (door, socket) in open {
        match door.kind {
            DoorKind::Tcp => doors.tcp.push(socket.into()),
            DoorKind::Udp => doors.dns = Some(socket.into()),
            DoorKind::Proxy => doors.proxy = Some(socket.into()),
        }
    }
    doors
}

impl Handle {
    /// Opens the way out. What a gateway before this one had under way is to be [settled](Egress::settle_broken).
    pub(crate) fn open_way(&self) -> Arc<Egress> {
        let egress = Egress::open(Parts {
            authority: Arc::clone(&self.shared.authority),
            policy: self.way.policy(),
            ledger: Arc::new(Writer::new(self)),
            owners: Arc::new(Supervisor {
                dir: self.way.dir.clone(),
                epoch: self.way.epoch,
            }),
            secrets: Arc::new(Released {
                shared: self.shared.clone(),
                way: Arc::clone(&self.way),
            }),
            records: Arc::new(Recordings {
                handle: self.clone(),
            }),
            approver: Arc::new(People {
                handle: self.clone(),
            }),
            resolver: Arc::new(egress::SystemResolver),
        });
        self.way.egress.send_replace(Some(Arc::clone(&egress)));
        egress
    }

    /// Journals that effects were broken off whose gateway was lost.
    pub(crate) async fn settle_effects(&self, egress: &Egress, effects: Vec<EffectId>) {
        if let Err(why) = egress.settle_broken(effects).await {
            tracing::warn!(sandbox = %self.name, why, "effects stay open");
        }
    }
}
