//! Events are found whether or not they have an index row yet, and nothing of a removed journal stays.

use std::path::Path;

use journal::conformance::append;
use journal::{Sqlite, Store};
use protocol::{Epoch, SandboxId, Seq};
use rusqlite::{Connection, OpenFlags};

/// Enough events for several rounds of indexing.
const EVENTS: u64 = 24_000;
const JOURNALS: u64 = 6;
const TOGETHER: usize = 100;

fn count(dir: &Path, sql: &str) -> u64 {
    let path = dir.join(journal::sqlite::DATABASE_FILE);
    let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    conn.query_row(sql, [], |row| row.get::<_, i64>(0))
        .unwrap()
        .cast_unsigned()
}

async fn read_all(store: &Sqlite, sandbox: SandboxId) -> u64 {
    let mut from = Seq(1);
    loop {
        let events = store.read(sandbox, from, 1000).await.unwrap();
        if events.is_empty() {
            return from.0 - 1;
        }
        for event in &events {
            assert_eq!(event.seq, from);
            from = from.next();
        }
    }
}

#[tokio::test]
async fn events_are_found_before_and_after_they_are_indexed() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Sqlite::open(dir.path()).unwrap();
    let mut ids = Vec::new();
    for n in 0..JOURNALS {
        let id = store
            .create(&format!("s{n}").parse().unwrap())
            .await
            .unwrap();
        store.lease(id, "n").await.unwrap();
        ids.push(id);
    }
    let texts = vec!["x"; TOGETHER];
    let each = EVENTS / JOURNALS;
    let mut indexed = 0;
    for n in (0..each).step_by(TOGETHER) {
        for id in &ids {
            store
                .append(append(*id, n, Epoch(1), &texts))
                .await
                .unwrap();
        }
        if n == each / 2 {
            indexed = count(dir.path(), "SELECT count(*) FROM event_index");
            drop(store);
            store = Sqlite::open(dir.path()).unwrap();
        }
        assert_eq!(read_all(&store, ids[1]).await, n + TOGETHER as u64);
    }
    assert!(indexed > 0, "no index row was written under load");
    for id in &ids {
        assert_eq!(read_all(&store, *id).await, each);
        assert!(store.verify(*id, None).await.unwrap().is_whole());
    }
    drop(store);
    // A clean close leaves nothing for the next open to look through.
    let unindexed = "SELECT count(*) FROM event WHERE id > (SELECT indexed FROM mark)";
    assert_eq!(count(dir.path(), unindexed), 0);
    assert_eq!(
        count(dir.path(), "SELECT count(*) FROM event_index"),
        EVENTS
    );
    let store = Sqlite::open(dir.path()).unwrap();
    assert_eq!(read_all(&store, ids[0]).await, each);
}

#[tokio::test]
async fn nothing_of_a_removed_journal_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(dir.path()).unwrap();
    let written = crate::world::fill(&store, 2, 300).await;
    store.remove(written[0].sandbox).await.unwrap();
    let mut seq = 300;
    let mut left = u64::MAX;
    let gone = written[0].sandbox;
    // Removal goes along with other writing, a little each time.
    while left > 0 && seq < 400 {
        let append = append(written[1].sandbox, seq, Epoch(1), &["x"]);
        store.append(append).await.unwrap();
        seq += 1;
        left = count(
            dir.path(),
            &format!("SELECT count(*) FROM event WHERE sandbox = {gone}"),
        ) + count(
            dir.path(),
            &format!("SELECT count(*) FROM event_index WHERE sandbox = {gone}"),
        ) + count(dir.path(), "SELECT count(*) FROM garbage");
    }
    assert_eq!(left, 0);
    // The last rows of all may be the swept ones; their numbers are not given again.
    store.remove(written[1].sandbox).await.unwrap();
    drop(store);
    let store = Sqlite::open(dir.path()).unwrap();
    let written = crate::world::fill(&store, 2, 20).await;
    drop(store);
    let store = Sqlite::open(dir.path()).unwrap();
    for journal in written {
        let report = store
            .verify(journal.sandbox, Some(journal.head()))
            .await
            .unwrap();
        assert!(report.is_whole(), "{report}");
    }
}
