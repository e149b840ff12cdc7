//! Putting a sandbox into a store: only what the store does not have.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use blob::{Generation, Hint, Snapshot, Store};
use journal::Raw;
use protocol::api::{PushSandbox, PushView};
use protocol::{
    ApiError, CutId, ErrorCode, Event, Head, SandboxId, SandboxName, SandboxSpec, Seq, StoreAt,
    WorkspaceId,
};

use super::outputs::{self, Output};
use super::{
    CutNote, FORMAT, JOURNAL, Note, OUTPUT, address, cut_ref, holds, main_ref, note, of_blob,
    open_here,
};
use crate::engine::Engine;
use crate::error;
use crate::sandbox::{Handle, Held, Place, Request};
use crate::shared::{Shared, now};
use crate::state::{Cut, State};

/// Events read from the journal at a time.
const PAGE: usize = 1024;
/// Pushes that a collection made void, before it is told.
const PATIENCE: usize = 4;

/// Which checkpoints go along besides the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    Labeled,
}

/// A sandbox as it is to be pushed, its cuts held.
pub(crate) struct Outgoing {
    pub(crate) head: Head,
    pub(crate) spec: SandboxSpec,
    pub(crate) branch: u32,
    pub(crate) tip: Option<(WorkspaceId, CutId)>,
    /// Other cuts, oldest first.
    pub(crate) cuts: Vec<Cut>,
    /// Every cut that the sandbox has.
    pub(crate) known: Vec<CutId>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) held: Vec<Held>,
}

impl Outgoing {
    /// Collects what a push needs; what it speaks of must be held before anything else happens to the sandbox.
    pub(crate) fn new(state: &State, head: Head, after: Seq, which: Which) -> Self {
        let tip = state.last_cut().and_then(|id| state.cut(id));
        let goes = |cut: &&Cut| match which {
            Which::All => true,
            Which::Labeled => cut.label.is_some(),
        };
        let others = state
            .cuts
            .iter()
            .filter(|cut| Some(&cut.id) != state.last_cut());
        Self {
            head,
            spec: state.spec.clone(),
            branch: state.branch,
            tip: tip.map(|cut| (cut.workspace.clone(), cut.id.clone())),
            cuts: others.filter(goes).cloned().collect(),
            known: state.cuts.iter().map(|cut| cut.id.clone()).collect(),
            outputs: outputs::since(state, after),
            held: Vec::new(),
        }
    }

    /// The cuts that must stay while it is pushed.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + use<'_> {
        let others = self
            .cuts
            .iter()
            .map(|cut| (cut.workspace.clone(), cut.id.clone()));
        let at = self.head.seq;
        self.tip
            .iter()
            .cloned()
            .chain(others)
            .map(move |cut| Place { at, cut: Some(cut) })
    }
}

/// From where on streams are pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// What came after the last push; the rest is in the store.
    LastPush,
    /// All of it.
    Ever,
}

/// What the store has of a sandbox.
struct Before {
    name: SandboxName,
    generation: Option<Generation>,
    snapshot: Option<(Snapshot, Note)>,
}

impl Before {
    fn head(&self) -> Head {
        let known = self.snapshot.as_ref();
        known.map_or(Head::EMPTY, |(_, note)| note.head)
    }
}

impl Engine {
    /// Puts a sandbox into a blob store: its files as they are now, its journal, and the output of its operations.
    ///
    /// Processes go on. What is running is not in it, and is `lost` where the sandbox is pulled.
    ///
    /// # Errors
    /// `conflict` where the store has a sandbox of that name that went another way, or is another one.
    pub async fn push(&self, name: &SandboxName, ask: PushSandbox) -> Result<PushView, ApiError> {
        let handle = self.get(name)?;
        let which = if ask.all { Which::All } else { Which::Labeled };
        // The files as they are now are what is pushed; where there are none, that is so.
        // (One that went on elsewhere takes no cuts any more; what it has can be saved under another name.)
        drop(handle.hold(None).await?);
        let called = ask.name.unwrap_or_else(|| name.clone());
        handle.push_to(&ask.store, &called, which).await
    }
}

