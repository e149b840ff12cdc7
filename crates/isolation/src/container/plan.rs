//! What the daemon decided about a sandbox's world; the launcher only carries it out.

use std::path::PathBuf;

use protocol::Limits;
use serde::{Deserialize, Serialize};

use super::ids::IdMap;

/// Everything that PID 1 needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) hostname: String,
    pub(super) limits: Limits,
    pub(super) ids: IdMap,
    /// The overlay's directories, relative to the tree at [`Place::Head`].
    pub(super) upper: PathBuf,
    pub(super) work: PathBuf,
    /// What is mounted, in this order.
    pub(super) trees: Vec<Tree>,
    /// Who makes the trees: with privilege the daemon (it may map owners), without it PID 1 in its own namespaces.
    pub(super) trees_come: TreesCome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TreesCome {
    FromDaemon,
    FromPaths,
}

/// A directory or file of the host that becomes a mount of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Tree {
    pub(super) source: PathBuf,
    pub(super) place: Place,
    pub(super) owners: Owners,
}

/// What a tree is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    /// The read-only layer of the root.
    Lower,
    /// Holds the writable layer.
    Head,
    /// The state directory; never mounted anywhere, only held open.
    State,
    /// The `durable` binary.
    Binary,
    /// The installed harnesses.
    Harness,
    /// Read-only at this path.
    At(PathBuf),
}

/// How owners on disk look inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Owners {
    /// The same numbers; nothing works without.
    Same,
    /// The same numbers where the file system can.
    SameIfPossible,
    /// As nobody's, so that only what everybody may read is readable.
    Nobody,
}
