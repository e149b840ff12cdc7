//! A disk without room: refused, nothing half written, and the same store goes on once there is some.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use journal::conformance::append;
use journal::{Error, Sqlite, Store};
use protocol::{Epoch, Seq};

use crate::world::{child, child_dir};

/// Takes every block that is left.
fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("ballast");
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
    path
}

#[test]
#[ignore = "run on a small disk of its own"]
fn writer_on_a_small_disk() {
    let dir = child_dir();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Sqlite::open(&dir).unwrap();
        let id = store.create(&"a".parse().unwrap()).await.unwrap();
        let gone = store.create(&"gone".parse().unwrap()).await.unwrap();
        for id in [id, gone] {
            store.lease(id, "n").await.unwrap();
        }
        store
            .append(append(gone, 0, Epoch(1), &["x"]))
            .await
            .unwrap();
        let ballast = fill(&dir);
        // Into the room that the log has, and no further.
        let big = "x".repeat(700 << 10);
        let mut acked = 0;
        let refused = loop {
            match store.append(append(id, acked, Epoch(1), &[&big])).await {
                Ok(head) => acked = head.seq.0,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::NoSpace), "{refused:?}");
        assert!(acked > 0, "there is no room in the log itself");
        // Many at once, and of all kinds: each is told.
        let many: Vec<_> = (0..50)
            .map(|_| store.append(append(id, acked, Epoch(1), &[&big])))
            .collect();
        for one in many {
            assert_eq!(one.await, Err(Error::NoSpace));
        }
        assert!(store.failed().borrow().is_none(), "the store ended");
        assert_eq!(store.head(id).await.unwrap().seq, Seq(acked));
        assert_eq!(
            store.read(id, Seq(1), 100).await.unwrap().len() as u64,
            acked
        );
        assert_eq!(store.list().await.unwrap().len(), 2);
        // A start on the full disk reads all of it.
        drop(store);
        fill(&dir);
        let store = Sqlite::open(&dir).unwrap();
        assert_eq!(
            store.read(id, Seq(1), 100).await.unwrap().len() as u64,
            acked
        );
        fs::remove_file(ballast).unwrap();
        // And with room everything goes on, in the place where it stopped.
        let lease = store.lease(id, "n").await.unwrap();
        assert_eq!(lease.head.seq, Seq(acked));
        let after = store
            .append(append(id, acked, lease.epoch, &["y"]))
            .await
            .unwrap();
        assert_eq!(after.seq, Seq(acked + 1));
        store.remove(gone).await.unwrap();
        let report = store.verify(id, None).await.unwrap();
        assert!(report.is_whole(), "{report}");
        drop(store);
        let store = Sqlite::open(&dir).unwrap();
        assert_eq!(store.head(id).await.unwrap().seq, Seq(acked + 1));
        println!("done {acked}");
    });
}

#[test]
fn a_full_disk_is_told_and_the_store_goes_on_with_room() {
    const SMALL: &str = "mount -t tmpfs -o size=12m none \"$JOURNAL_DIR\" && exec \"$0\" \"$@\"";
    let dir = tempfile::tempdir().unwrap();
    let wrapper = ["unshare", "-rm", "/bin/sh", "-c", SMALL];
    let output = child("room::writer_on_a_small_disk", dir.path(), &wrapper)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{words}");
    assert!(
        text.contains("done "),
        "the child did not run: {text}{words}"
    );
}
