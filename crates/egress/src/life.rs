//! What is on its way for one boot of a sandbox. Once its supervisor is lost nothing more of it begins, and what has begun is
//! seen to its end: only then can be said what its operations sent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long answers are waited for whose requests have left when a boot ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to journal that they were given up.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// One boot, as the gateway serves it.
pub(crate) struct Life {
    /// Cancelled when the boot is over: its connections end.
    pub(crate) ended: CancellationToken,
    /// Cancelled when nobody waits any longer for what has begun.
    pub(crate) given_up: CancellationToken,
    count: watch::Sender<Count>,
}

#[derive(Debug, Default)]
struct Count {
    is_over: bool,
    /// Effects that have begun and are not journaled as ended.
    begun: usize,
}

impl Life {
    pub(crate) fn new(closing: &CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            ended: closing.child_token(),
            given_up: closing.child_token(),
            count: watch::Sender::default(),
        })
    }

    /// Takes an effect in until what is returned is dropped; none where the boot is over.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Begun> {
        let mut may = false;
        self.count.send_if_modified(|count| {
            may = !count.is_over;
            count.begun += usize::from(may);
            false
        });
        may.then(|| Begun(Arc::clone(self)))
    }

    /// Lets nothing more begin, and waits until all that has begun is in the journal with its end.
    pub(crate) async fn end(&self) {
        let mut count = self.count.subscribe();
        self.count.send_modify(|count| count.is_over = true);
        self.ended.cancel();
        if !rests(&mut count, PATIENCE).await {
            self.given_up.cancel();
            if !rests(&mut count, LAST_WORDS).await {
                tracing::warn!("effects of a boot that is over have not ended");
            }
        }
    }
}

/// Waits until all that has begun has ended; whether it did.
async fn rests(count: &mut watch::Receiver<Count>, patience: Duration) -> bool {
    let rest = count.wait_for(|count| count.begun == 0);
    timeout(patience, rest).await.is_ok()
}

/// An effect that has begun in a boot.
pub(crate) struct Begun(Arc<Life>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| count.begun -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_boot_is_over_when_all_that_began_has_ended() {
        let life = Life::new(&CancellationToken::new());
        let first = life.begin().unwrap();
        let ending = tokio::spawn({
            let life = Arc::clone(&life);
            async move { life.end().await }
        });
        life.ended.cancelled().await;
        assert!(life.begin().is_none());
        assert!(!ending.is_finished());
        drop(first);
        ending.await.unwrap();
        assert!(!life.given_up.is_cancelled());
    }
}
