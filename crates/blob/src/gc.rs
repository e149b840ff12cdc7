//! Garbage collection: mark and sweep beside pushes that know nothing of it.
//!
//! A sweep first says, in an object under `gc/`, which packs it is about to take; then it reads which snapshots there
//! are; then it removes what none of them needs. A push announces its snapshot first and then reads `gc/` and the index. So
//! either the sweep sees the snapshot, or the push sees the sweep. The argument in full is in `docs/blob-format.md`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::envelope::{self, Body};
use crate::error::{Error, Result};
use crate::fetch::Fetch;
use crate::id::{IdMap, IdSet, PackId, SnapshotId, hex};
use crate::index::{self, Known};
use crate::plan::Marks;
use crate::sink::{self, Lane, Sink};
use crate::snapshot;
use crate::store::Store;

const LOCK: &str = "gc-lock/lock";
/// A pack is written anew once so little of it is needed, in percent.
const MOSTLY_DEAD: u64 = 30;

/// An announced snapshot is taken for a killed push's once it is so old.
const PENDING: Duration = Duration::from_secs(24 * 3600);

/// What is written beside an object is taken for a killed writer's once nothing was added to it for so long.
const STAGED: Duration = Duration::from_secs(3600);

/// Whether a collection does what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// It only tells.
    Dry,
    /// It removes.
    Wet,
}

/// What a collection may take.
#[derive(Debug, Clone, Copy)]
pub struct GcOptions {
    /// Snapshots and packs younger than this are never taken, by the store's clock. Longer than any push and pull takes.
    pub grace: Duration,
    /// Whether it removes.
    pub run: Run,
    /// A lock older than this is a dead collection's.
    pub lock_age: Duration,
}

impl Default for GcOptions {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self {
            grace: DAY,
            run: Run::Wet,
            lock_age: DAY,
        }
    }
}

/// What a collection did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Snapshots removed.
    pub snapshots: Vec<SnapshotId>,
    /// Packs removed.
    pub packs: u64,
    /// Their bytes.
    pub freed_bytes: u64,
    /// Bytes of chunks still needed that were written anew, out of packs that are mostly dead.
    pub repacked_bytes: u64,
    /// Packs kept because of their age, though nothing needs them.
    pub young: u64,
}

/// What a sweep is about to take.
#[derive(Serialize, Deserialize)]
struct Intent {
    packs: Vec<PackId>,
}

/// The packs that some sweep is about to take.
pub(crate) fn doomed(store: &Store) -> Result<IdSet<PackId>> {
    let mut all = IdSet::default();
    for name in store.backend.names("gc")? {
        let name = format!("gc/{name}");
        // Gone since it was listed: that sweep is over, and the index tells what it took.
        let Some(bytes) = store.backend.get(&name)? else {
            continue;
        };
        let text = envelope::open(&store.vault, &name, Body::Sealed, &bytes)?;
        let intent: Intent =
            serde_json::from_slice(&text).map_err(|why| Error::damaged(name, why.to_string()))?;
        all.extend(intent.packs);
    }
    Ok(all)
}

impl Store {
    /// Removes the snapshots that are not in `keep`, and what only they needed.
    ///
    /// A snapshot also stays if it is younger than the grace period, announced, or a ref's. It is safe to push, pull and
    /// verify meanwhile. Killed in the middle, it leaves an intent that the next collection finishes.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if another one runs. [`Error::Chunk`] if a directory of a kept snapshot cannot be read: nothing
    /// is taken then, because what it needs is not known.
    pub fn gc(&self, keep: &[SnapshotId], options: &GcOptions) -> Result<GcReport> {
        if options.run == Run::Wet {
            self.lock(options)?;
        }
        let done = self.collect(keep, options);
        if options.run == Run::Wet {
            let unlocked = self.backend.remove(vec![LOCK.into()]);
            return done.and_then(|report| unlocked.map(|()| report));
        }
        done
    }

    fn lock(&self, options: &GcOptions) -> Result<()> {
        let holder = hex(&rand::random::<[u8; 16]>()).into_bytes();
        if self.backend.create(LOCK, holder.clone())? {
            return Ok(());
        }
        let held = self.backend.list("gc-lock")?;
        let old = held
            .iter()
            .all(|lock| age(lock.modified) >= options.lock_age);
        if old {
            self.backend.remove(vec![LOCK.into()])?;
            if self.backend.create(LOCK, holder)? {
                return Ok(());
            }
        }
        Err(Error::Locked { lock: LOCK.into() })
    }

