use std::collections::BTreeMap;

use protocol::paths::state::TABLE;
use protocol::table::RunSpec;
use protocol::{Epoch, Head, Offset, OpId, Role, Seq};
use rustix::fs::{CWD, Mode, OFlags};

use super::*;

fn open(dir: &std::path::Path) -> Result<Opened, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = || rustix::fs::openat(CWD, dir, flags, Mode::empty()).unwrap();
    Ledger::open(fd(), fd())
}

fn head(seq: u64) -> Head {
    Head {
        seq: Seq(seq),
        ..Head::EMPTY
    }
}

fn starting(op: &str, boot: Boot, seq: u64) -> Record {
    let run = RunSpec {
        argv: vec!["true".to_owned()],
        cwd: "/".to_owned(),
        env: BTreeMap::from([("PADDING".to_owned(), "x".repeat(2000))]),
        user: None,
        timeout_ms: None,
        tty: None,
        stdin: false,
        role: Role::Command,
    };
    Record::Starting {
        op: op.parse().unwrap(),
        attempt: 1,
        boot,
        run,
        witness: head(seq),
    }
}

fn settled(op: &str) -> Record {
    Record::Settled {
        op: op.parse().unwrap(),
        attempt: 1,
        settlement: Settlement {
            outcome: Outcome::Exited { exit_code: 7 },
            stdout_bytes: Offset(0),
            stderr_bytes: Offset(0),
            duration_ms: 1,
            error: None,
        },
    }
}

fn announced(op: &str, seq: u64) -> Record {
    Record::Announced {
        op: op.parse().unwrap(),
        witness: head(seq),
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

#[test]
fn what_was_committed_is_there_after_any_torn_tail() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).unwrap();
    assert_eq!(first.boot, Boot(1));
    wait(
        first
            .ledger
            .commit(vec![Record::Fence { epoch: Epoch(4) }], vec![]),
    );
    wait(first.ledger.commit(vec![starting("a", Boot(1), 9)], vec![]));
    drop(first);

    // Half of a frame that was never acknowledged.
    let path = dir.path().join(TABLE);
    let mut bytes = std::fs::read(&path).unwrap();
    let whole = Table::read(&bytes).unwrap().1;
    bytes[whole..whole + 12].copy_from_slice(b"\x40\0\0\0abcd[{\"r");
    std::fs::write(&path, &bytes).unwrap();

    let second = open(dir.path()).unwrap();
    assert_eq!(second.boot, Boot(2));
    assert_eq!(second.table.epoch, Epoch(4));
    assert_eq!(second.table.witness, head(9));
    let a: OpId = "a".parse().unwrap();
    assert_eq!(second.table.ops[&a].settlement, None);
    wait(second.ledger.commit(vec![settled("a")], vec![]));
    let table = Table::read(&std::fs::read(&path).unwrap()).unwrap().0;
    assert!(table.ops[&a].settlement.is_some());
    assert_eq!(table.boot, Boot(2));
}

#[test]
fn a_damaged_table_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).unwrap();
    for epoch in 1..4 {
        wait(first.ledger.commit(
            vec![Record::Fence {
                epoch: Epoch(epoch),
            }],
            vec![],
        ));
    }
    drop(first);
    let path = dir.path().join(TABLE);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(matches!(open(dir.path()), Err(Error::Damaged(_))));
}

#[test]
fn a_rewritten_table_forgets_only_what_the_journal_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(TABLE);
    let first = open(dir.path()).unwrap();
    let ledger = &first.ledger;
    wait(ledger.commit(vec![Record::Fence { epoch: Epoch(3) }], vec![]));
    wait(ledger.commit(vec![starting("kept-running", Boot(1), 1)], vec![]));
    wait(ledger.commit(
        vec![
            starting("kept-settled", Boot(1), 2),
            settled("kept-settled"),
        ],
        vec![],
    ));
    // Far more than the size at which the table is rewritten while it is in use.
    for round in 0..40 {
        let mut records = Vec::new();
        for n in 0..200 {
            let op = format!("op-{round}-{n}");
            records.push(starting(&op, Boot(1), 10 + round));
            records.push(settled(&op));
            records.push(announced(&op, 100 + round));
        }
        wait(ledger.commit(records, vec![]));
    }
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size < 10 << 20, "the table has {size} bytes");
    drop(first);

    let second = open(dir.path()).unwrap();
    assert_eq!(second.boot, Boot(2));
    assert_eq!(second.table.epoch, Epoch(3));
    assert_eq!(second.table.witness, head(139));
    wait(second.ledger.commit(vec![], vec![]));
    drop(second);
    let third = open(dir.path()).unwrap();
    let ops: Vec<_> = third.table.ops.keys().map(OpId::as_str).collect();
    assert_eq!(ops, ["kept-running", "kept-settled"]);
    assert_eq!(third.boot, Boot(3));
    assert_eq!(third.table.witness, head(139));
    assert!(!dir.path().join("ops.table.new").exists());
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size < 1 << 20, "the table has {size} bytes");
}
