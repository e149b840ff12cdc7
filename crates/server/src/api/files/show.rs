//! Entries and changes as clients see them.

use protocol::UnixMillis;
use protocol::api::{FileEventView, FileView};
use protocol::files::{Change, Entry, Name};

/// Puts a path from a helper behind the one that was asked for.
pub(super) fn join(base: &Name, below: &Name) -> Name {
    if below.0.is_empty() {
        return base.clone();
    }
    let mut full = base.0.clone();
    if !full.ends_with(b"/") {
        full.push(b'/');
    }
    full.extend_from_slice(&below.0);
    Name(full)
}

pub(super) fn etag(entry: &Entry) -> String {
    format!("\"{}\"", entry.tag())
}

pub(super) fn view(base: &Name, entry: &Entry) -> FileView {
    let path = join(base, &entry.name);
    let name = if entry.name.0.is_empty() {
        let parts = path.0.split(|byte| *byte == b'/');
        Name(parts.rev().find(|p| !p.is_empty()).unwrap_or(b"/").to_vec())
    } else {
        entry.name.clone()
    };
    FileView {
        path: path.escaped(),
        path_base64: path.base64(),
        name: name.escaped(),
        kind: entry.kind.word().to_owned(),
        size: entry.size,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        links: entry.links,
        modified_ms: UnixMillis(u64::try_from(entry.modified_ns / 1_000_000).unwrap_or(0)),
        etag: etag(entry),
        target: entry.target.as_ref().map(Name::escaped),
        target_base64: entry.target.as_ref().and_then(Name::base64),
    }
}

pub(super) fn event(base: &Name, word: &str, change: Option<&Change>) -> FileEventView {
    let path = change.map_or_else(|| base.clone(), |change| join(base, &change.name));
    let from = change.and_then(|change| change.from.as_ref());
    let from = from.map(|from| join(base, from));
    FileEventView {
        event: word.to_owned(),
        path: Some(path.escaped()),
        path_base64: path.base64(),
        from: from.as_ref().map(Name::escaped),
        from_base64: from.as_ref().and_then(Name::base64),
        directory: change.is_some_and(|change| change.directory),
        error: None,
    }
}