impl Handle {
    /// Pushes what is journaled, with the last cut.
    pub(crate) async fn push_to(
        &self,
        at: &StoreAt,
        called: &SandboxName,
        which: Which,
    ) -> Result<PushView, ApiError> {
        let (mut patience, mut since) = (PATIENCE, Since::LastPush);
        loop {
            match self.try_push(at, called, which, since).await {
                Err(Tried::Swept | Tried::Overtaken) if patience > 0 => patience -= 1,
                Err(Tried::Swept) => return Err(of_blob(&blob::Error::Swept)),
                Err(Tried::Overtaken) => {
                    let what = format!("others push `{called}` to the store all the time");
                    return Err(ApiError::new(ErrorCode::Unavailable, what).hint("try again"));
                }
                // What was pushed before cannot be read there any more: all of it is here.
                Err(Tried::Lacking(_)) if since == Since::LastPush => since = Since::Ever,
                Err(Tried::Lacking(failure)) => return Err(failure),
                Err(Tried::Failed(failure)) => return Err(failure),
                Ok(view) => return Ok(view),
            }
        }
    }

    async fn try_push(
        &self,
        at: &StoreAt,
        called: &SandboxName,
        which: Which,
        since: Since,
    ) -> Result<PushView, Tried> {
        let (shared, place, name) = (self.shared.clone(), at.clone(), called.clone());
        let opened = blocking(move || {
            let store = open_here(&shared, &place)?;
            let before = before(&store, name)?;
            Ok((store, before))
        });
        let (store, before) = opened.await?;
        let after = before.head();
        let mut outgoing = self
            .ask(|reply| Request::Outgoing {
                after: match since {
                    Since::LastPush => after.seq,
                    Since::Ever => Seq(0),
                },
                which,
                reply,
            })
            .await?;
        outgoing.held = outgoing.places().map(|place| self.held(place)).collect();
        let ours = match after.seq {
            Seq(0) => None,
            seq => {
                let events = self.shared.store.export(self.id, seq, 1).await;
                let events = events.map_err(|e| error::of_journal(&e))?;
                events.first().map(|event| event.hash)
            }
        };
        if !holds(outgoing.head, after, ours) {
            return Err(Tried::Failed(other_way(at, called, after)));
        }
        let work = Work {
            shared: self.shared.clone(),
            sandbox: self.id,
            state_dir: self.state_dir(),
            store,
            before,
            since,
            outgoing,
            place: address(at, called),
        };
        let (view, fresh, to) = blocking(move || work.run()).await?;
        if !fresh.is_empty() {
            let at = view.seq;
            let cuts = fresh;
            let recorded = self.record(vec![Event::Replicated { to, at, cuts }]).await;
            match recorded {
                Err(overtaken) if overtaken.code == ErrorCode::Conflict => {}
                recorded => drop(recorded?),
            }
        }
        Ok(view)
    }
}

/// A push that has all it needs; done on a thread that may block.
struct Work {
    shared: Arc<Shared>,
    sandbox: SandboxId,
    state_dir: PathBuf,
    store: Arc<Store>,
    before: Before,
    since: Since,
    outgoing: Outgoing,
    place: String,
}

