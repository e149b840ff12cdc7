//! Walks the tree of a snapshot as it is stored: for a pull, a check and a garbage collection.

use std::collections::HashSet;

use crate::content::Content;
use crate::entry::{Entry, Kind};
use crate::fetch::{Bad, Fault, Fetch};
use crate::id::{ChunkId, IdSet};
use crate::snapshot::Snapshot;

/// A file's data: where each chunk goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    pub(crate) chunk: ChunkId,
    pub(crate) place: crate::index::Place,
    /// Whose it is; the caller's number.
    pub(crate) file: u32,
    /// Where it begins in the file's data.
    pub(crate) at: u64,
}

/// Finds all chunks of a file or stream, and checks that they are as many bytes as it has.
pub(crate) fn wants(
    fetch: &Fetch<'_>,
    content: &Content,
    len: u64,
    file: u32,
    to: &mut Vec<Want>,
) -> Result<usize, Fault> {
    let leaves = fetch.leaves(content, &mut |_| {})?;
    let (first, mut at) = (to.len(), 0u64);
    for chunk in &leaves {
        let place = fetch.place(chunk).map_err(Fault::Bad)?;
        to.push(Want {
            chunk: *chunk,
            place,
            file,
            at,
        });
        at += u64::from(place.len);
    }
    if at != len {
        to.truncate(first);
        return Err(Fault::Bad(Bad {
            chunk: leaves.first().copied().unwrap_or(ChunkId([0; 32])),
            pack: None,
            why: format!("its chunks have {at} bytes and it has {len}"),
        }));
    }
    Ok(leaves.len())
}

/// The path of a name in a directory, both below the root.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        return name.to_vec();
    }
    [dir, b"/", name].concat()
}

/// A snapshot's own directory entry, if it has a tree.
pub(crate) fn root(snapshot: &Snapshot) -> Option<(&Entry, &Content)> {
    let root = snapshot.tree.as_ref()?;
    match &root.kind {
        Kind::Dir(content) => Some((root, content)),
        _ => None,
    }
}

/// What was marked in all snapshots walked so far.
#[derive(Default)]
pub(crate) struct Marks {
    pub(crate) chunks: IdSet<ChunkId>,
    dirs: HashSet<Content>,
}

impl Marks {
    /// Marks every chunk that a snapshot needs. Directories are read; files are not.
    pub(crate) fn mark(
        &mut self,
        fetch: &Fetch<'_>,
        snapshot: &Snapshot,
    ) -> crate::error::Result<()> {
        for (name, stream) in &snapshot.streams {
            self.content(fetch, &stream.content)
                .map_err(|fault| fault.of(&snapshot.id, name.as_bytes()))?;
        }
        let Some((_, content)) = root(snapshot) else {
            return Ok(());
        };
        let mut stack = vec![(Vec::new(), content.clone())];
        while let Some((path, content)) = stack.pop() {
            if !self.dirs.insert(content.clone()) {
                continue;
            }
            let entries = fetch
                .directory(&content, &mut |chunk| self.chunks.extend([*chunk]))
                .map_err(|fault| fault.of(&snapshot.id, &path))?;
            for entry in entries {
                let below = join(&path, &entry.name);
                match entry.kind {
                    Kind::Dir(content) => stack.push((below, content)),
                    Kind::File { content, .. } => self
                        .content(fetch, &content)
                        .map_err(|fault| fault.of(&snapshot.id, &below))?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn content(&mut self, fetch: &Fetch<'_>, content: &Content) -> Result<(), Fault> {
        if content.level == 0 {
            self.chunks.extend(&content.chunks);
            return Ok(());
        }
        fetch
            .leaves(content, &mut |chunk| self.chunks.extend([*chunk]))
            .map(drop)
    }
}
