//! Connections that wait for their next request, and those of HTTP/2 that take more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::{http1, http2};

use super::{Sender, Target};
use crate::body::Body;
use crate::deny::Denial;

/// Given up before the usual peers do it.
const IDLE: Duration = Duration::from_secs(30);
/// Idle HTTP/1 connections of one target, and targets of a sandbox.
const MAX_OF_TARGET: usize = 16;
const MAX_TARGETS: usize = 128;
/// Requests on one HTTP/2 connection at a time. Servers allow a hundred and more; what is above their limit would wait behind
/// streams that may stay open for hours.
const MAX_STREAMS: usize = 100;

/// The connections of one sandbox.
#[derive(Default)]
pub(crate) struct Pool {
    targets: Mutex<HashMap<Target, Kept>>,
}

#[derive(Default)]
struct Kept {
    http1: Vec<(http1::SendRequest<Body>, Instant)>,
    http2: Vec<Shared>,
    /// Held by whoever connects, so that many requests at once make one HTTP/2 connection and not many.
    gate: Arc<tokio::sync::Mutex<()>>,
    /// Whether the other side has shown that it has no HTTP/2: then nobody need wait for another's connection.
    only_http1: bool,
    /// How connecting failed last, for those who waited for it.
    failed: Option<(Instant, Denial)>,
}

/// An HTTP/2 connection that many requests share.
struct Shared {
    sender: http2::SendRequest<Body>,
    load: Arc<AtomicUsize>,
    used: Instant,
}

/// One request's place on a shared connection.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    fn on(load: &Arc<AtomicUsize>) -> Self {
        load.fetch_add(1, Ordering::AcqRel);
        Self(load.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, HashMap<Target, Kept>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection that is still open, as far as we know.
    fn take(&self, target: &Target) -> Option<Sender> {
        let mut targets = self.lock();
        let kept = targets.get_mut(target)?;
        kept.http2.retain(|shared| !shared.sender.is_closed());
        for shared in &mut kept.http2 {
            if shared.sender.is_ready() && shared.load.load(Ordering::Acquire) < MAX_STREAMS {
                shared.used = Instant::now();
                let place = Place::on(&shared.load);
                return Some(Sender::Http2(shared.sender.clone(), place));
            }
        }
        while let Some((sender, since)) = kept.http1.pop() {
            if sender.is_ready() && since.elapsed() < IDLE {
                return Some(Sender::Http1(sender));
            }
        }
        None
    }

    /// Returns a connection, and whether it has been used before; `dial` makes one where there is none.
    pub(crate) async fn connect(
        &self,
        target: &Target,
        dial: impl Future<Output = Result<Sender, Denial>>,
    ) -> Result<(Sender, bool), Denial> {
        if let Some(sender) = self.take(target) {
            return Ok((sender, true));
        }
        let asked = Instant::now();
        let gate = {
            let mut targets = self.lock();
            let kept = entry(&mut targets, target);
            (target.h2 && !kept.only_http1).then(|| kept.gate.clone())
        };
        let _connecting = match gate {
            Some(gate) => Some(gate.lock_owned().await),
            None => None,
        };
        if let Some(sender) = self.take(target) {
            return Ok((sender, true));
        }
        if let Some(denial) = self.failed_since(target, asked) {
            return Err(denial);
        }
        match dial.await {
            Ok(sender) => {
                self.share(target, &sender);
                Ok((sender, false))
            }
            Err(denial) => {
                entry(&mut self.lock(), target).failed = Some((Instant::now(), denial.clone()));
                Err(denial)
            }
        }
    }

    fn failed_since(&self, target: &Target, asked: Instant) -> Option<Denial> {
        let targets = self.lock();
        let (at, denial) = targets.get(target)?.failed.as_ref()?;
        (*at > asked).then(|| denial.clone())
    }

    /// Lets others use a new connection, where it is one of HTTP/2.
    fn share(&self, target: &Target, sender: &Sender) {
        let mut targets = self.lock();
        let kept = entry(&mut targets, target);
        match sender {
            Sender::Http1(_) => kept.only_http1 = true,
            Sender::Http2(sender, place) => kept.http2.push(Shared {
                sender: sender.clone(),
                load: place.0.clone(),
                used: Instant::now(),
            }),
        }
    }

    /// Takes a connection back: one of HTTP/1 as soon as its answer has been read to the end. What is returned is dropped by then,
    /// and not before.
    pub(crate) fn give_back(self: &Arc<Self>, target: Target, sender: Sender) -> Option<Place> {
        let mut sender = match sender {
            Sender::Http1(sender) => sender,
            Sender::Http2(_, place) => return Some(place),
        };
        let pool = self.clone();
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                let mut targets = pool.lock();
                let kept = entry(&mut targets, &target);
                if kept.http1.len() < MAX_OF_TARGET {
                    kept.http1.push((sender, Instant::now()));
                }
            }
        });
        None
    }

    /// Forgets all of them: the policy is another.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Forgets those that have waited too long.
    pub(crate) fn tidy(&self) {
        self.lock().retain(|_, kept| {
            kept.http1
                .retain(|(sender, since)| !sender.is_closed() && since.elapsed() < IDLE);
            kept.http2.retain(|shared| {
                let busy = shared.load.load(Ordering::Acquire) > 0;
                !shared.sender.is_closed() && (busy || shared.used.elapsed() < IDLE)
            });
            let waited_for = Arc::strong_count(&kept.gate) > 1;
            waited_for || !kept.http1.is_empty() || !kept.http2.is_empty()
        });
    }
}

/// Returns the place of a connection that is nobody else's yet.
pub(super) fn first_place() -> Place {
    Place::on(&Arc::default())
}

fn entry<'a>(targets: &'a mut HashMap<Target, Kept>, target: &Target) -> &'a mut Kept {
    if targets.len() >= MAX_TARGETS && !targets.contains_key(target) {
        targets.clear();
    }
    targets.entry(target.clone()).or_default()
}