    fn collect(&self, keep: &[SnapshotId], options: &GcOptions) -> Result<GcReport> {
        let mut report = GcReport::default();
        let mut keep: IdSet<SnapshotId> = keep.iter().copied().collect();
        // In this order: a push announces its snapshot, publishes it, moves its ref, and only then takes the announcement
        // back. So one that is listed here is held by one of the two, or is nobody's.
        let published = self.backend.list("snapshots")?;
        keep.extend(self.announced()?);
        let refs = self.list_refs()?;
        keep.extend(refs.iter().map(|(_, to)| *to));
        let mut there = IdSet::default();
        for listed in published {
            let Ok(id) = listed.name.parse() else {
                continue;
            };
            there.insert(id);
            if !keep.contains(&id) && age(listed.modified) >= options.grace {
                report.snapshots.push(id);
            }
        }
        for (name, to) in &refs {
            // Somebody may bring it back; without what it needs that would be of no use. (One that was published or moved
            // meanwhile is fine.)
            if !there.contains(to)
                && self.backend.get(&snapshot::object(to))?.is_none()
                && self.get_ref(name)?.is_some_and(|(now, _)| now == *to)
            {
                return Err(Error::damaged(
                    snapshot::object(to),
                    format!(
                        "it is gone, and ref {name} points to it; no garbage is collected beside that"
                    ),
                ));
            }
        }
        let roots = self.roots()?;
        let known = self.known()?;
        if let Some(name) = known.damaged.first() {
            // Its chunks count as missing: no reason to take more away.
            return Err(Error::damaged(
                name.clone(),
                "no garbage is collected beside a damaged index",
            ));
        }
        let fetch = Fetch::new(self, Arc::clone(&known));
        let forgotten: IdSet<SnapshotId> = report.snapshots.iter().copied().collect();
        let mut marked = IdSet::default();
        let mut marks = Marks::default();
        self.mark(&fetch, &roots, &mut marks, &mut marked, &forgotten)?;
        let mut plan = Plan::make(self, &known, &marks, options, &mut report)?;
        if options.run == Run::Dry {
            report.packs = (plan.dead.len() + plan.partial.len()) as u64;
            report.freed_bytes = plan.bytes(plan.dead.iter().chain(&plan.partial));
            report.repacked_bytes = plan.live_bytes;
            return Ok(report);
        }
        // A snapshot goes before what it needs: a pull that starts now says that it is gone.
        self.backend
            .remove(report.snapshots.iter().map(snapshot::object).collect())?;
        self.clear_refs(options.grace)?;
        self.clear_pending(options.grace.max(PENDING))?;
        self.backend.clear_staged(options.grace.max(STAGED))?;
        report.repacked_bytes = self.repack(&fetch, &plan, &marks)?;
        plan.dead.append(&mut plan.partial);

        // What earlier collections left unfinished is swept along.
        let left: Vec<String> = self
            .backend
            .names("gc")?
            .into_iter()
            .map(|name| format!("gc/{name}"))
            .collect();
        let intent = format!("gc/{}", hex(&rand::random::<[u8; 16]>()));
        let mut doomed = doomed(self)?;
        doomed.extend(&plan.dead);
        if doomed.is_empty() {
            return Ok(report);
        }
        let text = serde_json::to_vec(&Intent {
            packs: doomed.iter().copied().collect(),
        })
        .expect("an intent is plain JSON");
        self.backend.put(
            &intent,
            envelope::close(&self.vault, &intent, Body::Sealed, text),
        )?;
        // Only now is it read which snapshots there are: one that is not seen here sees the intent.
        let rescued = self.rescue(&doomed, &mut marks, &mut marked)?;
        doomed.retain(|pack| !rescued.contains(pack));
        report.packs = doomed.len() as u64;
        report.freed_bytes = plan.bytes(doomed.iter());
        // The index first: a pack without one is nobody's, an index without a pack is damage.
        self.backend
            .remove(doomed.iter().map(|pack| index::object(*pack)).collect())?;
        self.backend
            .remove(doomed.iter().map(|pack| sink::object(*pack)).collect())?;
        self.backend
            .remove(left.into_iter().chain([intent]).collect())?;
        Ok(report)
    }

    /// Lists the announced snapshots, and then the published ones: one that is published between is seen, twice perhaps.
    /// The index is read after that, so that it has the packs of all of them.
    fn roots(&self) -> Result<Roots> {
        Ok(Roots {
            pending: self.announced()?,
            published: self.list()?,
        })
    }

