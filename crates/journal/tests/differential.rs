//! SQLite and the oracle are asked the same things at random and must give the same answers, word for word.

use journal::conformance::append;
use journal::{Durability, Oracle, Sqlite, Store};
use protocol::{Epoch, EventId, Head, SandboxId, Seq};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::world::{Seed, seeds};

const STEPS: usize = 300;

struct World {
    rng: StdRng,
    oracle: Oracle,
    sqlite: Sqlite,
    /// What a caller may know of each sandbox, right or stale.
    known: Vec<(SandboxId, Seq, Epoch)>,
    ids: Vec<EventId>,
}

/// Asks both and compares.
macro_rules! both {
    ($world:expr, $store:ident => $call:expr) => {{
        let $store = &$world.oracle;
        let expected = $call.await;
        let $store = &$world.sqlite;
        let found = $call.await;
        assert_eq!(found, expected, "{}", stringify!($call));
        expected
    }};
}

impl World {
    fn pick(&mut self) -> (SandboxId, Seq, Epoch) {
        if self.known.is_empty() || self.rng.random_bool(0.03) {
            return (SandboxId(self.rng.random_range(0..40)), Seq(0), Epoch(1));
        }
        let index = self.rng.random_range(0..self.known.len());
        self.known[index]
    }

    fn know(&mut self, sandbox: SandboxId, change: impl FnOnce(&mut Seq, &mut Epoch)) {
        if let Some((_, seq, epoch)) = self.known.iter_mut().find(|(s, ..)| *s == sandbox) {
            change(seq, epoch);
        }
    }

    async fn create(&mut self) {
        let name = format!("n{}", self.rng.random_range(0..12))
            .parse()
            .unwrap();
        if let Ok(id) = both!(self, store => store.create(&name)) {
            self.known.push((id, Seq(0), Epoch(0)));
        }
    }

    async fn found(&mut self) {
        let name = format!("n{}", self.rng.random_range(0..12))
            .parse()
            .unwrap();
        let texts = &["one", "two"][..self.rng.random_range(0..3)];
        let first = append(SandboxId(0), 0, Epoch(1), texts);
        self.ids.extend(first.events.iter().map(|new| new.id));
        let founded =
            both!(self, store => store.found(&name, "node", first.at, first.events.clone()));
        if let Ok(lease) = founded {
            let known = (lease.sandbox, lease.head.seq, lease.epoch);
            self.known.push(known);
        }
    }

    async fn lease(&mut self) {
        let picked: Vec<SandboxId> = (0..self.rng.random_range(0..4))
            .map(|_| self.pick().0)
            .collect();
        let leases = both!(self, store => store.lease_many(&picked, "node"));
        // Some holders do not hear of it, and go on with the epoch they had.
        for lease in leases.unwrap_or_default() {
            if self.rng.random_bool(0.8) {
                self.know(lease.sandbox, |seq, epoch| {
                    (*seq, *epoch) = (lease.head.seq, lease.epoch);
                });
            }
        }
    }

    async fn append(&mut self) {
        let (sandbox, seq, epoch) = self.pick();
        let seq = match self.rng.random_range(0..10) {
            0 => Seq(self.rng.random_range(0..6)),
            _ => seq,
        };
        let texts: Vec<String> = (0..self.rng.random_range(0..4))
            .map(|n| "é\n\"x".repeat(n * 40))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut append = append(sandbox, seq.0, epoch, &texts);
        if self.rng.random_bool(0.3) {
            append.durability = Durability::Relaxed;
        }
        self.ids.extend(append.events.iter().map(|new| new.id));
        match both!(self, store => store.append(append.clone())) {
            Ok(head) => self.know(sandbox, |seq, _| *seq = head.seq),
            Err(journal::Error::WrongSequence { head, .. }) => {
                self.know(sandbox, |seq, _| *seq = head.seq);
            }
            Err(_) => {}
        }
    }

    async fn look(&mut self) {
        let (sandbox, seq, _) = self.pick();
        let from = Seq(self.rng.random_range(0..seq.0 + 3));
        let limit = self.rng.random_range(0..8);
        both!(self, store => store.read(sandbox, from, limit)).ok();
        let head = both!(self, store => store.head(sandbox));
        if let Some(id) = self.ids.last() {
            let id = match self.rng.random_bool(0.5) {
                true => *id,
                false => self.ids[self.rng.random_range(0..self.ids.len())],
            };
            both!(self, store => store.resolve(sandbox, seq, id)).ok();
        }
        let witness = match self.rng.random_range(0..4) {
            0 => None,
            1 => head.ok(),
            2 => Some(Head::EMPTY),
            _ => Some(Head {
                seq: from,
                hash: [9; 32],
            }),
        };
        both!(self, store => store.verify(sandbox, witness)).ok();
        let tail = |store: &dyn Store| store.tail(sandbox).map(|tail| *tail.borrow());
        assert_eq!(tail(&self.sqlite), tail(&self.oracle));
    }
}

async fn run(seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World {
        rng: StdRng::seed_from_u64(seed),
        oracle: Oracle::new(),
        sqlite: Sqlite::open(dir.path()).unwrap(),
        known: Vec::new(),
        ids: Vec::new(),
    };
    for _ in 0..STEPS {
        match world.rng.random_range(0..100) {
            0..5 => world.create().await,
            5..8 => world.found().await,
            8..18 => world.lease().await,
            18..70 => world.append().await,
            70..95 => world.look().await,
            95..97 => {
                let (sandbox, ..) = world.pick();
                both!(world, store => store.remove(sandbox)).ok();
                // Whoever knew it may not have heard.
                if world.rng.random_bool(0.7) {
                    world.known.retain(|(s, ..)| *s != sandbox);
                }
            }
            _ => {
                drop(world.sqlite);
                world.sqlite = Sqlite::open(dir.path()).unwrap();
            }
        }
    }
    for (sandbox, _) in both!(world, store => store.list()).unwrap() {
        both!(world, store => store.read(sandbox, Seq(1), usize::MAX)).unwrap();
        let head = both!(world, store => store.head(sandbox)).unwrap();
        both!(world, store => store.verify(sandbox, Some(head))).unwrap();
    }
}

#[tokio::test]
async fn sqlite_answers_as_the_oracle_does() {
    for seed in seeds(20) {
        let _seed = Seed("sqlite_answers_as_the_oracle_does", seed);
        run(seed).await;
    }
}
