//! A byte that goes bad is told: every acknowledged event is either read as it was written, or its loss is reported.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use journal::sqlite::DATABASE_FILE;
use journal::{Error, Flaw, OnDamagedWal, OpenError, Sqlite, Store};
use protocol::Seq;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rusqlite::Connection;

use crate::world::{Seed, Written, copy, fill, seeds};

const WAL_FILE: &str = "journal.db-wal";

/// Returns how many of the journals were reported as damaged, after checking that the others are as they were written.
async fn check(store: &Sqlite, written: &[Written]) -> usize {
    let mut reported = 0;
    for journal in written {
        let report = match store.verify(journal.sandbox, Some(journal.head())).await {
            Ok(report) => report,
            Err(Error::UnknownSandbox { .. }) => {
                reported += 1;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        if !report.is_whole() {
            reported += 1;
        }
        let readable = usize::try_from(report.readable.0).unwrap();
        assert!(
            readable >= journal.events.len() || !report.is_whole(),
            "a whole journal of {readable} events"
        );
        for stored in &journal.events {
            let found = store.read(journal.sandbox, stored.seq, 1).await;
            match found {
                Ok(events) if events.first() == Some(stored) => {}
                Ok(events) if events.is_empty() => {
                    assert!(stored.seq > report.readable && !report.is_whole());
                }
                Ok(events) => panic!("{stored:?} was read as {events:?}"),
                Err(Error::Damaged { damage, .. }) => {
                    assert_eq!(damage.seq, stored.seq);
                    assert!(stored.seq > report.readable, "{report} but {damage}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    reported
}

/// Opens what was damaged, going on where that is possible; none where it is refused.
fn open(dir: &Path) -> Option<Sqlite> {
    match Sqlite::open(dir) {
        Ok(store) => Some(store),
        Err(OpenError::DamagedWal { .. }) => Sqlite::open_with(dir, OnDamagedWal::KeepCopy).ok(),
        Err(_) => None,
    }
}

fn used_bytes(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    bytes
        .iter()
        .rposition(|b| *b != 0)
        .map_or(0, |n| n as u64 + 1)
}

fn flip(path: &Path, at: u64, mask: u8) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ mask], at).unwrap();
}

/// Leaves a live store's files, with events in both the database and the log.
async fn leave(dir: &Path) -> Vec<Written> {
    let live = tempfile::tempdir().unwrap();
    let store = Sqlite::open(live.path()).unwrap();
    fill(&store, 2, 40).await;
    drop(store);
    let store = Sqlite::open(live.path()).unwrap();
    let mut written = Vec::new();
    for (sandbox, _) in store.list().await.unwrap() {
        let lease = store.lease(sandbox, "n").await.unwrap();
        for n in 0..30 {
            let append =
                journal::conformance::append(sandbox, 40 + n, lease.epoch, &["later", "y"][..1]);
            store.append(append).await.unwrap();
        }
        let events = store.read(sandbox, Seq(1), usize::MAX).await.unwrap();
        assert_eq!(events.len(), 70);
        written.push(Written { sandbox, events });
    }
    copy(live.path(), dir);
    written
}

async fn damage_at_random(test: &'static str, file: &str, default: u64, truncate: bool) {
    let origin = tempfile::tempdir().unwrap();
    let written = leave(origin.path()).await;
    let used = used_bytes(&origin.path().join(file));
    let mut told = 0;
    for seed in seeds(default) {
        let _seed = Seed(test, seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let dir = tempfile::tempdir().unwrap();
        copy(origin.path(), dir.path());
        let at = rng.random_range(0..used);
        let path = dir.path().join(file);
        if truncate {
            OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(at)
                .unwrap();
        } else {
            flip(&path, at, 1 << rng.random_range(0..8));
        }
        println!("seed {seed}: byte {at} of {used}");
        match open(dir.path()) {
            Some(store) => told += check(&store, &written).await.min(1),
            None => told += 1,
        }
    }
    println!("{test}: {told} told");
    assert!(told > 0, "no damage was ever noticed");
}

#[tokio::test]
async fn a_flipped_bit_in_the_database_is_told() {
    let test = "a_flipped_bit_in_the_database_is_told";
    damage_at_random(test, DATABASE_FILE, 60, false).await;
}

#[tokio::test]
async fn a_flipped_bit_in_the_log_is_told() {
    damage_at_random("a_flipped_bit_in_the_log_is_told", WAL_FILE, 60, false).await;
}

#[tokio::test]
async fn a_truncated_database_is_told() {
    damage_at_random("a_truncated_database_is_told", DATABASE_FILE, 20, true).await;
}

#[tokio::test]
async fn a_truncated_log_is_told() {
    damage_at_random("a_truncated_log_is_told", WAL_FILE, 20, true).await;
}

#[tokio::test]
async fn undamaged_files_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let written = leave(dir.path()).await;
    assert!(used_bytes(&dir.path().join(WAL_FILE)) > 0);
    let store = Sqlite::open(dir.path()).unwrap();
    assert_eq!(check(&store, &written).await, 0);
}

#[tokio::test]
async fn a_commit_lost_from_the_middle_of_the_log_is_refused_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let written = leave(dir.path()).await;
    let path = dir.path().join(WAL_FILE);
    let used = used_bytes(&path);
    flip(&path, used / 2, 1);
    let before = std::fs::read(&path).unwrap();
    let refused = Sqlite::open(dir.path()).err().unwrap();
    let OpenError::DamagedWal { damage, .. } = &refused else {
        panic!("{refused}");
    };
    assert!(damage.commits > 10, "{damage}");
    assert_eq!(
        std::fs::read(&path).unwrap(),
        before,
        "the refusal changed the log"
    );
    let store = Sqlite::open_with(dir.path(), OnDamagedWal::KeepCopy).unwrap();
    let copy = dir.path().join("journal.db-wal.damaged-1");
    assert_eq!(std::fs::read(copy).unwrap(), before);
    assert!(check(&store, &written).await > 0);
}

#[tokio::test]
async fn a_damaged_log_header_is_refused_at_open() {
    let dir = tempfile::tempdir().unwrap();
    leave(dir.path()).await;
    flip(&dir.path().join(WAL_FILE), 3, 4);
    let refused = Sqlite::open(dir.path()).err().unwrap();
    assert!(matches!(refused, OpenError::DamagedWal { .. }), "{refused}");
}

/// Changes a cleanly closed database by SQL and says what verify finds in the first journal.
async fn tampered(sql: &str) -> (Sqlite, Vec<Written>, journal::Report, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(dir.path()).unwrap();
    let written = fill(&store, 2, 10).await;
    drop(store);
    Connection::open(dir.path().join(DATABASE_FILE))
        .unwrap()
        .execute_batch(sql)
        .unwrap();
    let store = Sqlite::open(dir.path()).unwrap();
    let report = store.verify(written[0].sandbox, None).await.unwrap();
    (store, written, report, dir)
}

async fn cannot_be_written(store: &Sqlite, written: &Written) {
    let refused = store.lease(written.sandbox, "n").await.unwrap_err();
    assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
    store.remove(written.sandbox).await.unwrap();
}

type IsIt = fn(&Flaw) -> bool;

#[tokio::test]
async fn each_kind_of_damage_is_named() {
    let cases: [(&str, u64, IsIt, u64); 9] = [
        (
            "UPDATE event SET payload = replace(payload, 'x', 'y') WHERE sandbox = 1 AND seq = 4",
            4,
            |f| *f == Flaw::BadCrc,
            3,
        ),
        (
            "UPDATE event SET at_ms = at_ms + 1 WHERE sandbox = 1 AND seq = 4",
            4,
            |f| *f == Flaw::ChainBreak,
            3,
        ),
        (
            "UPDATE event SET event_id = randomblob(16) WHERE sandbox = 1 AND seq = 1",
            1,
            |f| *f == Flaw::ChainBreak,
            0,
        ),
        (
            "DELETE FROM event WHERE sandbox = 1 AND seq = 4",
            4,
            |f| *f == Flaw::Gap,
            3,
        ),
        (
            "UPDATE event SET v = 9 WHERE sandbox = 1 AND seq = 4",
            4,
            |f| *f == Flaw::NewerVersion { version: 9 },
            3,
        ),
        (
            "DELETE FROM event WHERE sandbox = 1 AND seq > 7",
            8,
            |f| *f == Flaw::MissingTail { head: Seq(10) },
            7,
        ),
        (
            "UPDATE head SET hash = zeroblob(32) WHERE sandbox = 1",
            10,
            |f| *f == Flaw::HeadDisagrees,
            9,
        ),
        (
            "UPDATE head SET epoch = 0 WHERE sandbox = 1",
            1,
            |f| matches!(f, Flaw::EpochAhead { .. }),
            0,
        ),
        (
            "UPDATE head SET seq = 9, hash = (SELECT hash FROM event WHERE sandbox = 1 AND seq = 9) WHERE sandbox = 1",
            10,
            |f| *f == Flaw::BeyondHead { head: Seq(9) },
            9,
        ),
    ];
    for (sql, seq, is_it, readable) in cases {
        let (store, written, report, _dir) = tampered(sql).await;
        let first = report
            .damage
            .first()
            .unwrap_or_else(|| panic!("{sql}: nothing found"));
        assert_eq!(first.seq, Seq(seq), "{sql}: {report}");
        assert!(is_it(&first.flaw), "{sql}: {report}");
        assert_eq!(report.readable, Seq(readable), "{sql}: {report}");
        // Before the damage everything reads; the other journal is not touched by it.
        let sandbox = written[0].sandbox;
        let events = store
            .read(sandbox, Seq(1), usize::MAX)
            .await
            .unwrap_or_default();
        assert!(events.len() as u64 >= readable && written[0].events.starts_with(&events));
        assert!(
            store
                .verify(written[1].sandbox, None)
                .await
                .unwrap()
                .is_whole()
        );
        if seq >= 8 {
            cannot_be_written(&store, &written[0]).await;
        }
    }
}

#[tokio::test]
async fn reading_a_damaged_event_names_it() {
    let (store, written, _, _dir) = tampered(
        "UPDATE event SET payload = replace(payload, 'x', 'y') WHERE sandbox = 1 AND seq = 4",
    )
    .await;
    let sandbox = written[0].sandbox;
    assert_eq!(store.read(sandbox, Seq(2), 9).await.unwrap().len(), 2);
    let refused = store.read(sandbox, Seq(4), 9).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the journal of sandbox 1 is damaged: event 4 does not have its checksum"
    );
    assert_eq!(
        store.read(sandbox, Seq(5), 1).await.unwrap()[0],
        written[0].events[4]
    );
}
