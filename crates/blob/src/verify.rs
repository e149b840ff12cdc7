//! Reads everything that a snapshot needs and tells what is damaged: all of it, not only the first.

use crate::entry::Kind;
use crate::error::{Damage, Error, Result};
use crate::fetch::{Bad, Fault, Fetch};
use crate::id::{PackId, SnapshotId};
use crate::index::{self, Known};
use crate::plan::{self, Marks, Want};
use crate::sink;
use crate::snapshot::Snapshot;
use crate::store::Store;

/// What a check read, and what it found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Chunks of files and streams that were read.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What cannot be had as it was written.
    pub damage: Vec<Damage>,
    /// Index objects that cannot be read, whether or not the snapshot needs them.
    pub damaged_indexes: Vec<String>,
}

impl VerifyReport {
    /// Says whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty() && self.damaged_indexes.is_empty()
    }
}

impl Store {
    /// Forgets packs that are damaged: no push relies on them any more, and what is still needed of them is written anew by
    /// the next push of it from where it lives. Until then snapshots lack all of their chunks.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn forget_packs(&self, packs: &[PackId]) -> Result<()> {
        // The index first: a pack without one is nobody's.
        let indexes = packs.iter().map(|pack| index::object(*pack));
        self.backend.remove(indexes.collect())?;
        let packs = packs.iter().map(|pack| sink::object(*pack));
        self.backend.remove(packs.collect())
    }

    /// Reads every pack that a snapshot needs, as a whole, and every chunk in it that is needed.
    ///
    /// # Errors
    ///
    /// Those of the store, and a damaged snapshot object. Damaged packs and chunks are in the report.
    pub fn verify(&self, id: &SnapshotId) -> Result<VerifyReport> {
        let snapshot = self.snapshot(id)?;
        // Not from this machine's copy of the index: it is the store that is checked.
        let known = Known::load(&self.backend, &self.vault, None, None)?;
        let fetch = Fetch::new(self, known);
        let mut report = VerifyReport {
            damaged_indexes: fetch.known.damaged.clone(),
            ..VerifyReport::default()
        };
        let mut paths = Vec::new();
        let mut wants = Vec::new();
        self.gather(&fetch, &snapshot, &mut report, &mut paths, &mut wants)?;
        wants.sort_by_key(|want: &Want| (want.place.pack, want.place.frame, want.place.at));
        for pack in wants.chunk_by(|a, b| a.place.pack == b.place.pack) {
            self.verify_pack(&fetch, &snapshot, pack, &paths, &mut report)?;
        }
        Ok(report)
    }

    /// Reads the directories and lists what the files need.
    fn gather(
        &self,
        fetch: &Fetch<'_>,
        snapshot: &Snapshot,
        report: &mut VerifyReport,
        paths: &mut Vec<Vec<u8>>,
        wants: &mut Vec<Want>,
    ) -> Result<()> {
        let mut note = |fault: Fault, path: &[u8]| match fault {
            Fault::Bad(bad) => {
                report.damage.push(bad.of(&snapshot.id, path));
                Ok(())
            }
            Fault::Store(why) => Err(why),
        };
        let mut want = |path: Vec<u8>, content: &_, len, wants: &mut Vec<Want>| {
            let number = u32::try_from(paths.len()).expect("no tree has four billion files");
            let found = plan::wants(fetch, content, len, number, wants);
            paths.push(path);
            found.map(drop).map_err(|fault| (fault, number))
        };
        let mut faults = Vec::new();
        for (name, stream) in &snapshot.streams {
            if let Err((fault, _)) = want(
                name.clone().into_bytes(),
                &stream.content,
                stream.len,
                wants,
            ) {
                faults.push((fault, name.clone().into_bytes()));
            }
        }
        let mut stack = Vec::new();
        stack.extend(plan::root(snapshot).map(|(_, content)| (Vec::new(), content.clone())));
        while let Some((path, content)) = stack.pop() {
            let entries = match fetch.directory(&content, &mut |_| {}) {
                Ok(entries) => entries,
                Err(fault) => {
                    faults.push((fault, path));
                    continue;
                }
            };
            // The packs of the directories are to be read as wholes too.
            let len = content
                .chunks
                .iter()
                .filter_map(|id| fetch.known.find(id))
                .map(|place| u64::from(place.len))
                .sum();
            if content.level == 0 && want(path.clone(), &content, len, wants).is_err() {
                continue;
            }
            for entry in entries {
                let len = entry.data_len();
                let below = plan::join(&path, &entry.name);
                match entry.kind {
                    Kind::Dir(content) => stack.push((below, content)),
                    Kind::File { content, .. } => {
                        if let Err((fault, _)) = want(below.clone(), &content, len, wants) {
                            faults.push((fault, below));
                        }
                    }
                    _ => {}
                }
            }
        }
        for (fault, path) in faults {
            note(fault, &path)?;
        }
        Ok(())
    }

    fn verify_pack(
        &self,
        fetch: &Fetch<'_>,
        snapshot: &Snapshot,
        wants: &[Want],
        paths: &[Vec<u8>],
        report: &mut VerifyReport,
    ) -> Result<()> {
        let Some(first) = wants.first() else {
            return Ok(());
        };
        let pack = fetch.known.frame(first.place).0;
        let path = |want: &Want| paths[want.file as usize].as_slice();
        let bytes = self.backend.get(&sink::object(pack))?;
        let bytes = bytes.unwrap_or_default();
        let before = report.damage.len();
        for frame_wants in wants.chunk_by(|a, b| a.place.frame == b.place.frame) {
            let (_, frame) = fetch.known.frame(frame_wants[0].place);
            let at = usize::try_from(frame.at).unwrap_or(usize::MAX);
            let stored = bytes
                .get(at..at.saturating_add(frame.stored as usize))
                .unwrap_or_default();
            let raw = fetch.unseal(frame, stored);
            for want in frame_wants {
                let cut = match &raw {
                    Ok(raw) => fetch.cut(&want.chunk, want.place, raw).map(<[u8]>::len),
                    Err(why) => Err(Bad {
                        chunk: want.chunk,
                        pack: Some(pack),
                        why: (*why).into(),
                    }),
                };
                match cut {
                    Ok(len) => {
                        report.chunks += 1;
                        report.bytes += len as u64;
                    }
                    Err(bad) => report.damage.push(bad.of(&snapshot.id, path(want))),
                }
            }
        }
        let whole = bytes.len() as u64 == fetch.known.packs[first.place.pack as usize].1.pack_len()
            && *blake3::hash(&bytes).as_bytes() == pack.0;
        if !whole && report.damage.len() == before {
            let bad = Bad {
                chunk: first.chunk,
                pack: Some(pack),
                why: "the pack is not what was written, though this snapshot's chunks in it are"
                    .into(),
            };
            report.damage.push(bad.of(&snapshot.id, path(first)));
        }
        Ok(())
    }
}

/// Says whether every chunk that a snapshot needs is known.
pub(crate) fn all_known(fetch: &Fetch<'_>, snapshot: &Snapshot) -> Result<bool> {
    let mut marks = Marks::default();
    match marks.mark(fetch, snapshot) {
        Ok(()) => Ok(marks
            .chunks
            .iter()
            .all(|chunk| fetch.known.find(chunk).is_some())),
        Err(Error::Chunk(_)) => Ok(false),
        Err(why) => Err(why),
    }
}