    fn announced(&self) -> Result<Vec<SnapshotId>> {
        let names = self.backend.names("pending")?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Marks what all snapshots need, but for those marked before and those to be forgotten.
    fn mark(
        &self,
        fetch: &Fetch<'_>,
        roots: &Roots,
        marks: &mut Marks,
        marked: &mut IdSet<SnapshotId>,
        forgotten: &IdSet<SnapshotId>,
    ) -> Result<()> {
        for id in &roots.published {
            if forgotten.contains(id) || !marked.insert(*id) {
                continue;
            }
            match self.snapshot(id) {
                Ok(snapshot) => marks.mark(fetch, &snapshot)?,
                // Somebody removed it.
                Err(Error::NoSnapshot(_)) => {}
                Err(why) => return Err(why),
            }
        }
        for id in &roots.pending {
            // Published since the listing, or given up; an announcement goes after the snapshot is there.
            let Some(snapshot) = snapshot::read_pending(self, id)? else {
                match self.snapshot(id) {
                    Ok(snapshot) => marks.mark(fetch, &snapshot)?,
                    Err(Error::NoSnapshot(_)) => {}
                    Err(why) => return Err(why),
                }
                continue;
            };
            // One whose chunks an earlier sweep took will not be published: its push finds that out. What was marked of
            // it halfway must not make others count as marked.
            let mut own = Marks::default();
            match own.mark(fetch, &snapshot) {
                Ok(()) | Err(Error::Chunk(_)) => marks.chunks.extend(own.chunks),
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Finds the packs without which something would be missing, now that the intent is known.
    fn rescue(
        &self,
        doomed: &IdSet<PackId>,
        marks: &mut Marks,
        marked: &mut IdSet<SnapshotId>,
    ) -> Result<IdSet<PackId>> {
        let roots = self.roots()?;
        let all = self.known()?;
        let fetch = Fetch::new(self, Arc::clone(&all));
        self.mark(&fetch, &roots, marks, marked, &IdSet::default())?;
        let rest = self.known()?.without(&|pack| doomed.contains(pack));
        let mut rescued = IdSet::default();
        for chunk in &marks.chunks {
            if rest.find(chunk).is_none()
                && let Some(place) = all.find(chunk)
            {
                rescued.insert(all.frame(place).0);
            }
        }
        Ok(rescued)
    }

    /// Removes what killed pushes announced and never published.
    fn clear_pending(&self, older: Duration) -> Result<()> {
        let listed = self.backend.list("pending")?;
        let old = listed.iter().filter(|listed| age(listed.modified) >= older);
        self.backend.remove(
            old.map(|listed| format!("pending/{}", listed.name))
                .collect(),
        )
    }

    /// Copies what is needed out of packs that are mostly dead.
    fn repack(&self, fetch: &Fetch<'_>, plan: &Plan, marks: &Marks) -> Result<u64> {
        if plan.partial.is_empty() {
            return Ok(0);
        }
        let rest = self
            .known()?
            .without(&|pack| plan.partial.contains(pack) || plan.dead.contains(pack));
        let sink = Sink::new(&self.backend, &self.vault, rest);
        let mut lane = Lane::new();
        for pack in &plan.partial {
            let Some(number) = fetch.known.by_pack.get(pack) else {
                continue;
            };
            let index = &fetch.known.packs[*number as usize].1;
            for frame in &index.frames {
                for (chunk, _) in index.of(frame) {
                    if marks.chunks.contains(chunk) {
                        let bytes = fetch.chunk(chunk).map_err(|fault| {
                            fault.of(&SnapshotId([0; 32]), b"a garbage collection")
                        })?;
                        sink.add_now(&mut lane, frame.class, &bytes)?;
                    }
                }
            }
        }
        sink.flush(&mut lane)?;
        sink.finish()?;
        Ok(sink.new_bytes.into_inner())
    }
}

/// What is not garbage.
struct Roots {
    pending: Vec<SnapshotId>,
    published: Vec<SnapshotId>,
}

/// Which packs may go.
struct Plan {
    dead: Vec<PackId>,
    partial: Vec<PackId>,
    live_bytes: u64,
    sizes: IdMap<PackId, u64>,
}

impl Plan {
    fn make(
        store: &Store,
        known: &Known,
        marks: &Marks,
        options: &GcOptions,
        report: &mut GcReport,
    ) -> Result<Self> {
        let mut plan = Self {
            dead: Vec::new(),
            partial: Vec::new(),
            live_bytes: 0,
            sizes: IdMap::default(),
        };
        for listed in store.backend.list("packs")? {
            let Ok(pack) = listed.name.parse::<PackId>() else {
                continue;
            };
            plan.sizes.insert(pack, listed.size);
            let (mut live, mut all) = (0u64, 0u64);
            if let Some(number) = known.by_pack.get(&pack) {
                let index = &known.packs[*number as usize].1;
                for frame in &index.frames {
                    for (chunk, len) in index.of(frame) {
                        all += u64::from(*len);
                        // Of a chunk that two packs have, only the one that readers use counts.
                        let here = known.find(chunk).is_some_and(|place| place.pack == *number);
                        if here && marks.chunks.contains(chunk) {
                            live += u64::from(*len);
                        }
                    }
                }
            }
            let is_dead = live == 0;
            if !is_dead && live * 100 > all * MOSTLY_DEAD {
                continue;
            }
            if age(listed.modified) < options.grace {
                report.young += u64::from(is_dead);
                continue;
            }
            if is_dead {
                plan.dead.push(pack);
            } else {
                plan.live_bytes += live;
                plan.partial.push(pack);
            }
        }
        // An index without its pack: a push was too late with it, or the pack was lost. It would mislead.
        plan.dead.extend(
            known
                .dangling
                .iter()
                .filter(|pack| !plan.sizes.contains_key(pack)),
        );
        Ok(plan)
    }

    fn bytes<'p>(&self, packs: impl Iterator<Item = &'p PackId>) -> u64 {
        packs.filter_map(|pack| self.sizes.get(pack)).sum()
    }
}

pub(crate) fn age(of: SystemTime) -> Duration {
    SystemTime::now().duration_since(of).unwrap_or_default()
}
