//! The contract as a suite: what any engine must do, checked through the trait alone.
//!
//! An engine's tests call [`run`] with a way to make an empty store. A case asserts, so it panics where the contract is
//! broken, and names itself first. Durability across a crash cannot be shown through the trait; engines test it themselves.

use std::sync::Arc;

use protocol::{Epoch, Event, EventId, Head, SandboxId, SandboxName, Seq, Stored, UnixMillis};

use crate::{Append, BoxFuture, Durability, Error, Flaw, New, Resolution, Store};

type Case = fn(Arc<dyn Store>) -> BoxFuture<()>;

macro_rules! cases {
    ($($(#[$doc:meta])* async fn $name:ident($store:ident) $body:block)*) => {
        $($(#[$doc])* async fn $name($store: Arc<dyn Store>) $body)*
        /// Every case by name.
        pub const CASES: &[(&str, Case)] = &[
            $((stringify!($name), |store| Box::pin($name(store)))),*
        ];
    };
}

/// Runs every case, each on a store of its own.
///
/// # Panics
/// Where the engine breaks the contract.
pub async fn run(mut empty_store: impl FnMut() -> Arc<dyn Store>) {
    for (name, case) in CASES {
        tracing::info!(case = name, "conformance");
        case(empty_store()).await;
    }
}

/// Returns an event that holds a text, for tests.
#[must_use]
pub fn note(text: &str) -> Event {
    Event::LeaseTaken { node: text.into() }
}

/// Returns an append of events that hold these texts.
#[must_use]
pub fn append(sandbox: SandboxId, expected: u64, epoch: Epoch, texts: &[&str]) -> Append {
    Append {
        sandbox,
        expected: Seq(expected),
        epoch,
        at: UnixMillis(1_700_000_000_000),
        events: texts.iter().map(|text| New::from(note(text))).collect(),
        durability: Durability::Now,
    }
}

fn name(text: &str) -> SandboxName {
    text.parse().expect("a test uses valid names")
}

async fn journal(store: &Arc<dyn Store>, called: &str) -> (SandboxId, Epoch) {
    let id = store.create(&name(called)).await.expect("a free name");
    let lease = store.lease(id, "node").await.expect("a new journal");
    (id, lease.epoch)
}

async fn texts(store: &Arc<dyn Store>, id: SandboxId, from: u64, limit: usize) -> Vec<String> {
    let events = store.read(id, Seq(from), limit).await.expect("readable");
    for (event, seq) in events.iter().zip(from.max(1)..) {
        assert_eq!(event.seq, Seq(seq), "places are dense");
    }
    events.iter().map(text).collect()
}

fn text(stored: &Stored) -> String {
    match &stored.event {
        Event::LeaseTaken { node } => node.clone(),
        other => format!("{other:?}"),
    }
}

cases! {
    async fn an_id_is_never_given_again(store) {
        let first = store.create(&name("a")).await.expect("a free name");
        let second = store.create(&name("b")).await.expect("a free name");
        assert!(second > first);
        store.remove(second).await.expect("it is there");
        let third = store.create(&name("b")).await.expect("the name is free again");
        assert!(third > second);
        let list = store.list().await.expect("a list");
        assert_eq!(list, [(first, name("a")), (third, name("b"))]);
    }

    async fn a_name_is_taken_once(store) {
        let by = store.create(&name("a")).await.expect("a free name");
        let refused = store.create(&name("a")).await;
        assert_eq!(refused, Err(Error::NameTaken { name: name("a"), by }));
    }

    async fn a_journal_is_founded_with_its_first_events_or_not_at_all(store) {
        let by = store.create(&name("a")).await.expect("a free name");
        let first = append(SandboxId(0), 0, Epoch(1), &["one", "two"]);
        let refused = store.found(&name("a"), "node", first.at, first.events.clone()).await;
        assert_eq!(refused, Err(Error::NameTaken { name: name("a"), by }));
        let nothing = store.found(&name("b"), "node", first.at, Vec::new()).await;
        assert_eq!(nothing, Err(Error::NothingToAppend { sandbox: SandboxId(0) }));
        assert_eq!(store.list().await, Ok(vec![(by, name("a"))]));

        let lease = store.found(&name("b"), "node", first.at, first.events).await.expect("a free name");
        assert!(lease.sandbox > by);
        assert_eq!(lease.epoch, Epoch(1));
        assert_eq!(store.head(lease.sandbox).await, Ok(lease.head));
        assert_eq!(texts(&store, lease.sandbox, 1, 9).await, ["one", "two"]);
        // It is leased: it goes on at once, takes no copy, and is no litter.
        let next = store.append(append(lease.sandbox, 2, lease.epoch, &["three"])).await;
        assert_eq!(next.expect("the lease holds").seq, Seq(3));
        assert_eq!(store.unleased().await, Ok(vec![by]));
        let whole = store.verify(lease.sandbox, None).await.expect("a report");
        assert_eq!((whole.head.seq, whole.damage), (Seq(3), Vec::new()));
    }

    async fn an_unknown_sandbox_is_refused_everywhere(store) {
        let sandbox = SandboxId(77);
        let unknown = Error::UnknownSandbox { sandbox };
        let (id, _) = journal(&store, "a").await;
        assert_eq!(store.append(append(sandbox, 0, Epoch(1), &["x"])).await, Err(unknown.clone()));
        assert_eq!(store.lease(sandbox, "n").await, Err(unknown.clone()));
        assert_eq!(store.lease_many(&[id, sandbox], "n").await, Err(unknown.clone()));
        assert_eq!(store.head(sandbox).await, Err(unknown.clone()));
        assert_eq!(store.read(sandbox, Seq(1), 9).await, Err(unknown.clone()));
        assert_eq!(store.resolve(sandbox, Seq(1), EventId([0; 16])).await, Err(unknown.clone()));
        assert_eq!(store.remove(sandbox).await, Err(unknown.clone()));
        assert_eq!(store.verify(sandbox, None).await, Err(unknown.clone()));
        assert_eq!(store.tail(sandbox).map(|_| ()), Err(unknown));
        // All or none: the known one of the pair was not leased.
        assert_eq!(store.lease(id, "n").await.expect("a lease").epoch, Epoch(2));
    }

    async fn events_are_read_as_they_were_written(store) {
        let (id, epoch) = journal(&store, "a").await;
        let wanted = append(id, 0, epoch, &["one", "two", "three"]);
        let head = store.append(wanted.clone()).await.expect("it fits");
        let events = store.read(id, Seq(1), 10).await.expect("readable");
        assert_eq!(events.len(), 3);
        for ((stored, new), seq) in events.iter().zip(&wanted.events).zip(1..) {
            assert_eq!(stored.seq, Seq(seq));
            assert_eq!((stored.id, &stored.event), (new.id, &new.event));
            assert_eq!((stored.epoch, stored.at), (epoch, wanted.at));
        }
        assert_eq!(head, Head { seq: Seq(3), hash: events[2].hash });
        assert_eq!(store.head(id).await, Ok(head));
    }

    async fn a_read_keeps_to_its_range(store) {
        let (id, epoch) = journal(&store, "a").await;
        assert!(texts(&store, id, 0, 5).await.is_empty());
        store.append(append(id, 0, epoch, &["1", "2"])).await.expect("it fits");
        store.append(append(id, 2, epoch, &["3"])).await.expect("it fits");
        assert_eq!(texts(&store, id, 0, 9).await, ["1", "2", "3"]);
        assert_eq!(texts(&store, id, 2, 1).await, ["2"]);
        assert_eq!(texts(&store, id, 3, 9).await, ["3"]);
        assert!(texts(&store, id, 4, 9).await.is_empty());
        assert!(texts(&store, id, 1, 0).await.is_empty());
        assert!(texts(&store, id, u64::MAX, usize::MAX).await.is_empty());
    }

    async fn a_wrong_place_is_refused(store) {
        let (sandbox, epoch) = journal(&store, "a").await;
        let head = store.append(append(sandbox, 0, epoch, &["1"])).await.expect("it fits");
        for expected in [0, 2, u64::MAX] {
            let refused = store.append(append(sandbox, expected, epoch, &["x"])).await;
            assert_eq!(refused, Err(Error::WrongSequence { sandbox, head }));
        }
        assert_eq!(texts(&store, sandbox, 1, 9).await, ["1"]);
    }

    async fn a_stale_epoch_cannot_append(store) {
        let (sandbox, old) = journal(&store, "a").await;
        store.append(append(sandbox, 0, old, &["1"])).await.expect("it fits");
        let lease = store.lease(sandbox, "other").await.expect("a lease");
        assert_eq!(lease.epoch, old.next());
        assert_eq!(lease.head, store.head(sandbox).await.expect("a head"));
        let fenced = Error::Fenced { sandbox, given: old, current: lease.epoch };
        assert_eq!(store.append(append(sandbox, 1, old, &["x"])).await, Err(fenced.clone()));
        // A zombie that reads the head again and retries does not get in, and neither does a guess at the future.
        store.append(append(sandbox, 1, lease.epoch, &["2"])).await.expect("it fits");
        assert_eq!(store.append(append(sandbox, 2, old, &["x"])).await, Err(fenced));
        let ahead = lease.epoch.next();
        let refused = store.append(append(sandbox, 2, ahead, &["x"])).await;
        assert_eq!(refused, Err(Error::Fenced { sandbox, given: ahead, current: lease.epoch }));
        assert_eq!(texts(&store, sandbox, 1, 9).await, ["1", "2"]);
    }

    async fn nobody_appends_without_a_lease(store) {
        let sandbox = store.create(&name("a")).await.expect("a free name");
        let refused = store.append(append(sandbox, 0, Epoch(1), &["x"])).await;
        assert_eq!(refused, Err(Error::Fenced { sandbox, given: Epoch(1), current: Epoch(0) }));
    }

    async fn many_leases_are_taken_at_once(store) {
        let mut ids = Vec::new();
        for n in 0..20 {
            ids.push(store.create(&name(&format!("s{n}"))).await.expect("a free name"));
        }
        store.lease(ids[3], "n").await.expect("a lease");
        ids.reverse();
        let leases = store.lease_many(&ids, "n").await.expect("leases");
        assert_eq!(leases.iter().map(|l| l.sandbox).collect::<Vec<_>>(), ids);
        let second = leases.iter().filter(|l| l.epoch == Epoch(2)).count();
        assert_eq!((leases.len(), second), (20, 1));
        assert_eq!(store.lease_many(&[], "n").await, Ok(Vec::new()));
    }

    async fn calls_are_written_in_their_order(store) {
        let (id, epoch) = journal(&store, "a").await;
        let pending: Vec<_> = (0..50)
            .map(|n| {
                let mut append = append(id, n, epoch, &[&n.to_string()]);
                if n % 3 != 0 {
                    append.durability = Durability::Relaxed;
                }
                store.append(append)
            })
            .collect();
        // The last is awaited first, some are never awaited.
        for (n, answer) in pending.into_iter().enumerate().rev().step_by(2) {
            assert_eq!(answer.await.expect("it fits").seq, Seq(n as u64 + 1));
        }
        let wanted: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        assert_eq!(texts(&store, id, 1, 99).await, wanted);
    }

    async fn a_relaxed_append_becomes_durable_by_itself(store) {
        let (id, epoch) = journal(&store, "a").await;
        let mut tail = store.tail(id).expect("a tail");
        let mut relaxed = append(id, 0, epoch, &["1"]);
        relaxed.durability = Durability::Relaxed;
        drop(store.append(relaxed));
        tail.wait_for(|seq| *seq == Seq(1)).await.expect("the store lives");
        assert_eq!(texts(&store, id, 1, 9).await, ["1"]);
    }

    async fn an_append_is_whole_or_not_at_all(store) {
        let (sandbox, epoch) = journal(&store, "a").await;
        assert_eq!(
            store.append(append(sandbox, 0, epoch, &[])).await,
            Err(Error::NothingToAppend { sandbox })
        );
        let big = "x".repeat(crate::MAX_APPEND_BYTES / 2);
        let refused = store.append(append(sandbox, 0, epoch, &["1", &big, &big])).await;
        assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
        assert_eq!(store.head(sandbox).await, Ok(Head::EMPTY));
        let head = store.append(append(sandbox, 0, epoch, &["1", &big])).await.expect("it fits");
        assert_eq!(head.seq, Seq(2));
        assert_eq!(texts(&store, sandbox, 2, 1).await[0].len(), big.len());
    }

    async fn a_lost_reply_is_resolved_by_the_event_id(store) {
        let (id, epoch) = journal(&store, "a").await;
        let mine = append(id, 0, epoch, &["same"]);
        let theirs = append(id, 0, epoch, &["same"]);
        let (my_id, their_id) = (mine.events[0].id, theirs.events[0].id);
        assert_eq!(store.resolve(id, Seq(1), my_id).await, Ok(Resolution::None));
        let head = store.append(mine).await.expect("it fits");
        assert_eq!(store.resolve(id, Seq(1), my_id).await, Ok(Resolution::Mine(head)));
        // An equal event of somebody else is not mine.
        assert_eq!(store.resolve(id, Seq(1), their_id).await, Ok(Resolution::Other(my_id)));
        assert_eq!(store.resolve(id, Seq(2), my_id).await, Ok(Resolution::None));
        assert_eq!(store.resolve(id, Seq(0), my_id).await, Ok(Resolution::None));
    }

    async fn the_tail_follows_the_head(store) {
        let (id, epoch) = journal(&store, "a").await;
        let mut tail = store.tail(id).expect("a tail");
        assert_eq!(*tail.borrow_and_update(), Seq(0));
        store.append(append(id, 0, epoch, &["1", "2"])).await.expect("it fits");
        tail.changed().await.expect("the store lives");
        assert_eq!(*tail.borrow_and_update(), Seq(2));
        assert_eq!(*store.tail(id).expect("a tail").borrow(), Seq(2));
        store.remove(id).await.expect("it is there");
        assert!(tail.changed().await.is_err(), "a removed journal has no tail");
    }

    async fn a_copy_goes_on_where_the_original_was(store) {
        let (from, epoch) = journal(&store, "from").await;
        store.append(append(from, 0, epoch, &["a", "b"])).await.expect("an append");
        let later = store.lease(from, "node").await.expect("a lease").epoch;
        store.append(append(from, 2, later, &["c"])).await.expect("an append");
        let events = store.export(from, Seq(1), 9).await.expect("readable");
        let to = store.create(&name("to")).await.expect("a free name");
        assert_eq!(store.unleased().await, Ok(vec![to]));
        store.import(to, events[..1].to_vec()).await.expect("the first event");
        let again = store.import(to, events[..1].to_vec()).await;
        assert!(matches!(again, Err(Error::Damaged { .. })), "{again:?}");
        let mut other = events[1].clone();
        other.at = UnixMillis(1);
        let refused = store.import(to, vec![other, events[2].clone()]).await;
        assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
        let head = store.import(to, events[1..].to_vec()).await.expect("the rest");
        assert_eq!(Ok(head), store.head(from).await);
        assert_eq!(store.export(to, Seq(1), 9).await, Ok(events.clone()));
        let lease = store.lease(to, "node").await.expect("a lease");
        assert!(lease.epoch > later, "what was written there cannot be written again");
        assert_eq!(store.unleased().await, Ok(Vec::new()));
        let refused = store.import(to, events[2..].to_vec()).await;
        assert_eq!(refused, Err(Error::Leased { sandbox: to, current: lease.epoch }));
        store.append(append(to, 3, lease.epoch, &["d"])).await.expect("an append");
        assert_eq!(texts(&store, to, 1, 9).await, ["a", "b", "c", "d"]);
        assert!(store.verify(to, None).await.expect("a report").damage.is_empty());
    }

    async fn a_removed_journal_is_gone(store) {
        let (sandbox, epoch) = journal(&store, "a").await;
        store.append(append(sandbox, 0, epoch, &["1"])).await.expect("it fits");
        store.remove(sandbox).await.expect("it is there");
        let unknown = Error::UnknownSandbox { sandbox };
        assert_eq!(store.remove(sandbox).await, Err(unknown.clone()));
        assert_eq!(store.read(sandbox, Seq(1), 9).await, Err(unknown.clone()));
        assert_eq!(store.append(append(sandbox, 1, epoch, &["x"])).await, Err(unknown));
        let (next, epoch) = journal(&store, "a").await;
        assert_eq!(epoch, Epoch(1));
        assert!(texts(&store, next, 1, 9).await.is_empty());
    }

    async fn journals_do_not_see_each_other(store) {
        let (a, epoch_a) = journal(&store, "a").await;
        let (b, epoch_b) = journal(&store, "b").await;
        for n in 0..20_u64 {
            store.append(append(a, n, epoch_a, &[&format!("a{n}")])).await.expect("it fits");
            store.append(append(b, n, epoch_b, &[&format!("b{n}")])).await.expect("it fits");
        }
        assert!(texts(&store, a, 1, 99).await.iter().all(|t| t.starts_with('a')));
        store.remove(a).await.expect("it is there");
        assert_eq!(texts(&store, b, 1, 99).await.len(), 20);
        assert!(store.verify(b, None).await.expect("a report").is_whole());
    }

    async fn a_witness_shows_a_lost_tail(store) {
        let (id, epoch) = journal(&store, "a").await;
        let first = store.append(append(id, 0, epoch, &["1"])).await.expect("it fits");
        let head = store.append(append(id, 1, epoch, &["2"])).await.expect("it fits");
        for witness in [None, Some(Head::EMPTY), Some(first), Some(head)] {
            let report = store.verify(id, witness).await.expect("a report");
            assert!(report.is_whole(), "{report}");
            assert_eq!((report.head, report.readable), (head, Seq(2)));
        }
        let ahead = Head { seq: Seq(5), hash: [7; 32] };
        let report = store.verify(id, Some(ahead)).await.expect("a report");
        assert_eq!(report.damage.len(), 1);
        assert_eq!(report.damage[0].flaw, Flaw::WitnessAhead { head: Seq(2) });
        assert_eq!((report.damage[0].seq, report.readable), (Seq(5), Seq(2)));
        let other = Head { seq: Seq(1), hash: [7; 32] };
        let report = store.verify(id, Some(other)).await.expect("a report");
        assert_eq!(report.damage.len(), 1);
        assert_eq!((report.damage[0].seq, &report.damage[0].flaw), (Seq(1), &Flaw::WitnessDisagrees));
    }

    async fn the_hash_chain_holds(store) {
        let (id, epoch) = journal(&store, "a").await;
        store.append(append(id, 0, epoch, &["1", "2"])).await.expect("it fits");
        let epoch = store.lease(id, "n").await.expect("a lease").epoch;
        store.append(append(id, 2, epoch, &["3"])).await.expect("it fits");
        let mut prev = Head::EMPTY.hash;
        for stored in store.read(id, Seq(1), 9).await.expect("readable") {
            let payload = serde_json::to_vec(&stored.event).expect("an event is JSON");
            let hash = protocol::chain_hash(
                &prev, stored.seq, stored.id, stored.epoch, stored.at, &payload,
            );
            assert_eq!(hash, stored.hash, "event {}", stored.seq);
            prev = hash;
        }
        assert_eq!(store.head(id).await.expect("a head").hash, prev);
    }

    async fn a_working_store_has_not_failed(store) {
        assert_eq!(*store.failed().borrow(), None);
    }
}
