//! Sandboxes in a blob store: pushed, so that they outlive the machine, and pulled where they go on.
//!
//! A sandbox in a store is a ref to a snapshot: the files of its last cut as the tree, its journal and the output of
//! settled operations as streams, and a [`Note`]. Checkpoints that come along are snapshots with refs of their own. The ref
//! only ever moves along one timeline: who has not got the events that the store has cannot push over them. So of two
//! machines that both went on from one push, the second to push is refused.

mod opened;
pub(crate) mod outputs;
mod pull;
pub(crate) mod push;

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;

use blob::{Key, Options, Store};
use protocol::{ApiError, CutId, ErrorCode, Head, SandboxName, Seq, StoreAt, UnixMillis};
use serde::{Deserialize, Serialize};

pub use opened::Opened;

use crate::error;
use crate::shared::Shared;

/// The stream that holds the journal's events, as [`journal::Raw`] writes them.
const JOURNAL: &str = "journal";
/// The stream that holds what settled operations printed.
const OUTPUT: &str = "output";
/// An identity and comments.
const MAX_KEY_FILE: u64 = 64 << 10;
/// The version of [`Note`], and of what the streams hold.
const FORMAT: u32 = 1;

/// What a snapshot says of the sandbox in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Note {
    /// 1.
    format: u32,
    /// What it was called where it came from.
    pub name: SandboxName,
    /// What it stands on.
    pub image: String,
    /// The daemon that pushed it, for people.
    pub node: String,
    /// When, for people.
    pub at_ms: UnixMillis,
    /// Where its journal ends.
    pub head: Head,
    /// On which branch it goes on.
    branch: u32,
    /// The cut whose files are the snapshot's tree.
    pub tip: Option<CutId>,
    /// Cuts that are snapshots of their own, oldest first.
    pub cuts: Vec<CutId>,
}

/// What a snapshot of a cut says.
#[derive(Serialize, Deserialize)]
struct CutNote {
    format: u32,
    cut: CutId,
    /// The head that it was taken of: a cut's id alone is not unique in the world.
    workspace: protocol::WorkspaceId,
}

/// Refs that cannot be read, and why.
pub type Damaged = Vec<(String, ApiError)>;

/// Lists the sandboxes in a store, by the names that they have there, and the refs that cannot be read.
///
/// # Errors
/// The store cannot be read at all.
pub fn list(store: &Store) -> Result<(Vec<(SandboxName, Note)>, Damaged), ApiError> {
    let (mut all, mut damaged) = (Vec::new(), Vec::new());
    for found in store.ref_names().map_err(|e| of_blob(&e))? {
        let Some(name) = found.strip_prefix("s.").and_then(|name| name.parse().ok()) else {
            continue;
        };
        match noted(store, &found) {
            Ok(Some(note)) => all.push((name, note)),
            Ok(None) => {}
            Err(error) => damaged.push((found, error)),
        }
    }
    Ok((all, damaged))
}

fn noted(store: &Store, name: &str) -> Result<Option<Note>, ApiError> {
    let Some((id, _)) = store.get_ref(name).map_err(|e| of_blob(&e))? else {
        return Ok(None);
    };
    let snapshot = store.snapshot(&id).map_err(|e| of_blob(&e))?;
    note(&snapshot).map(Some)
}

/// Takes a sandbox and its checkpoints out of a store. Their chunks go with the next collection.
///
/// # Errors
/// `not_found`, or what the store says.
pub fn forget(store: &Store, name: &SandboxName) -> Result<(), ApiError> {
    let blob = |e: blob::Error| of_blob(&e);
    let main = main_ref(name);
    let refs = store.ref_names().map_err(blob)?;
    if !refs.contains(&main) {
        return Err(not_there(name));
    }
    // Also one that cannot be read any more.
    store.remove_ref(&main).map_err(blob)?;
    let cuts = cut_ref_prefix(name);
    for found in refs {
        if found.starts_with(&cuts) {
            store.remove_ref(&found).map_err(blob)?;
        }
    }
    Ok(())
}

