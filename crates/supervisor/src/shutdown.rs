//! The end of the sandbox by order: everything in it is ended, what ran is settled, and both are durable before we go.

use std::rc::Rc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use crate::core::Core;
use crate::ops::Order;
use crate::reaper::childless;
use crate::tree::signal_everything;

/// How often SIGKILL is repeated while children are left.
const KILL_AGAIN: Duration = Duration::from_millis(50);
/// What hangs in the kernel after this much killing is left to the end of the namespace.
const GIVE_UP: Duration = Duration::from_secs(5);
/// How long a daemon may take to hear the last settlements. They are durable anyway.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Ends everything below this process.
pub(crate) async fn end(core: &Rc<Core>, grace_ms: u64) {
    core.closing.set(true);
    for op in core.ops.open() {
        op.order(Order::Cancel {
            grace_ms,
            why: "the sandbox was stopped".to_owned(),
        });
    }
    signal_everything(&core.proc, Signal::TERM);
    let kill_at = Instant::now() + Duration::from_millis(grace_ms);
    while !childless() && Instant::now() < kill_at {
        let next = core.reaper.next();
        if childless() {
            break;
        }
        tokio::select! {
            () = next => {}
            () = tokio::time::sleep_until(kill_at) => {}
        }
    }
    let give_up = Instant::now() + GIVE_UP;
    while (!childless() || !core.ops.open().is_empty()) && Instant::now() < give_up {
        signal_everything(&core.proc, Signal::KILL);
        let next = core.reaper.next();
        let settled = async {
            for op in core.ops.open() {
                let changed = op.changed.notified();
                if op.is_open() {
                    changed.await;
                    return;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            () = next => {}
            () = settled => {}
            () = tokio::time::sleep(KILL_AGAIN) => {}
        }
    }
    core.ledger.commit(Vec::new(), Vec::new()).await;
    let last_words = tokio::time::sleep(LAST_WORDS);
    tokio::pin!(last_words);
    while let Some(outbox) = core.link.outbox().filter(|outbox| !outbox.is_empty()) {
        let sent = outbox.sent();
        tokio::select! {
            () = sent => {}
            () = &mut last_words => break,
        }
    }
}
