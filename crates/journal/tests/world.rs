//! What the tests share: seeds, journals filled with known events, and this binary started again as a child.

use std::path::Path;
use std::process::Command;

use journal::conformance::append;
use journal::{Sqlite, Store};
use protocol::{Epoch, Head, SandboxId, Seq, Stored};

/// Returns the seeds to run: `SEED=n` for one, `SEEDS=n` for the first n.
pub(crate) fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|v| v.parse::<u64>().unwrap());
    match (number("SEED"), number("SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(default),
    }
}

/// Prints how to run a seed again when the test does not get to its end.
pub(crate) struct Seed(pub(crate) &'static str, pub(crate) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "again with: SEED={} cargo test -p durable-journal --test main {}",
                self.1, self.0
            );
        }
    }
}

/// A journal with the events that were acknowledged.
pub(crate) struct Written {
    pub(crate) sandbox: SandboxId,
    pub(crate) events: Vec<Stored>,
}

impl Written {
    pub(crate) fn head(&self) -> Head {
        self.events.last().map_or(Head::EMPTY, |last| Head {
            seq: last.seq,
            hash: last.hash,
        })
    }
}

/// Makes journals of so many events each, written turn by turn.
pub(crate) async fn fill(store: &Sqlite, journals: u64, events: u64) -> Vec<Written> {
    let mut written = Vec::new();
    for n in 0..journals {
        let name = format!("s{n}").parse().unwrap();
        let sandbox = store.create(&name).await.unwrap();
        store.lease(sandbox, "test").await.unwrap();
        written.push(Written {
            sandbox,
            events: Vec::new(),
        });
    }
    for n in 0..events {
        for journal in &written {
            let text = format!("{} {n} {}", journal.sandbox, "x".repeat(300));
            let append = append(journal.sandbox, n, Epoch(1), &[&text]);
            store.append(append).await.unwrap();
        }
    }
    for journal in &mut written {
        journal.events = store
            .read(journal.sandbox, Seq(1), usize::MAX)
            .await
            .unwrap();
        assert_eq!(journal.events.len() as u64, events);
    }
    written
}

/// Copies the files of a store as they are now: what a killed process leaves.
pub(crate) fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        // The next process makes the shared memory anew, as after a reboot.
        if !name.to_string_lossy().ends_with("-shm") {
            std::fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

/// Returns a command that runs one ignored test of this binary, through `wrapper` where one is given.
pub(crate) fn child(test: &str, dir: &Path, wrapper: &[&str]) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut command = match wrapper {
        [] => Command::new(&exe),
        [program, args @ ..] => {
            let mut command = Command::new(program);
            command.args(args).arg(&exe);
            command
        }
    };
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("JOURNAL_DIR", dir);
    command
}

/// Returns the directory that a child was given.
pub(crate) fn child_dir() -> std::path::PathBuf {
    std::env::var_os("JOURNAL_DIR")
        .expect("run by its parent")
        .into()
}
