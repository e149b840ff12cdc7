//! Connections that wait for their next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::{http1, http2};

use super::{Sender, Target};
use crate::body::Body;

/// Given up before the usual peers do it.
const IDLE: Duration = Duration::from_secs(30);
/// Idle connections of one target, and of a sandbox.
const MAX_OF_TARGET: usize = 16;
const MAX_TARGETS: usize = 128;

/// The idle connections of one sandbox.
#[derive(Default)]
pub(crate) struct Pool {
    targets: Mutex<HashMap<Target, Idle>>,
}

#[derive(Default)]
struct Idle {
    http1: Vec<(http1::SendRequest<Body>, Instant)>,
    /// Shared by all requests at a time.
    http2: Option<(http2::SendRequest<Body>, Instant)>,
}

impl Pool {
    /// Returns a connection that is still open, as far as we know.
    pub(crate) fn take(&self, target: &Target) -> Option<Sender> {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = targets.get_mut(target)?;
        if let Some((sender, used)) = &mut idle.http2 {
            if sender.is_ready() && used.elapsed() < IDLE {
                *used = Instant::now();
                return Some(Sender::Http2(sender.clone()));
            }
            idle.http2 = None;
        }
        while let Some((sender, since)) = idle.http1.pop() {
            if sender.is_ready() && since.elapsed() < IDLE {
                return Some(Sender::Http1(sender));
            }
        }
        None
    }

    /// Lets others use an HTTP/2 connection from now on.
    pub(crate) fn share(&self, target: &Target, sender: &Sender) {
        if let Sender::Http2(sender) = sender {
            let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = entry(&mut targets, target);
            idle.http2 = Some((sender.clone(), Instant::now()));
        }
    }

    /// Takes an HTTP/1 connection back as soon as its answer has been read to the end.
    pub(crate) fn give_back(self: &Arc<Self>, target: Target, sender: Sender) {
        let Sender::Http1(mut sender) = sender else {
            return;
        };
        let pool = self.clone();
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                let mut targets = pool.targets.lock().unwrap_or_else(PoisonError::into_inner);
                let idle = entry(&mut targets, &target);
                if idle.http1.len() < MAX_OF_TARGET {
                    idle.http1.push((sender, Instant::now()));
                }
            }
        });
    }

    /// Forgets all of them: the policy is another.
    pub(crate) fn clear(&self) {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.clear();
    }

    /// Forgets those that have waited too long.
    pub(crate) fn tidy(&self) {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.retain(|_, idle| {
            idle.http1
                .retain(|(sender, since)| !sender.is_closed() && since.elapsed() < IDLE);
            let stale = |(sender, used): &(http2::SendRequest<Body>, Instant)| {
                sender.is_closed() || used.elapsed() >= IDLE
            };
            if idle.http2.as_ref().is_some_and(stale) {
                // Requests that are on their way hold it open; it is only not given to new ones.
                idle.http2 = None;
            }
            !idle.http1.is_empty() || idle.http2.is_some()
        });
    }
}

fn entry<'a>(targets: &'a mut HashMap<Target, Idle>, target: &Target) -> &'a mut Idle {
    if targets.len() >= MAX_TARGETS && !targets.contains_key(target) {
        targets.clear();
    }
    targets.entry(target.clone()).or_default()
}
