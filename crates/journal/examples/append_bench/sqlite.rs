//! The journal itself: one sandbox for each writer, epoch, place, CRC and chain as in the daemon.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use journal::{Append, Durability, New, Sqlite, Store};
use protocol::{Event, Seq, UnixMillis};

use crate::{EVENT_BYTES, Run, drive, noise};

pub(crate) fn run(dir: &Path, writers: usize, run: Duration) -> Run {
    let store = Arc::new(Sqlite::open(dir).expect("a journal"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let event = Event::LeaseTaken {
        node: String::new(),
    };
    let around = serde_json::to_string(&event)
        .expect("an event is JSON")
        .len();
    let leases: Vec<_> = runtime.block_on(async {
        let mut ids = Vec::new();
        for n in 0..writers {
            let name = format!("s{n}").parse().expect("a name");
            ids.push(store.create(&name).await.expect("a free name"));
        }
        store.lease_many(&ids, "bench").await.expect("leases")
    });
    let measured = drive(writers, run, |n| {
        let store = Arc::clone(&store);
        let lease = leases[n];
        let mut expected = Seq(0);
        let event = Event::LeaseTaken {
            node: noise(EVENT_BYTES - around),
        };
        move || {
            let appended = store.append(Append {
                sandbox: lease.sandbox,
                expected,
                epoch: lease.epoch,
                at: UnixMillis(1_700_000_000_000),
                events: vec![New::from(event.clone())],
                durability: Durability::Now,
            });
            expected = expected.next();
            async move {
                appended.await.expect("the only writer");
            }
        }
    });
    let written: u64 = runtime.block_on(async {
        let mut written = 0;
        for lease in &leases {
            let report = store.verify(lease.sandbox, None).await.expect("a report");
            assert!(report.is_whole(), "{report}");
            written += report.readable.0;
        }
        written
    });
    assert_eq!(written, measured.latencies.len() as u64);
    measured
}