impl Work {
    /// Returns what was done, the cuts that the store did not have, and where it went.
    fn run(self) -> Result<(PushView, Vec<CutId>, String), Tried> {
        let Outgoing {
            head, spec, tip, ..
        } = &self.outgoing;
        let after = self.before.head();
        let mut view = PushView {
            name: self.before.name.clone(),
            seq: head.seq,
            cut: tip.as_ref().map(|(_, cut)| cut.clone()),
            checkpoints: 0,
            read_files: 0,
            read_bytes: 0,
            new_bytes: 0,
            stored_bytes: 0,
        };
        let cuts = self.cuts(&mut view)?;
        view.checkpoints = cuts.len() as u64 + u64::from(tip.is_some());
        let known = self.before.snapshot.as_ref().map(|(_, note)| note);
        let has = |cut: &CutId| {
            known.is_some_and(|note| note.tip.as_ref() == Some(cut) || note.cuts.contains(cut))
        };
        let all = cuts.iter().chain(&view.cut);
        let fresh: Vec<CutId> = all.filter(|cut| !has(cut)).cloned().collect();
        if *head == after && fresh.is_empty() && known.is_some_and(|note| note.cuts == cuts) {
            return Ok((view, fresh, self.place));
        }
        let (parent, first) = match self.since {
            Since::LastPush => (self.before.snapshot.as_ref(), after.seq.next()),
            Since::Ever => (None, Seq(1)),
        };
        let parent = parent.map(|(parent, _)| parent);
        let mut push = self.store.begin_after(parent.cloned())?;
        if let Some((workspace, cut)) = tip {
            self.tree(&mut push, workspace, cut)?;
        }
        let from = |name| {
            parent
                .and_then(|parent| parent.streams.get(name))
                .map_or(0, |s| s.len)
        };
        let mut events = Events {
            shared: self.shared.clone(),
            runtime: tokio::runtime::Handle::current(),
            sandbox: self.sandbox,
            next: first,
            last: head.seq,
            page: io::Cursor::default(),
        };
        push.stream(JOURNAL, &mut events, from(JOURNAL))?;
        let mut printed =
            outputs::Reader::new(self.state_dir.clone(), self.outgoing.outputs.clone());
        push.stream(OUTPUT, &mut printed, from(OUTPUT))?;
        let note = Note {
            format: FORMAT,
            name: spec.name.clone(),
            image: spec
                .image_digest
                .clone()
                .unwrap_or_else(|| spec.image.to_string()),
            node: self.shared.config.node.clone(),
            at_ms: now(),
            head: *head,
            branch: self.outgoing.branch,
            tip: view.cut.clone(),
            cuts,
        };
        failpoint::hit("before_push_commit");
        let (name, was) = (main_ref(&self.before.name), self.before.generation);
        let (_, report, moving) = push.commit_for(as_json(&note)?, &name, was)?;
        failpoint::hit("after_push_commit");
        match self.store.move_ref(moving) {
            Err(blob::Error::Moved { .. }) => return Err(Tried::Overtaken),
            moved => moved?,
        };
        failpoint::hit("after_push_ref");
        count(&mut view, &report);
        self.thin_out(&note)?;
        Ok((view, fresh, self.place))
    }

    /// Pushes the cuts that are snapshots of their own, and returns them, oldest first.
    fn cuts(&self, view: &mut PushView) -> Result<Vec<CutId>, Tried> {
        let name = &self.before.name;
        let had = self.before.snapshot.iter().flat_map(|(_, note)| &note.cuts);
        let had: Vec<&CutId> = had.collect();
        let mut cuts = Vec::new();
        let tip = self.outgoing.tip.as_ref().map(|(_, tip)| tip);
        for id in self.outgoing.known.iter().filter(|id| Some(*id) != tip) {
            // What the store has stays there as long as the sandbox has it.
            if had.contains(&id) {
                cuts.push(id.clone());
                continue;
            }
            let Some(cut) = self.outgoing.cuts.iter().find(|cut| cut.id == *id) else {
                continue;
            };
            let at = cut_ref(name, id);
            let there = self.store.get_ref(&at)?;
            if let Some((snapshot, _)) = &there {
                let snapshot = self.store.snapshot(snapshot)?;
                let told: Option<CutNote> = serde_json::from_value(snapshot.note).ok();
                if told.is_some_and(|told| told.workspace == cut.workspace && told.cut == *id) {
                    cuts.push(id.clone());
                    continue;
                }
            }
            let mut push = self.store.begin(None)?;
            self.tree(&mut push, &cut.workspace, id)?;
            let note = CutNote {
                format: FORMAT,
                cut: id.clone(),
                workspace: cut.workspace.clone(),
            };
            let was = there.map(|(_, generation)| generation);
            let (_, report, moving) = push.commit_for(as_json(&note)?, &at, was)?;
            self.store.move_ref(moving)?;
            count(view, &report);
            cuts.push(id.clone());
        }
        Ok(cuts)
    }

    /// Pushes the files of a cut; where the pool can tell what changed since the one pushed before, only that is looked at.
    fn tree(
        &self,
        push: &mut blob::Push<'_>,
        workspace: &WorkspaceId,
        cut: &CutId,
    ) -> Result<(), Tried> {
        let pool = &self.shared.pool;
        let mark = told(pool.mark(workspace, cut));
        let changed = |earlier: &str| told(pool.changed_inodes(workspace, earlier, cut));
        let hint = mark.as_deref().map(|token| Hint {
            token,
            changed: &changed,
        });
        let tree = pool.cut_path(workspace, cut);
        push.tree(&tree, Some(&self.cache(workspace)), hint.as_ref())?;
        Ok(())
    }

