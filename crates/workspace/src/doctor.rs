//! What this machine can do for a pool, for people.

use std::path::Path;

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// What was looked at, such as `mkfs.btrfs`.
    pub name: &'static str,
    /// Whether it is as the best pool needs it.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// How to get it, where it is missing.
    pub hint: Option<String>,
}

/// Looks at what a pool in `data_dir` could be made of. It changes nothing.
#[must_use]
pub fn doctor(data_dir: &Path) -> Vec<Fact> {
    let _ = data_dir;
    Vec::new()
}
