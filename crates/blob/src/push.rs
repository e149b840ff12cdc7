//! A push: a tree and streams go in, a snapshot comes out. Nothing is visible before the snapshot object is written.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use crate::backend::Prepared;
use crate::cache::{self, New, Old, Row};
use crate::error::{Error, Result};
use crate::fetch::Fetch;
use crate::gc;
use crate::id::{IdSet, PackId, SnapshotId};
use crate::index;
use crate::refs::{Generation, Moving};
use crate::scan::Scan;
use crate::sink::Sink;
use crate::snapshot::{self, Ready, Snapshot, Stream};
use crate::store::Store;
use crate::stream;
use crate::verify;

/// What a push did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PushReport {
    /// Entries of the tree.
    pub entries: u64,
    /// Entries that were looked at; the others were known to be as they were.
    pub looked_at: u64,
    /// Files that were read, because the cache did not know them as they are.
    pub read_files: u64,
    /// Their bytes, holes included.
    pub read_bytes: u64,
    /// Bytes of chunks that the store did not have.
    pub new_bytes: u64,
    /// What these take in the store, compressed and sealed.
    pub stored_bytes: u64,
}

/// What the caller knows of a tree besides what is in it, so that a push need not look at all of it.
pub struct Hint<'h> {
    /// What the caller calls this tree; the next push is told it back.
    pub token: &'h str,
    /// Returns the numbers of the inodes in which this tree may differ from the one of an earlier token, if they are known.
    ///
    /// An inode that both have and that is not among them must be the same in both: kind, attributes, links, content, and
    /// of a directory names and the inodes behind them.
    pub changed: &'h dyn Fn(&str) -> Option<BTreeSet<u64>>,
}

/// A push under way. Dropped before [`commit`](Self::commit), it leaves chunks that the next push finds, and nothing else.
pub struct Push<'s> {
    store: &'s Store,
    sink: Sink<'s>,
    parent: Option<Snapshot>,
    tree: Option<Tree>,
    streams: BTreeMap<String, Stream>,
    report: PushReport,
}

struct Tree {
    root: Row,
    new: New,
    /// What the new one keeps records of.
    old: Option<Old>,
    token: String,
    cache: Option<PathBuf>,
}

impl<'s> Push<'s> {
    pub(crate) fn new(store: &'s Store, parent: Option<Snapshot>) -> Result<Self> {
        // What a garbage collection is about to take away is as good as gone.
        let doomed = gc::doomed(store)?;
        let known = store.known()?;
        let lost: IdSet<PackId> = known.dangling.union(&doomed).copied().collect();
        let known = known.without(&|pack| lost.contains(pack));
        Ok(Self {
            store,
            sink: Sink::new(&store.backend, &store.vault, known),
            streams: BTreeMap::new(),
            parent,
            tree: None,
            report: PushReport::default(),
        })
    }

    /// Pushes the files of a directory, which must stand still meanwhile: a read-only cut.
    ///
    /// `cache` is a file of this machine that remembers the tree; it belongs to one workspace and is written when the
    /// push is committed. It may be absent, old or torn. With a `hint`, what did not change since the remembered tree is
    /// not looked at; where the hint cannot tell, everything is.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with the path that cannot be read, or that changed meanwhile.
    pub fn tree(
        &mut self,
        dir: &Path,
        cache: Option<&Path>,
        hint: Option<&Hint<'_>>,
    ) -> Result<()> {
        let old = cache.and_then(|path| Old::read(path, &self.store.id));
        let changed = match (&old, hint) {
            (Some(old), Some(hint)) if !old.token().is_empty() => (hint.changed)(old.token()),
            _ => None,
        };
        let scan = Scan::new(&self.sink, dir, old.as_ref(), changed.as_ref())?;
        let (root, new) = scan.run(self.store.threads())?;
        self.report.looked_at = scan.counts.looked_at.load(Relaxed);
        self.report.read_files = scan.counts.read_files.load(Relaxed);
        self.report.read_bytes = scan.counts.read_bytes.load(Relaxed);
        self.report.entries = new.sum(old.as_ref()).0;
        drop(scan);
        self.tree = Some(Tree {
            root,
            new,
            old,
            token: hint.map_or_else(String::new, |hint| hint.token.to_owned()),
            cache: cache.map(Path::to_owned),
        });
        Ok(())
    }

    /// Pushes a stream: what it had in the parent, up to `from`, and then what the reader gives. Returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the parent's stream is shorter than `from`.
    pub fn stream(&mut self, name: &str, reader: &mut dyn Read, from: u64) -> Result<u64> {
        let before = self.parent.as_ref().and_then(|parent| {
            let stream = parent.streams.get(name)?;
            Some((parent.id, stream))
        });
        let fetch = Fetch::new(self.store, Arc::clone(&self.sink.known));
        let stream = stream::push(&self.sink, &fetch, name, before, from, reader)?;
        let len = stream.len;
        self.streams.insert(name.to_owned(), stream);
        Ok(len)
    }

    /// Takes a stream over from the parent as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no parent with such a stream.
    pub fn keep_stream(&mut self, name: &str) -> Result<u64> {
        let stream = self
            .parent
            .as_ref()
            .and_then(|parent| parent.streams.get(name))
            .ok_or_else(|| Error::Invalid(format!("the parent has no stream {name:?}")))?;
        let (len, stream) = (stream.len, stream.clone());
        self.streams.insert(name.to_owned(), stream);
        Ok(len)
    }

