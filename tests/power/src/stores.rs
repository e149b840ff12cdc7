//! The blob store under the cut: pushes and collections go on in it, and afterwards it must have every push that was announced.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bench::Failure;
use blob::{GcOptions, PullOptions, Store};
use protocol::StoreAt;

use crate::load::{Seen, When};
use crate::tally::Tally;

/// Younger snapshots stay: a push may be about to point a ref to one.
const GRACE: Duration = Duration::from_millis(200);

fn open(store: &Path) -> Result<Store, Failure> {
    let at = StoreAt {
        url: store.display().to_string(),
        key_file: None,
        device: None,
    };
    engine::remote::open(&at, None).map_err(|error| Failure::wrong(error.message))
}

/// Collects beside the pushes, until the power is gone for good.
pub(crate) fn keep_collecting(store: &Path, stop: &AtomicBool) {
    let options = GcOptions {
        grace: GRACE,
        ..GcOptions::default()
    };
    while !stop.load(Ordering::Relaxed) {
        // Whether it can is its own affair; what it takes is looked at afterwards.
        if store.join("config").exists()
            && let Ok(store) = open(store)
        {
            let _collected = store.gc(&[], &options);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Holds the store against what was announced, reads every chunk of every sandbox in it, and takes each one's files out.
pub(crate) fn check(
    store: &Path,
    scratch: &Path,
    seen: &[Seen<When>],
    tally: &mut Tally,
) -> Result<(), Failure> {
    if !store.join("config").exists() {
        for seen in seen {
            for (when, seq, _) in &seen.pushes {
                tally.gone(
                    *when,
                    &seen.sandbox,
                    &format!("the push of {seq} is not there, nor is the store"),
                );
            }
        }
        return Ok(());
    }
    let store = open(store)?;
    let listed = match engine::remote::list(&store) {
        Ok((listed, damaged)) => {
            for (name, error) in damaged {
                tally.violation(&name, &error.message);
            }
            listed
        }
        Err(error) => {
            tally.violation("(store)", &error.message);
            return Ok(());
        }
    };
    for seen in seen {
        let found = listed
            .iter()
            .find(|(name, _)| name.as_str() == seen.sandbox);
        for (when, seq, _) in &seen.pushes {
            tally.pushes += 1;
            if found.is_none_or(|(_, note)| note.head.seq < *seq) {
                tally.gone(
                    *when,
                    &seen.sandbox,
                    &format!("the push of {seq} was announced, and is not in the store"),
                );
            }
        }
    }
    let refs = store
        .list_refs()
        .map_err(|e| Failure::wrong(e.to_string()))?;
    for (name, id) in refs {
        match store.verify(&id) {
            Ok(report) if report.is_clean() => {}
            Ok(report) => tally.violation(
                &name,
                &format!("its snapshot is damaged: {:?}", report.damage.first()),
            ),
            Err(error) => tally.violation(&name, &format!("its snapshot cannot be read: {error}")),
        }
        let files = tempfile::tempdir_in(scratch).map_err(Failure::cannot("make a directory"))?;
        if let Err(error) = store.pull_tree(&id, files.path(), PullOptions::default()) {
            tally.violation(&name, &format!("its files cannot be taken out: {error}"));
            continue;
        }
        let Some(seen) = seen
            .iter()
            .find(|seen| format!("s.{}", seen.sandbox) == name)
        else {
            continue;
        };
        for (when, _, op) in &seen.pushes {
            let text = std::fs::read_to_string(files.path().join("workspace").join(op));
            if text.unwrap_or_default().trim_end() != op {
                tally.gone(
                    *when,
                    &seen.sandbox,
                    &format!("what {op} wrote was pushed, and is not in the store"),
                );
            }
        }
    }
    Ok(())
}
