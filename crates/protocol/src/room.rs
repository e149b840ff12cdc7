//! What of a disk each part leaves to the others, so that of all that fills it the journal is the last to stop.
//!
//! The pool's image stops growing first, then output is no longer kept, then nothing new is begun; what was begun can
//! still be journaled.

/// The pool's image leaves this much free; of a small disk an eighth.
const POOL: u64 = 256 << 20;

/// Returns the bytes of a disk of `total` that the pool's image leaves free.
#[must_use]
pub fn beside_pool(total: u64) -> u64 {
    (total / 8).min(POOL)
}

/// Returns the bytes that the output of operations leaves free.
#[must_use]
pub fn beside_output(total: u64) -> u64 {
    beside_pool(total) / 2
}

/// Returns the bytes without which nothing new is begun.
#[must_use]
pub fn to_begin(total: u64) -> u64 {
    beside_pool(total) / 16
}