    /// Waits until all of it is durable, then writes the snapshot object. `note` is the caller's; nothing here reads it.
    ///
    /// # Errors
    ///
    /// [`Error::Swept`] if a garbage collection took chunks away that were relied on; the same push, begun anew, uploads
    /// them.
    pub fn commit(self, note: serde_json::Value) -> Result<(SnapshotId, PushReport)> {
        let store = self.store;
        let (id, report, ()) = self.commit_and(note, |_| Ok(()))?;
        store.backend.remove(vec![snapshot::pending(&id)])?;
        Ok((id, report))
    }

    /// The same, with a ref to be moved to the snapshot by [`Store::move_ref`], from the generation that the caller read: it
    /// is written along, and nobody sees it yet. Until it has moved, the snapshot stays announced, and no collection takes it.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn commit_for(
        self,
        note: serde_json::Value,
        name: &str,
        was: Option<Generation>,
    ) -> Result<(SnapshotId, PushReport, Moving)> {
        let store = self.store;
        self.commit_and(note, |id| store.prepare_ref(name, was, id))
    }

    fn commit_and<T>(
        mut self,
        note: serde_json::Value,
        prepare: impl FnOnce(&SnapshotId) -> Result<T>,
    ) -> Result<(SnapshotId, PushReport, T)> {
        let ready = snapshot::ready(
            self.store,
            Snapshot {
                id: SnapshotId([0; 32]),
                created: SystemTime::now(),
                parents: self.parent.iter().map(|parent| parent.id).collect(),
                streams: std::mem::take(&mut self.streams),
                entries: self.report.entries,
                note,
                tree: self.tree.as_ref().map(|tree| tree.root.entry.clone()),
            },
        );
        // All of it is on its way to the disk together, and shares what waiting that takes.
        self.sink.close()?;
        let prepared = ready.prepare(self.store);
        let along = prepare(&ready.snapshot.id)?;
        let written = self.sink.finish()?;
        let known = &self.sink.known.packs;
        let relied: Vec<PackId> = known
            .iter()
            .chain(&written)
            .map(|(pack, _)| *pack)
            .collect();
        self.publish(&ready, prepared, &relied)?;
        let snapshot = ready.snapshot;
        self.report.new_bytes = self.sink.new_bytes.load(Relaxed);
        self.report.stored_bytes = self.sink.stored_bytes.load(Relaxed);

        if let Some(path) = self.store.index_cache() {
            let records: Vec<_> = written
                .iter()
                .map(|(pack, index)| (*pack, index.encode()))
                .collect();
            remembered(&path, index::append(&path, &records));
        }
        if let Some(tree) = &self.tree
            && let Some(path) = &tree.cache
        {
            let of = cache::Of {
                store: &self.store.id,
                token: &tree.token,
            };
            let old = tree.old.as_ref();
            let written = tree.new.write(path, &of, &relied, &tree.root, old);
            remembered(path, written);
        }
        let (store, report) = (self.store, self.report);
        // What is known is nobody else's then, and can be added to.
        drop(self);
        store.learn(written);
        Ok((snapshot.id, report, along))
    }

    /// Announces the snapshot, checks that no collection took or is about to take what it needs, and publishes it. The
    /// announcement stays.
    ///
    /// The order is what makes it safe; see the format page. A collection clears announcements away that are a day old:
    /// then the check is made once more, after the snapshot itself, which the next collection sees.
    fn publish(&self, ready: &Ready, prepared: [Prepared; 2], relied: &[PackId]) -> Result<()> {
        let store = self.store;
        let id = &ready.snapshot.id;
        let pending = snapshot::pending(id);
        let [pending_object, object] = prepared;
        ready.announce(store, pending_object)?;
        if !self.still_there(&ready.snapshot, relied)? {
            store.backend.remove(vec![pending])?;
            return Err(Error::Swept);
        }
        ready.publish(store, object)?;
        if store.backend.get(&pending)?.is_none() && !self.still_there(&ready.snapshot, relied)? {
            store.backend.remove(vec![snapshot::object(id)])?;
            return Err(Error::Swept);
        }
        Ok(())
    }

    fn still_there(&self, snapshot: &Snapshot, relied: &[PackId]) -> Result<bool> {
        // The intents before the packs: a sweep takes its intent back after it has removed what is in it.
        let doomed = gc::doomed(self.store)?;
        let there: IdSet<PackId> = index::names(&self.store.backend, "packs")?
            .into_iter()
            .collect();
        let lost = |pack: &PackId| doomed.contains(pack) || !there.contains(pack);
        if !relied.iter().any(lost) {
            return Ok(true);
        }
        // Most of what was known is not needed by this snapshot, or another pack has it too.
        let known = self.store.known()?;
        let lost: IdSet<PackId> = known.dangling.union(&doomed).copied().collect();
        let rest = known.without(&|pack| lost.contains(pack));
        verify::all_known(&Fetch::new(self.store, rest), snapshot)
    }
}

/// A cache that cannot be written costs the next push time, and nothing else.
fn remembered(path: &Path, written: std::io::Result<()>) {
    if let Err(why) = written {
        tracing::warn!(path = %path.display(), %why, "the cache cannot be written");
    }
}

impl std::fmt::Debug for Push<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Push({:?})", self.report)
    }
}
