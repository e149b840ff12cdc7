//! Opening: older, newer, foreign and unusable places.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use journal::conformance::{append, note};
use journal::sqlite::DATABASE_FILE;
use journal::{OpenError, Sqlite, Store};
use protocol::{Epoch, EventId, Head, SandboxId, Seq, UnixMillis};
use rusqlite::{Connection, params};

use crate::world::{child, child_dir, fill};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn refused(dir: &Path) -> OpenError {
    match Sqlite::open(dir) {
        Ok(_) => panic!("{} was opened", dir.display()),
        Err(error) => error,
    }
}

#[test]
fn a_second_opener_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = Sqlite::open(dir.path()).unwrap();
    assert!(matches!(refused(dir.path()), OpenError::InUse { .. }));
    drop(first);
    Sqlite::open(dir.path()).unwrap();
}

#[test]
fn others_cannot_read_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let _store = Sqlite::open(dir.path()).unwrap();
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", entry.path().display());
    }
}

#[tokio::test]
async fn a_newer_journal_is_refused_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(dir.path()).unwrap();
    let written = fill(&store, 1, 3).await;
    drop(store);
    let path = dir.path().join(DATABASE_FILE);
    let version = |v: i32| {
        let conn = Connection::open(&path).unwrap();
        conn.pragma_update(None, "user_version", v).unwrap();
    };
    version(2);
    let before = fs::read(&path).unwrap();
    let error = refused(dir.path());
    assert!(
        error.to_string().contains("was written by a newer version"),
        "{error}"
    );
    assert!(matches!(
        error,
        OpenError::Newer {
            found: 2,
            known: 1,
            ..
        }
    ));
    assert_eq!(fs::read(&path).unwrap(), before);
    version(1);
    let store = Sqlite::open(dir.path()).unwrap();
    assert_eq!(
        store.head(written[0].sandbox).await.unwrap(),
        written[0].head()
    );
}

#[test]
fn something_else_is_not_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(DATABASE_FILE);
    fs::write(
        &path,
        "not a database at all, but long enough for a header".repeat(9),
    )
    .unwrap();
    assert!(matches!(refused(dir.path()), OpenError::NotAJournal { .. }));
    fs::remove_file(&path).unwrap();
    let conn = Connection::open(&path).unwrap();
    conn.execute_batch("CREATE TABLE cookies (name TEXT)")
        .unwrap();
    drop(conn);
    assert!(matches!(refused(dir.path()), OpenError::NotAJournal { .. }));
}

#[test]
fn a_file_in_place_of_the_directory_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "").unwrap();
    assert!(refused(&path).to_string().contains("file"));
}

/// Version 0: no table of index rows, a unique index instead.
const VERSION_0: &str = "
    PRAGMA application_id = 1145720396;
    PRAGMA user_version = 0;
    CREATE TABLE sandbox (sandbox INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
        node TEXT NOT NULL DEFAULT '') STRICT;
    CREATE TABLE head (sandbox INTEGER PRIMARY KEY, seq INTEGER NOT NULL, epoch INTEGER NOT NULL,
        hash BLOB NOT NULL) STRICT;
    CREATE TABLE event (id INTEGER PRIMARY KEY, sandbox INTEGER NOT NULL, seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL, at_ms INTEGER NOT NULL, v INTEGER NOT NULL, crc INTEGER NOT NULL,
        event_id BLOB NOT NULL, hash BLOB NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL) STRICT;
    CREATE UNIQUE INDEX event_place ON event (sandbox, seq);
    INSERT INTO sandbox VALUES (7, 'old', 'n');";

#[tokio::test]
async fn an_older_journal_is_brought_up() {
    let dir = tempfile::tempdir().unwrap();
    let conn = Connection::open(dir.path().join(DATABASE_FILE)).unwrap();
    conn.execute_batch(VERSION_0).unwrap();
    let mut head = Head::EMPTY;
    for n in 0..20_u8 {
        let event = note(&format!("old {n}"));
        let payload = serde_json::to_string(&event).unwrap();
        let digest = Head::digest(payload.as_bytes());
        head = head.advance(EventId([n; 16]), Epoch(3), UnixMillis(5), &digest);
        conn.execute(
            "INSERT INTO event VALUES (NULL, 7, ?1, 3, 5, 1, ?2, ?3, ?4, ?5, ?6)",
            params![
                head.seq.0.cast_signed(),
                crc32fast::hash(payload.as_bytes()),
                [n; 16],
                head.hash,
                event.kind(),
                payload
            ],
        )
        .unwrap();
    }
    conn.execute("INSERT INTO head VALUES (7, 20, 3, ?1)", [head.hash])
        .unwrap();
    drop(conn);
    for round in 0..2 {
        let store = Sqlite::open(dir.path()).unwrap();
        let report = store.verify(SandboxId(7), Some(head)).await.unwrap();
        assert!(report.is_whole(), "{report}");
        let lease = store.lease(SandboxId(7), "n").await.unwrap();
        assert_eq!(lease.epoch, Epoch(4 + round));
        let event = append(SandboxId(7), head.seq.0, lease.epoch, &["new"]);
        head = store.append(event).await.unwrap();
    }
    let store = Sqlite::open(dir.path()).unwrap();
    assert_eq!(
        store.create(&"new".parse().unwrap()).await.unwrap(),
        SandboxId(8)
    );
}