    /// Takes refs away of cuts that the sandbox has not any more.
    fn thin_out(&self, note: &Note) -> Result<(), Tried> {
        let Some((_, before)) = &self.before.snapshot else {
            return Ok(());
        };
        for cut in before.cuts.iter().filter(|cut| !note.cuts.contains(cut)) {
            self.store.remove_ref(&cut_ref(&self.before.name, cut))?;
        }
        Ok(())
    }

    /// What this machine remembers of the files of a head; it goes with the sandbox.
    fn cache(&self, workspace: &WorkspaceId) -> PathBuf {
        self.state_dir.join(format!("pushed-{workspace}"))
    }
}

/// A pool that cannot tell makes a push longer, and no worse.
fn told<T>(told: workspace::Result<Option<T>>) -> Option<T> {
    told.unwrap_or_else(|why| {
        tracing::warn!(error = %error::chain(&why), "the pool cannot tell what changed");
        None
    })
}

/// The journal's events as they are stored, read as a stream.
struct Events {
    shared: Arc<Shared>,
    runtime: tokio::runtime::Handle,
    sandbox: SandboxId,
    next: Seq,
    last: Seq,
    page: io::Cursor<Vec<u8>>,
}

impl Read for Events {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.page.read(buf)?;
            if read > 0 || buf.is_empty() || self.next > self.last {
                return Ok(read);
            }
            let wanted = self.last.0 - self.next.0 + 1;
            let limit = PAGE.min(usize::try_from(wanted).unwrap_or(PAGE));
            let events = self.shared.store.export(self.sandbox, self.next, limit);
            let events = self.runtime.block_on(events).map_err(io::Error::other)?;
            let Some(last) = events.last() else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            self.next = last.seq.next();
            let mut page = Vec::new();
            events.iter().for_each(|raw: &Raw| raw.encode(&mut page));
            self.page = io::Cursor::new(page);
        }
    }
}

/// Why a push did not happen.
pub(crate) enum Tried {
    /// A collection took away what it relied on: it has to be begun anew.
    Swept,
    /// The ref was moved meanwhile. By one of ours, whose client had gone away: what it pushed is an earlier state of the
    /// sandbox, and the next try goes on from it. By somebody else's: the next try says so.
    Overtaken,
    /// Something that an earlier push left there is missing or damaged.
    Lacking(ApiError),
    Failed(ApiError),
}

impl From<ApiError> for Tried {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl From<blob::Error> for Tried {
    fn from(error: blob::Error) -> Self {
        match error {
            blob::Error::Swept => Self::Swept,
            blob::Error::Moved { .. } => Self::Overtaken,
            blob::Error::Chunk(_) => Self::Lacking(of_blob(&error)),
            error => Self::Failed(of_blob(&error)),
        }
    }
}

fn before(store: &Store, name: SandboxName) -> Result<Before, Tried> {
    let found = store.get_ref(&main_ref(&name))?;
    let snapshot = match &found {
        Some((id, _)) => match store.snapshot(id) {
            // Gone: all of it is pushed anew.
            Err(blob::Error::NoSnapshot(_)) => None,
            snapshot => Some(snapshot?),
        },
        None => None,
    };
    let noted = snapshot.as_ref().map(note).transpose()?;
    Ok(Before {
        name,
        generation: found.map(|(_, generation)| generation),
        snapshot: snapshot.zip(noted),
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Tried> + Send + 'static,
) -> Result<T, Tried> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Tried::Failed(error::internal("the push was abandoned", &e)))?
}

fn count(view: &mut PushView, report: &blob::PushReport) {
    view.read_files += report.read_files;
    view.read_bytes += report.read_bytes;
    view.new_bytes += report.new_bytes;
    view.stored_bytes += report.stored_bytes;
}

fn as_json(note: &impl serde::Serialize) -> Result<serde_json::Value, ApiError> {
    serde_json::to_value(note).map_err(|e| error::internal("a note cannot be written", &e))
}

fn other_way(at: &StoreAt, called: &SandboxName, theirs: Head) -> ApiError {
    let message = format!(
        "`{called}` in {} is not an earlier state of this sandbox: it has an event {} that this one has not",
        at.url, theirs.seq
    );
    ApiError::new(ErrorCode::Conflict, message).hint(format!(
        "it was pushed from elsewhere: pull it under another name, or push this one with `--as` another than `{called}`"
    ))
}