/// Opens a blob store, and makes one where there is none.
///
/// `cache` is a directory of this machine for what need not be read again.
///
/// # Errors
/// What is wrong with the address, the key or the store.
pub fn open(at: &StoreAt, cache: Option<&Path>) -> Result<Store, ApiError> {
    check_directory(at)?;
    let key = at.key_file.as_deref().map(key).transpose()?;
    open_with(at, key.as_ref(), cache)
}

fn open_with(at: &StoreAt, key: Option<&Key>, cache: Option<&Path>) -> Result<Store, ApiError> {
    let options = Options {
        cache: cache.map(Path::to_owned),
        threads: 0,
    };
    Store::open_with(&at.url, key, options).map_err(|e| of_blob(&e))
}

/// Says whether sandboxes of these names can be replicated there: the store is usable and has no others of them.
pub(crate) async fn check_free(
    shared: &Arc<Shared>,
    at: &StoreAt,
    names: Vec<SandboxName>,
) -> Result<(), ApiError> {
    let (shared, at) = (shared.clone(), at.clone());
    crate::trees::blocking(move || {
        let store = open_here(&shared, &at)?;
        for name in names {
            let taken = store.get_ref(&main_ref(&name)).map_err(|e| of_blob(&e))?;
            if taken.is_some() {
                let message = format!("the store {} has a sandbox `{name}` already", at.url);
                return Err(ApiError::new(ErrorCode::Conflict, message).hint(format!(
                    "pull it, pick another name, or `durable store rm {name}` first"
                )));
            }
        }
        Ok(())
    })
    .await
}

/// Returns the device of a directory, or of the one that it would be made in.
#[must_use]
pub fn device_of(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let found = path.ancestors().find_map(|path| path.metadata().ok());
    found.map(|found| found.dev())
}

/// Opens a store that must be there: looking makes none.
///
/// # Errors
/// `not_found`, or as [`open`].
pub fn open_existing(at: &StoreAt, cache: Option<&Path>) -> Result<Store, ApiError> {
    check_directory(at)?;
    if let Some(path) = blob::directory(&at.url)
        && !path.join("config").exists()
    {
        let message = format!("there is no blob store in {}", path.display());
        return Err(ApiError::new(ErrorCode::NotFound, message).hint("`durable push` makes one"));
    }
    open(at, cache)
}

/// Refuses a path at which something else is.
fn check_directory(at: &StoreAt) -> Result<(), ApiError> {
    match blob::directory(&at.url) {
        Some(path) if path.exists() && !path.is_dir() => {
            let message = format!(
                "{} is no directory, and a blob store is one",
                path.display()
            );
            Err(ApiError::new(ErrorCode::Invalid, message)
                .hint("give a directory, which need not exist yet, or an address such as s3://BUCKET/PREFIX"))
        }
        _ => Ok(()),
    }
}

fn cache(shared: &Shared) -> PathBuf {
    shared.config.data.join("store-cache")
}

/// Refuses a directory that this daemon finds on another device than its caller does.
fn check_device(at: &StoreAt) -> Result<(), ApiError> {
    let (Some(path), Some(theirs)) = (blob::directory(&at.url), at.device) else {
        return Ok(());
    };
    if device_of(path) == Some(theirs) {
        return Ok(());
    }
    let message = format!(
        "the daemon does not see what is mounted at or above {}: it was mounted after its start",
        path.display()
    );
    Err(ApiError::new(ErrorCode::Unavailable, message)
        .hint("end the daemon (its number is in `daemon.lock` of the data directory); sandboxes run on, and the next command starts it anew"))
}

fn open_here(shared: &Shared, at: &StoreAt) -> Result<Arc<Store>, ApiError> {
    check_device(at)?;
    shared.stores.get(at, &cache(shared))
}

