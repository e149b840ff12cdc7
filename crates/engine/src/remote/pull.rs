//! Bringing a sandbox out of a store: the same journal, the same files, and a life of its own from there.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Seek as _, Write as _};
use std::sync::Arc;

use blob::{PullOptions, SnapshotId, Store};
use journal::{Append, Durability, New, Raw};
use protocol::api::PullSandbox;
use protocol::{
    ApiError, CutId, Epoch, ErrorCode, Event, Head, SandboxId, SandboxName, WorkspaceId, paths,
};
use workspace::Pool;

use super::{
    JOURNAL, Note, OUTPUT, address, cache, check_device, cut_ref, main_ref, not_there, note,
    of_blob, open_existing, outputs,
};
use crate::create::Founded;
use crate::engine::Engine;
use crate::sandbox::Handle;
use crate::shared::{Shared, now};
use crate::startup::fold;
use crate::state::State;
use crate::trees::blocking;
use crate::{branch, error, images};

/// Bytes of events that are copied into the journal at a time.
const BATCH: usize = 4 << 20;

impl Engine {
    /// Brings a sandbox out of a blob store.
    ///
    /// Its journal goes on here. What was running when it was pushed is `lost`, and its sessions have ended: whether they go
    /// on where it came from, nobody can see from here.
    ///
    /// # Errors
    /// `not_found`; `conflict` for a name that is taken; `corrupt` with the chunk that is missing or damaged. Nothing is left then.
    pub async fn pull(&self, ask: PullSandbox) -> Result<Handle, ApiError> {
        self.shared.room_to_begin()?;
        let (shared, name) = (self.shared.clone(), ask.from.clone());
        let place = ask.store.clone();
        let (store, id, note) = blocking(move || {
            check_device(&place)?;
            let store = open_existing(&place, Some(&cache(&shared)))?;
            let (id, note) = find(&store, &name)?;
            Ok((Arc::new(store), id, note))
        })
        .await?;
        let _kept = self.shared().unpacking.read().await;
        let sandbox = self.number(&ask.name).await?;
        let incoming = Incoming {
            shared: self.shared.clone(),
            sandbox,
            store,
            snapshot: id,
            note,
            called: ask.from.clone(),
            from: address(&ask.store, &ask.from),
        };
        match incoming.run().await {
            Ok((state, head, epoch)) => {
                let founded = Founded {
                    id: sandbox,
                    name: ask.name,
                    state,
                    head,
                    epoch,
                };
                Ok(self.begin(founded, None))
            }
            Err(problem) => {
                self.unnumber(sandbox).await;
                Err(problem)
            }
        }
    }
}

/// A sandbox on its way in.
struct Incoming {
    shared: Arc<Shared>,
    sandbox: SandboxId,
    store: Arc<Store>,
    snapshot: SnapshotId,
    note: Note,
    called: SandboxName,
    from: String,
}

impl Incoming {
    /// Copies all of it, and journals that it is here. On an error what was made is taken away; the journal is the caller's.
    async fn run(self) -> Result<(State, Head, Epoch), ApiError> {
        let this = Arc::new(self);
        let head = this.journal().await?;
        let before = fold(&this.shared, this.sandbox, head).await?;
        let mut state = before.ok_or_else(|| corrupt("its journal is empty"))?;
        images::present(&this.shared, &state.spec).await?;
        if state.spec.limits.disk_bytes.is_some() {
            // Found out before anything is made; started without its limit it would be another sandbox.
            let can = this.shared.pool.can_limit();
            can.map_err(|e| error::of_pool(&e))?;
        }
        let (work, branch) = (this.clone(), state.branch);
        let made = blocking(move || work.files(branch)).await;
        let (workspace, cuts) = match made {
            Ok(made) => made,
            Err(problem) => {
                this.take_away(None).await;
                return Err(problem);
            }
        };
        failpoint::hit("before_pulled");
        match this.arrive(&mut state, head, workspace.clone(), cuts).await {
            Ok((head, epoch)) => Ok((state, head, epoch)),
            Err(problem) => {
                this.take_away(Some(workspace)).await;
                Err(problem)
            }
        }
    }

    /// Copies the journal's events. They are in a file first: a store that stops answering must not hold the journal up.
    async fn journal(self: &Arc<Self>) -> Result<Head, ApiError> {
        let this = self.clone();
        let mut file = blocking(move || this.stream(JOURNAL)).await?;
        let mut head = Head::EMPTY;
        loop {
            let read = blocking(move || {
                let mut batch = Vec::new();
                let mut bytes = 0;
                while bytes < BATCH
                    && let Some(raw) =
                        Raw::decode_from(&mut file).map_err(|e| corrupt(&e.to_string()))?
                {
                    bytes += raw.payload.len();
                    batch.push(raw);
                }
                Ok((batch, file))
            });
            let (batch, rest) = read.await?;
            file = rest;
            if batch.is_empty() {
                break;
            }
            let copied = self.shared.store.import(self.sandbox, batch).await;
            head = copied.map_err(|e| error::of_journal(&e))?;
            failpoint::hit("mid_pull");
        }
        if head != self.note.head {
            return Err(corrupt(
                "its journal is not the one that its note speaks of",
            ));
        }
        Ok(head)
    }

    fn stream(&self, name: &str) -> Result<BufReader<File>, ApiError> {
        let no_room = |e: io::Error| error::internal("no room for what was pulled", &e);
        let mut file = tempfile::tempfile_in(&self.shared.config.data).map_err(no_room)?;
        let mut out = BufWriter::new(&mut file);
        let pulled = self.store.pull_stream(&self.snapshot, name, 0, &mut out);
        pulled.map_err(|e| of_blob(&e))?;
        out.flush().map_err(no_room)?;
        drop(out);
        file.rewind().map_err(no_room)?;
        Ok(BufReader::new(file))
    }

