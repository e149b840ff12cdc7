//! Asks for a thing once where many want it at the same time, and remembers the answer while it is good.
//!
//! A failure is told to all who waited for it and not remembered. Who stops waiting disturbs nobody; when nobody waits
//! any more, the question is dropped and what it had started with it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};

/// A question on its way.
type Asking<V, E> = BoxFuture<'static, Result<V, E>>;

/// ```text
/// (none) ──get──▶ asking ──answer──▶ known ──get, no longer good──▶ asking
///    ▲              │ failed            │ forgotten
///    └──────────────┴───────────────────┘
/// ```
enum Slot<V, E> {
    Asking {
        ticket: u64,
        answer: WeakShared<Asking<V, E>>,
    },
    Known(V),
}

/// What is asked for and known, by key.
pub(crate) struct Flights<K, V, E> {
    slots: Mutex<Slots<K, V, E>>,
}

struct Slots<K, V, E> {
    by_key: HashMap<K, Slot<V, E>>,
    tickets: u64,
}

impl<K, V, E> Flights<K, V, E>
where
    K: Clone + Eq + Hash,
    V: Clone,
    E: Clone,
{
    pub(crate) fn new() -> Self {
        Self {
            slots: Mutex::new(Slots {
                by_key: HashMap::new(),
                tickets: 0,
            }),
        }
    }

    /// Returns what is known if it is still good, joins those who wait for an answer, or asks.
    pub(crate) async fn get(
        &self,
        key: &K,
        still_good: impl Fn(&V) -> bool,
        ask: impl FnOnce() -> Asking<V, E>,
    ) -> Result<V, E> {
        let (ticket, answer) = match self.join(key, still_good, ask) {
            Joined::Known(value) => return Ok(value),
            Joined::Asking(ticket, answer) => (ticket, answer),
        };
        // One more is held until the answer is kept, so that nobody comes in between and asks again.
        let outcome = answer.clone().await;
        let mut slots = self.lock();
        let ours = matches!(
            slots.by_key.get(key),
            Some(Slot::Asking { ticket: asked, .. }) if *asked == ticket
        );
        if ours {
            match &outcome {
                Ok(value) => slots.by_key.insert(key.clone(), Slot::Known(value.clone())),
                Err(_) => slots.by_key.remove(key),
            };
        }
        outcome
    }

    /// Forgets an answer. Who asks from now on does not get one that is on its way either.
    pub(crate) fn forget(&self, key: &K) {
        self.lock().by_key.remove(key);
    }

    /// Forgets every answer that is no longer good.
    pub(crate) fn sweep(&self, still_good: impl Fn(&V) -> bool) {
        self.lock().by_key.retain(|_, slot| match slot {
            Slot::Known(value) => still_good(value),
            Slot::Asking { .. } => true,
        });
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.lock().by_key.clear();
    }

    /// Returns how many answers are known.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        let slots = self.lock();
        let known = |slot: &&Slot<V, E>| matches!(slot, Slot::Known(_));
        slots.by_key.values().filter(known).count()
    }

    fn join(
        &self,
        key: &K,
        still_good: impl Fn(&V) -> bool,
        ask: impl FnOnce() -> Asking<V, E>,
    ) -> Joined<V, E> {
        let mut slots = self.lock();
        let under_way = match slots.by_key.get(key) {
            Some(Slot::Known(value)) if still_good(value) => return Joined::Known(value.clone()),
            Some(Slot::Asking { ticket, answer }) => {
                answer.upgrade().map(|answer| (*ticket, answer))
            }
            Some(Slot::Known(_)) | None => None,
        };
        if let Some((ticket, answer)) = under_way {
            return Joined::Asking(ticket, answer);
        }
        let answer = ask().shared();
        slots.tickets += 1;
        let ticket = slots.tickets;
        if let Some(answer) = answer.downgrade() {
            let slot = Slot::Asking { ticket, answer };
            slots.by_key.insert(key.clone(), slot);
        }
        Joined::Asking(ticket, answer)
    }

    fn lock(&self) -> MutexGuard<'_, Slots<K, V, E>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Joined<V, E> {
    Known(V),
    Asking(u64, Shared<Asking<V, E>>),
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    type Test = Flights<&'static str, u32, String>;

    #[tokio::test]
    async fn many_who_want_one_thing_ask_once() {
        let (flights, asked, go) = (Test::new(), AtomicUsize::new(0), Arc::new(Notify::new()));
        let one = || {
            flights.get(
                &"a",
                |_| true,
                || {
                    asked.fetch_add(1, Ordering::Relaxed);
                    let go = go.clone();
                    Box::pin(async move {
                        go.notified().await;
                        Ok(7)
                    })
                },
            )
        };
        let all = futures_util::future::join_all((0..50).map(|_| one()));
        go.notify_one();
        assert_eq!(all.await, vec![Ok(7); 50]);
        assert_eq!(one().await, Ok(7));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_who_waited_and_not_remembered() {
        let (flights, asked) = (Test::new(), AtomicUsize::new(0));
        let one = || {
            flights.get(
                &"a",
                |_| true,
                || {
                    let nth = asked.fetch_add(1, Ordering::Relaxed);
                    Box::pin(async move {
                        tokio::task::yield_now().await;
                        Err(format!("no {nth}"))
                    })
                },
            )
        };
        let (first, second) = tokio::join!(one(), one());
        assert_eq!((first, second), (Err("no 0".into()), Err("no 0".into())));
        assert_eq!(one().await, Err("no 1".into()));
        assert_eq!(flights.known(), 0);
    }

    #[tokio::test]
    async fn an_answer_that_was_asked_for_before_a_change_is_not_kept_after_it() {
        let (flights, go) = (Test::new(), Arc::new(Notify::new()));
        let old = flights.get(
            &"a",
            |_| true,
            || {
                let go = go.clone();
                Box::pin(async move {
                    go.notified().await;
                    Ok(1)
                })
            },
        );
        let new = async {
            flights.forget(&"a");
            let new = flights
                .get(&"a", |_| true, || Box::pin(async { Ok(2) }))
                .await;
            go.notify_one();
            new
        };
        assert_eq!(tokio::join!(old, new), (Ok(1), Ok(2)));
        let now = flights.get(&"a", |_| true, || Box::pin(async { Ok(3) }));
        assert_eq!(now.await, Ok(2));
    }

    #[tokio::test]
    async fn an_old_answer_does_not_take_the_place_of_a_question_that_is_still_open() {
        let (flights, go_old, go_new) = (
            Test::new(),
            Arc::new(Notify::new()),
            Arc::new(Notify::new()),
        );
        let asking = |go: &Arc<Notify>, answer| {
            let go = go.clone();
            flights.get(
                &"a",
                |_| true,
                move || {
                    Box::pin(async move {
                        go.notified().await;
                        Ok(answer)
                    })
                },
            )
        };
        let mut old = Box::pin(asking(&go_old, 1));
        assert_eq!((&mut old).now_or_never(), None);
        flights.forget(&"a");
        let mut new = Box::pin(asking(&go_new, 2));
        assert_eq!((&mut new).now_or_never(), None);
        go_old.notify_one();
        assert_eq!(old.await, Ok(1));
        let third = asking(&go_new, 3);
        go_new.notify_one();
        assert_eq!(tokio::join!(new, third), (Ok(2), Ok(2)));
    }

    #[tokio::test]
    async fn a_question_nobody_waits_for_is_dropped() {
        struct Told(Arc<Notify>);
        impl Drop for Told {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        let (flights, dropped) = (Test::new(), Arc::new(Notify::new()));
        let told = Told(dropped.clone());
        {
            let mut asking = Box::pin(flights.get(
                &"a",
                |_| true,
                || {
                    Box::pin(async move {
                        let _told = told;
                        std::future::pending().await
                    })
                },
            ));
            assert_eq!((&mut asking).now_or_never(), None);
        }
        dropped.notified().await;
        let again = flights.get(&"a", |_| true, || Box::pin(async { Ok(2) }));
        assert_eq!(again.await, Ok(2));
        flights.sweep(|_| false);
        assert_eq!(flights.known(), 0);
    }
}