/// Reads an age identity out of a file as `age-keygen` writes it.
fn key(file: &Path) -> Result<Key, ApiError> {
    let invalid = |why: String| {
        let message = format!("key file {} is not usable: {why}", file.display());
        ApiError::new(ErrorCode::Invalid, message)
            .hint("give a file with an age identity: AGE-SECRET-KEY-1…")
    };
    // A pipe would be waited for, a device read without end.
    let found = std::fs::metadata(file).map_err(|e| invalid(e.to_string()))?;
    if !found.is_file() || found.len() > MAX_KEY_FILE {
        return Err(invalid("it is no small file".into()));
    }
    let text = std::fs::read_to_string(file).map_err(|e| invalid(e.to_string()))?;
    let text = zeroize::Zeroizing::new(text);
    let line = text.lines().map(str::trim);
    let mut line = line.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let one = line.next().ok_or_else(|| invalid("it is empty".into()))?;
    // Which one a store would be made with is not ours to choose.
    let more = line.count();
    if more > 0 {
        let count = more + 1;
        return Err(invalid(format!(
            "it holds {count} lines that are no comments, and one identity is wanted"
        )));
    }
    Key::from_str(one).map_err(|e| invalid(e.to_string()))
}

fn main_ref(name: &SandboxName) -> String {
    format!("s.{name}")
}

fn cut_ref_prefix(name: &SandboxName) -> String {
    format!("c.{name}.")
}

fn cut_ref(name: &SandboxName, cut: &CutId) -> String {
    format!("{}{cut}", cut_ref_prefix(name))
}

fn note(snapshot: &blob::Snapshot) -> Result<Note, ApiError> {
    let format = snapshot
        .note
        .get("format")
        .and_then(serde_json::Value::as_u64);
    if let Some(format) = format.filter(|format| *format > u64::from(FORMAT)) {
        let message = format!(
            "the sandbox in the store was pushed by a newer release (format {format}; this one reads up to {FORMAT})"
        );
        return Err(ApiError::new(ErrorCode::Invalid, message).hint("upgrade durable here"));
    }
    serde_json::from_value(snapshot.note.clone()).map_err(|e| {
        let message = format!("snapshot {} holds no sandbox: {e}", snapshot.id);
        ApiError::new(ErrorCode::Corrupt, message)
    })
}

fn not_there(name: &SandboxName) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("the store has no sandbox `{name}`"),
    )
    .hint("`durable store ls` tells what it has")
}

/// What people call a place in a store.
fn address(at: &StoreAt, name: &SandboxName) -> String {
    format!("{}#{name}", at.url.trim_end_matches('/'))
}

/// A store's error, as the caller of the API must hear it.
#[must_use]
pub fn of_blob(error: &blob::Error) -> ApiError {
    use blob::Error;
    let (code, hint) = match error {
        Error::Io { .. } => (ErrorCode::Unavailable, None),
        Error::Store { .. } => (
            ErrorCode::Unavailable,
            Some("see that the store can be reached and written to, then do the same again"),
        ),
        Error::Damaged { .. } | Error::Chunk(_) => (
            ErrorCode::Corrupt,
            Some(
                "`durable store verify --repair` lists all damage and forgets it; then push again from where the sandbox lives",
            ),
        ),
        Error::NoSnapshot(_) | Error::NoPart { .. } => (ErrorCode::NotFound, None),
        Error::KeyNeeded => (
            ErrorCode::Denied,
            Some("give its age identity with --key FILE"),
        ),
        Error::WrongKey => (
            ErrorCode::Denied,
            Some("give the identity that the store was made with"),
        ),
        Error::NotEncrypted => (
            ErrorCode::Invalid,
            Some("leave the key away, or make another store with it"),
        ),
        Error::Invalid(_) | Error::TooNew { .. } => (ErrorCode::Invalid, None),
        Error::NotEmpty(_) => (ErrorCode::Internal, None),
        Error::Moved { .. } | Error::Swept | Error::Locked { .. } => {
            (ErrorCode::Unavailable, Some("try again"))
        }
    };
    let api = ApiError::new(code, error::chain(error));
    match hint {
        Some(hint) => api.hint(hint),
        None => api,
    }
}

/// Whether a journal that ends at `ours` goes on from `theirs`, where it has the hash `there`.
fn holds(ours: Head, theirs: Head, there: Option<[u8; 32]>) -> bool {
    theirs.seq == Seq(0) || theirs.seq <= ours.seq && there == Some(theirs.hash)
}