/// The journal that version 1 of the format wrote. The file is never written again; a next version adds its own.
#[tokio::test]
async fn the_fixture_of_version_1_reads_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = Path::new(FIXTURES).join("v1.db");
    fs::copy(fixture, dir.path().join(DATABASE_FILE)).unwrap();
    let store = Sqlite::open(dir.path()).unwrap();
    let list = store.list().await.unwrap();
    assert_eq!(
        list,
        [
            (SandboxId(1), "ada".parse().unwrap()),
            (SandboxId(3), "bob".parse().unwrap())
        ]
    );
    let events = store.read(SandboxId(1), Seq(1), 99).await.unwrap();
    let wanted: Vec<_> = (0..40).map(|n| note(&format!("event {n} ü\n"))).collect();
    assert_eq!(
        events.iter().map(|s| s.event.clone()).collect::<Vec<_>>(),
        wanted
    );
    assert_eq!(events[39].id, EventId([39; 16]));
    let hash: String = events[39].hash.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hash,
        fs::read_to_string(Path::new(FIXTURES).join("v1.hash"))
            .unwrap()
            .trim()
    );
    for (sandbox, _) in list {
        assert!(store.verify(sandbox, None).await.unwrap().is_whole());
        assert_eq!(store.lease(sandbox, "n").await.unwrap().epoch, Epoch(3));
    }
}

#[tokio::test]
#[ignore = "writes the fixture of the current version; run by hand when the format changes"]
async fn write_the_fixture() {
    let dir = child_dir();
    let store = Sqlite::open(&dir).unwrap();
    for name in ["ada", "gone", "bob"] {
        let id = store.create(&name.parse().unwrap()).await.unwrap();
        store.lease(id, "n").await.unwrap();
        let epoch = store.lease(id, "n").await.unwrap().epoch;
        for n in 0..40_u8 {
            let mut append = append(id, n.into(), epoch, &[&format!("event {n} ü\n")]);
            append.events[0].id = EventId([n; 16]);
            store.append(append).await.unwrap();
        }
    }
    store.remove(SandboxId(2)).await.unwrap();
    let head = store.head(SandboxId(1)).await.unwrap();
    drop(store);
    let hash: String = head.hash.iter().map(|b| format!("{b:02x}")).collect();
    fs::write(dir.join("v1.hash"), hash + "\n").unwrap();
}

/// Runs a child on a file system of its own, which goes away with it. Says so where this machine does not allow it.
fn on_mount(test: &str, mount: &str) {
    let dir = tempfile::tempdir().unwrap();
    let probe = std::process::Command::new("unshare")
        .args(["--mount", "true"])
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("SKIPPED: no right to make a mount namespace");
        return;
    }
    let script = format!("{mount} && exec \"$0\" \"$@\"");
    let output = child(
        test,
        dir.path(),
        &["unshare", "--mount", "/bin/sh", "-c", &script],
    )
    .output()
    .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
#[ignore = "run on a full file system"]
fn opener_without_room() {
    assert!(matches!(refused(&child_dir()), OpenError::NoSpace { .. }));
}

#[test]
#[ignore = "run on a read-only file system"]
fn opener_without_writing() {
    assert!(matches!(refused(&child_dir()), OpenError::ReadOnly { .. }));
}

#[test]
fn a_full_file_system_is_told() {
    on_mount(
        "open::opener_without_room",
        "mount -t tmpfs -o size=1m tmpfs \"$JOURNAL_DIR\"",
    );
}

#[test]
fn a_read_only_file_system_is_told() {
    on_mount(
        "open::opener_without_writing",
        "mount -t tmpfs -o ro tmpfs \"$JOURNAL_DIR\"",
    );
}