    /// Makes the workspace with its cuts, and the state directory with the output.
    fn files(&self, now_branch: u32) -> Result<(WorkspaceId, Vec<CutId>), ApiError> {
        let dir = self.shared.state_dir(self.sandbox);
        let made =
            |e: io::Error| error::internal(&format!("cannot write into {}", dir.display()), &e);
        fs::create_dir_all(dir.join(paths::state::SPOOL)).map_err(made)?;
        branch::settle(&dir, now_branch).map_err(made)?;
        let mut output = self.stream(OUTPUT)?;
        outputs::unpack(&mut output, &dir, now_branch).map_err(made)?;
        let pool = &*self.shared.pool;
        let workspace = pool.create().map_err(|e| error::of_pool(&e))?;
        match self.cuts(pool, &workspace) {
            Ok(cuts) => Ok((workspace, cuts)),
            Err(problem) => {
                if let Err(left) = pool.remove(&workspace) {
                    tracing::warn!(error = %error::chain(&left), "an unused head is left");
                }
                Err(problem)
            }
        }
    }

    /// Fills the head with each cut's files in turn, the current ones last.
    fn cuts(&self, pool: &dyn Pool, workspace: &WorkspaceId) -> Result<Vec<CutId>, ApiError> {
        let mut all = Vec::new();
        for cut in &self.note.cuts {
            let at = cut_ref(&self.called, cut);
            // One that was thinned out meanwhile is not kept there any more.
            if let Some((snapshot, _)) = self.store.get_ref(&at).map_err(|e| of_blob(&e))? {
                all.push((cut, snapshot));
            }
        }
        all.extend(self.note.tip.iter().map(|tip| (tip, self.snapshot)));
        let upper = pool
            .layout(workspace)
            .map_err(|e| error::of_pool(&e))?
            .upper;
        for (cut, snapshot) in &all {
            workspace::empty(&upper)
                .map_err(|e| error::internal("a head cannot be emptied", &e))?;
            let report = self
                .store
                .pull_tree(snapshot, &upper, PullOptions::default());
            let report = report.map_err(|e| of_blob(&e))?;
            if !report.is_exact() {
                return Err(not_exact(&report));
            }
            if pool
                .cut(workspace, cut)
                .map_err(|e| error::of_pool(&e))?
                .is_none()
            {
                return Err(corrupt(&format!("checkpoint {cut} changes nothing")));
            }
        }
        Ok(all.into_iter().map(|(cut, _)| cut.clone()).collect())
    }

    /// Takes the right to write, and says in the journal that it goes on here.
    async fn arrive(
        &self,
        state: &mut State,
        head: Head,
        workspace: WorkspaceId,
        cuts: Vec<CutId>,
    ) -> Result<(Head, Epoch), ApiError> {
        let shared = self.shared.clone();
        // What lies beside the pool: the output that the journal is about to vouch for.
        let synced = blocking(move || {
            let data = File::open(&shared.config.data);
            data.and_then(|data| rustix::fs::syncfs(&data).map_err(io::Error::from))
                .map_err(|e| error::internal("what was pulled cannot be synced", &e))
        });
        synced.await?;
        let store = &self.shared.store;
        let lease = store.lease(self.sandbox, &self.shared.config.node).await;
        let lease = lease.map_err(|e| error::of_journal(&e))?;
        let new = New::from(Event::Pulled {
            from: self.from.clone(),
            workspace,
            cuts,
        });
        let at = now();
        let (id, event) = (new.id, new.event.clone());
        let appended = store.append(Append {
            sandbox: self.sandbox,
            expected: head.seq,
            epoch: lease.epoch,
            at,
            events: vec![new],
            durability: Durability::Now,
        });
        let after = appended.await.map_err(|e| error::of_journal(&e))?;
        state.apply(&protocol::Stored {
            seq: after.seq,
            id,
            epoch: lease.epoch,
            at,
            event,
            hash: after.hash,
        });
        Ok((after, lease.epoch))
    }

    async fn take_away(&self, workspace: Option<WorkspaceId>) {
        let (shared, id) = (self.shared.clone(), self.sandbox);
        let gone = blocking(move || {
            if let Some(workspace) = workspace {
                shared
                    .pool
                    .remove(&workspace)
                    .map_err(|e| error::of_pool(&e))?;
            }
            crate::sandbox::remove_state(&shared, id)
        });
        if let Err(left) = gone.await {
            tracing::warn!(error = %left.message, "a part of what was pulled is left");
        }
    }
}

fn find(store: &Store, name: &SandboxName) -> Result<(SnapshotId, Note), ApiError> {
    let found = store.get_ref(&main_ref(name)).map_err(|e| of_blob(&e))?;
    let (id, _) = found.ok_or_else(|| not_there(name))?;
    let snapshot = store.snapshot(&id).map_err(|e| of_blob(&e))?;
    let note = note(&snapshot)?;
    Ok((id, note))
}

fn corrupt(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::Corrupt,
        format!("the sandbox in the store cannot be used: {why}"),
    )
}

fn not_exact(report: &blob::PullReport) -> ApiError {
    let message = format!(
        "the files cannot be put back as they were: {} owners, {} extended attributes and {} device nodes are refused here",
        report.owners_refused, report.xattrs_refused, report.devices_refused
    );
    ApiError::new(ErrorCode::Denied, message).hint("a daemon that runs as root can pull it")
}
