//! A write that fails ends the store, loudly, and loses nothing that was acknowledged.

use journal::conformance::append;
use journal::{Error, Sqlite, Store};
use protocol::Epoch;

use crate::world::{child, child_dir};

/// Files may grow to about 16 MiB: room for some of the appends, not for all.
const LIMIT: &str = "ulimit -f 33000; trap '' XFSZ; exec \"$0\" \"$@\"";

#[test]
#[ignore = "run under a limit on file size"]
fn writer_that_hits_a_limit() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Sqlite::open(&child_dir()).unwrap();
        let mut failed = store.failed();
        let id = store.create(&"a".parse().unwrap()).await.unwrap();
        store.lease(id, "n").await.unwrap();
        let mut tail = store.tail(id).unwrap();
        let big = "x".repeat(5 << 20);
        let mut answers: Vec<_> = (0..6)
            .map(|n| store.append(append(id, n, Epoch(1), &[&big])))
            .collect();
        let mut acked = 0;
        let mut refusal = None;
        for answer in &mut answers {
            match answer.await {
                Ok(head) => {
                    assert!(refusal.is_none(), "an append went through after a failure");
                    acked = head.seq.0;
                }
                Err(error) => refusal = Some(error),
            }
        }
        // Where the commits fitted, moving the pages into the database did not.
        failed.wait_for(Option::is_some).await.unwrap();
        if let Some(refusal) = refusal {
            assert!(matches!(refusal, Error::Failed(_)), "{refusal:?}");
        }
        for error in [
            store
                .append(append(id, acked, Epoch(1), &["x"]))
                .await
                .unwrap_err(),
            store.head(id).await.unwrap_err(),
            store.read(id, protocol::Seq(1), 1).await.unwrap_err(),
            store.lease(id, "n").await.unwrap_err(),
            store.list().await.unwrap_err(),
            store.tail(id).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Failed(_)), "{error:?}");
        }
        while tail.changed().await.is_ok() {}
        println!("acked {acked}");
    });
}

#[tokio::test]
async fn a_failed_write_ends_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let limited = child(
        "failure::writer_that_hits_a_limit",
        dir.path(),
        &["/bin/sh", "-c", LIMIT],
    );
    let output = { limited }.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let acked: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("acked "))
        .unwrap()
        .parse()
        .unwrap();
    // With room again, everything acknowledged is there.
    let store = Sqlite::open(dir.path()).unwrap();
    let (id, _) = store.list().await.unwrap()[0].clone();
    let report = store.verify(id, None).await.unwrap();
    assert!(report.is_whole() && report.readable.0 >= acked, "{report}");
}
