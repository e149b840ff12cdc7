//! `kill -9` at any moment: what was acknowledged is there.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Arc;

use journal::conformance::append;
use journal::{Durability, Sqlite, Store};
use protocol::{Head, SandboxId, Seq};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::world::{Seed, child, child_dir, seeds};

const WRITERS: usize = 8;

#[test]
#[ignore = "the child that is killed"]
fn writer_that_is_killed() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let store = Arc::new(Sqlite::open(&child_dir()).unwrap());
    let write = async |n: usize| {
        let name = format!("w{n}").parse().unwrap();
        let known = store.list().await.unwrap();
        let id = match known.iter().find(|(_, k)| *k == name) {
            Some((id, _)) => *id,
            None => store.create(&name).await.unwrap(),
        };
        let lease = store.lease(id, "child").await.unwrap();
        let mut seq = lease.head.seq.0;
        while store.failed().borrow().is_none() {
            let mut chunk = append(id, seq, lease.epoch, &["chunk", "chunk"]);
            chunk.durability = Durability::Relaxed;
            drop(store.append(chunk));
            let head = store
                .append(append(id, seq + 2, lease.epoch, &["settled"]))
                .await
                .unwrap();
            seq = head.seq.0;
            let hash: String = head.hash.iter().map(|b| format!("{b:02x}")).collect();
            writeln!(std::io::stdout(), "acked {id} {seq} {hash}").unwrap();
        }
    };
    let write = &write;
    runtime.block_on(async {
        tokio::join!(
            write(0),
            write(1),
            write(2),
            write(3),
            write(4),
            write(5),
            write(6),
            write(7)
        )
    });
}

#[tokio::test]
async fn acknowledged_events_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut acked: BTreeMap<SandboxId, Head> = BTreeMap::new();
    for seed in seeds(10) {
        let _seed = Seed("acknowledged_events_survive_a_kill", seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut process = child("kill::writer_that_is_killed", dir.path(), &[])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut until = rng.random_range(1..400);
        while let Some(Ok(line)) = lines.next() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["acked", id, seq, hash] = words[..] {
                let mut bytes = [0; 32];
                for (byte, n) in bytes.iter_mut().zip(0..) {
                    *byte = u8::from_str_radix(&hash[2 * n..2 * n + 2], 16).unwrap();
                }
                let head = Head {
                    seq: Seq(seq.parse().unwrap()),
                    hash: bytes,
                };
                acked.insert(SandboxId(id.parse().unwrap()), head);
                until -= 1;
                if until == 0 {
                    // What the child still says before it dies counts too.
                    process.kill().unwrap();
                }
            }
        }
        process.wait().unwrap();
        let store = Sqlite::open(dir.path()).unwrap();
        assert!(until <= 0, "the child ended by itself");
        for (id, head) in &acked {
            let report = store.verify(*id, Some(*head)).await.unwrap();
            assert!(report.is_whole(), "{id}: {report}");
        }
    }
    assert_eq!(acked.len(), WRITERS);
}
