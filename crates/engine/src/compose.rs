//! Bringing one sandbox's changes into another, and who changed a file.
//!
//! Both look at cuts alone. Only applying a compose writes, and that is an operation inside the sandbox like any other.

use std::fs::File;
use std::io::{BufWriter, Seek as _, Write as _};

use protocol::api::{ActionView, BlameView, ComposeSandbox, ComposeView, ConflictView, ForkedFrom};
use protocol::{ApiError, ErrorCode, OpId, Replay, SandboxName, Seq};
use tree::{Labels, Sides, Trust, View};

use crate::engine::Engine;
use crate::error;
use crate::sandbox::{Handle, Request};
use crate::session::{Input, helper_id, run_helper};
use crate::state::{Cut, Parent};
use crate::trees::{Ops, Side, blocking, descendant_trust, ignored, inside, text, unreadable};

impl Engine {
    /// Brings what `from` changed since the two parted into a sandbox: all of it, or nothing where both changed the same.
    ///
    /// # Errors
    /// `invalid` where the two have no checkpoint in common; `not_found` for a sandbox or a place.
    pub async fn compose(
        &self,
        into: &SandboxName,
        ask: ComposeSandbox,
    ) -> Result<ComposeView, ApiError> {
        let strategy = strategy(ask.strategy.as_deref())?;
        let theirs = self.side(&ask.from).await?;
        let handle = self.get(into)?;
        let held = handle.hold(None).await?;
        let ours = self.side_of(handle, held).await?;
        if theirs.spec.image != ours.spec.image {
            let message = format!(
                "`{}` and `{into}` do not stand on the same image",
                theirs.handle.name
            );
            return Err(ApiError::new(ErrorCode::Invalid, message));
        }
        let base = self.common(&theirs, &ours).await?;
        // What parted from the base changed since or is the same inode still; the two sides are never compared so.
        let trust = descendant_trust(&*self.shared().pool);
        let options = tree::MergeOptions {
            paths: ask
                .paths
                .iter()
                .map(|path| inside(&ours.spec, path))
                .collect(),
            strategy,
            trust,
            ignore: ignored(),
        };
        let (b, o, t) = (base.view.clone(), ours.view.clone(), theirs.view.clone());
        let names = (into.to_string(), ask.from.clone());
        let (mut view, stream) = blocking(move || {
            let sides = Sides {
                base: &b,
                ours: &o,
                theirs: &t,
            };
            known(&options.paths, sides)?;
            let labels = Labels {
                ours: &names.0,
                base: "before",
                theirs: &names.1,
            };
            merge(sides, labels, &options, ask.dry_run)
        })
        .await?;
        view.before = ours.held.place.cut.as_ref().map(|(_, cut)| cut.clone());
        if let Some(stream) = stream {
            view.op = Some(apply(&ours.handle, stream).await?);
            view.applied = true;
        }
        Ok(view)
    }

    /// Finds the files as they were when two sandboxes parted.
    async fn common(&self, one: &Side, other: &Side) -> Result<Side, ApiError> {
        let parent = async |side: &Side| side.handle.ask(|reply| Request::Parent { reply }).await;
        let (p, q) = (parent(one).await?, parent(other).await?);
        let is_from = |parent: &Option<Parent>, side: &Side| {
            parent.as_ref().is_some_and(|p| p.id == side.handle.id)
        };
        // A fork keeps a copy of the cut that it started from, whatever became of its source.
        let holder = match (&p, &q) {
            _ if one.handle.id == other.handle.id => {
                let earlier = if one.held.place.at <= other.held.place.at {
                    one
                } else {
                    other
                };
                let at = earlier.held.place.at;
                let held = earlier.handle.hold(Some(at.to_string())).await?;
                return self.side_of(earlier.handle.clone(), held).await;
            }
            _ if is_from(&p, other) => one,
            _ if is_from(&q, one) => other,
            (Some(p), Some(q)) if p.id == q.id => {
                let (early, late, holder) = if p.at <= q.at {
                    (p.at, q.at, one)
                } else {
                    (q.at, p.at, other)
                };
                self.same_timeline(p, early, late).await?;
                holder
            }
            _ => {
                let message = format!(
                    "`{}` and `{}` have no checkpoint in common",
                    one.handle.name, other.handle.name
                );
                return Err(ApiError::new(ErrorCode::Invalid, message)
                    .hint("one must be a fork of the other, or both forks of the same sandbox"));
            }
        };
        let held = holder.handle.hold(Some("start".to_owned())).await?;
        self.side_of(holder.handle.clone(), held).await
    }

    /// Refuses two forks of a sandbox that was rewound between them to before the earlier one: they parted before either was made.
    ///
    /// Nobody can tell once their source is gone.
    async fn same_timeline(&self, source: &Parent, early: Seq, late: Seq) -> Result<(), ApiError> {
        let Ok(handle) = self.get(&source.name) else {
            return Ok(());
        };
        if handle.id != source.id {
            return Ok(());
        }
        let leads = |reply| Request::LeadsTo { early, late, reply };
        if handle.ask(leads).await? {
            return Ok(());
        }
        let message = format!(
            "`{}` was rewound between the two forks of it: they have no checkpoint in common that both kept",
            source.name
        );
        Err(ApiError::new(ErrorCode::Invalid, message)
            .hint("fork one of them again from where the other was forked, and compose into that"))
    }

    /// Finds the operation that last changed a path.
    ///
    /// # Errors
    /// `not_found` where nothing is and was at the path.
    pub async fn blame(&self, name: &SandboxName, path: &str) -> Result<BlameView, ApiError> {
        let now = self.side(name.as_str()).await?;
        let handle = now.handle.clone();
        let inside = inside(&now.spec, path);
        let mut cuts = handle.ask(|reply| Request::Cuts { reply }).await?;
        cuts.retain(|(cut, _)| !cut.abandoned);
        let parent = handle.ask(|reply| Request::Parent { reply }).await?;
        let (pool, lower) = (self.shared().pool.clone(), now.view.lower.clone());
        // One timeline: each cut came from the one before it.
        let trust = descendant_trust(&*pool);
        let of = path.to_owned();
        let found = blocking(move || {
            let view = |cut: Option<&Cut>| View {
                upper: cut.map(|cut| pool.cut_path(&cut.workspace, &cut.id)),
                lower: lower.clone(),
            };
            last_change(&cuts, &inside, view, trust, &of)
        })
        .await?;
        drop(now);
        let mut blame = BlameView {
            path: path.to_owned(),
            cut: None,
            at_ms: None,
            ops: Vec::new(),
            running: Vec::new(),
            forked_from: None,
        };
        let Some((cut, ops)) = found else {
            return Ok(blame);
        };
        if let Some(parent) = parent.filter(|parent| parent.cut.as_ref() == Some(&cut.id)) {
            blame.forked_from = Some(ForkedFrom {
                name: parent.name,
                at: parent.at,
                cut: parent.cut,
            });
        }
        for op in ops.ended {
            blame.ops.push(handle.attach(op).await?.view);
        }
        blame.running = ops.running;
        blame.cut = Some(cut.id);
        blame.at_ms = Some(cut.at_ms);
        Ok(blame)
    }
}

/// Refuses a path that no side has: it is misspelt, and nothing would be brought over without a word.
fn known(paths: &[Vec<u8>], sides: Sides<'_>) -> Result<(), ApiError> {
    let is_pattern = |path: &[u8]| path.iter().any(|byte| b"*?[".contains(byte));
    for path in paths.iter().filter(|path| !is_pattern(path)) {
        let mut is_there = false;
        for view in [sides.theirs, sides.ours, sides.base] {
            is_there = is_there || view.lookup(path).map_err(|e| unreadable(&e))?.is_some();
        }
        if !is_there {
            let message = format!(
                "there is no `/{}` on either side",
                text(path).escape_debug()
            );
            return Err(ApiError::new(ErrorCode::NotFound, message)
                .hint("a relative path starts in the sandbox's working directory"));
        }
    }
    Ok(())
}

/// Decides; where there is something to be done, and it can be, it is written into a file that is nowhere in a directory.
fn merge(
    sides: Sides<'_>,
    labels: Labels<'_>,
    options: &tree::MergeOptions,
    dry_run: bool,
) -> Result<(ComposeView, Option<File>), ApiError> {
    let merge = tree::merge(sides, options).map_err(|e| unreadable(&e))?;
    let mut conflicts = Vec::with_capacity(merge.conflicts.len());
    for conflict in &merge.conflicts {
        let marked = conflict.marked(sides, labels).map_err(|e| unreadable(&e))?;
        conflicts.push(ConflictView {
            path: text(&conflict.path),
            kind: kind(conflict.kind).to_owned(),
            text: marked.and_then(|bytes| String::from_utf8(bytes).ok()),
        });
    }
    let applies = !dry_run && conflicts.is_empty() && !merge.actions.is_empty();
    let view = ComposeView {
        applied: false,
        op: None,
        before: None,
        actions: merge.actions.iter().map(action_view).collect(),
        conflicts,
    };
    let stream = applies.then(|| written(&merge, sides)).transpose()?;
    Ok((view, stream))
}

fn written(merge: &tree::Merge, sides: Sides<'_>) -> Result<File, ApiError> {
    let no_room = |e: std::io::Error| error::internal("no room for the changes", &e);
    let mut file = tempfile::tempfile().map_err(no_room)?;
    let mut out = BufWriter::new(&mut file);
    tree::write_actions(merge, sides, tree::StreamOptions::default(), &mut out)
        .map_err(|e| unreadable(&e))?;
    out.flush().map_err(no_room)?;
    drop(out);
    file.rewind().map_err(no_room)?;
    Ok(file)
}

fn last_change(
    cuts: &[(Cut, Ops)],
    path: &[u8],
    view: impl Fn(Option<&Cut>) -> View,
    trust: Trust,
    told: &str,
) -> Result<Option<(Cut, Ops)>, ApiError> {
    let mut known = false;
    for (index, (cut, ops)) in cuts.iter().enumerate().rev() {
        let before = index.checked_sub(1).map(|before| &cuts[before].0);
        let (prev, next) = (view(before), view(Some(cut)));
        known = known || next.lookup(path).map_err(|e| unreadable(&e))?.is_some();
        if tree::entry_changed(&prev, &next, path, trust).map_err(|e| unreadable(&e))? {
            return Ok(Some((cut.clone(), ops.clone())));
        }
    }
    if known
        || view(None)
            .lookup(path)
            .map_err(|e| unreadable(&e))?
            .is_some()
    {
        return Ok(None);
    }
    Err(ApiError::new(
        ErrorCode::NotFound,
        format!(
            "there is no `{}` in the sandbox, and no checkpoint that it has knows one",
            told.escape_debug()
        ),
    ))
}

/// Writes the changes in an operation of its own and returns its id.
async fn apply(handle: &Handle, stream: File) -> Result<OpId, ApiError> {
    let op = helper_id("compose")?;
    let args = ["apply", "/"];
    let (ok, _, err) = run_helper(
        handle,
        op.clone(),
        &args,
        Input::File(stream),
        Replay::Never,
    )
    .await?;
    if ok {
        return Ok(op);
    }
    let said = err.trim();
    // Without words it was stopped, wherever it stood.
    let hint = if said.is_empty() || said.contains("some of the changes are made") {
        format!(
            "`durable op {0} {op}` tells more, `durable diff {0}` what was done; `durable rewind` puts the files back",
            handle.name
        )
    } else {
        format!(
            "no file was changed; `durable op {} {op}` tells more",
            handle.name
        )
    };
    let message = format!("operation `{op}` could not write the changes: {said}");
    Err(ApiError::new(ErrorCode::Unavailable, message).hint(hint))
}

fn strategy(text: Option<&str>) -> Result<tree::Strategy, ApiError> {
    match text {
        None | Some("merge") => Ok(tree::Strategy::Merge),
        Some("ours") => Ok(tree::Strategy::Ours),
        Some("theirs") => Ok(tree::Strategy::Theirs),
        Some(other) => {
            let other: String = other.chars().take(32).collect();
            Err(ApiError::new(
                ErrorCode::Invalid,
                format!("strategy {other:?} is none of merge, ours and theirs"),
            ))
        }
    }
}

fn action_view(action: &tree::Action) -> ActionView {
    let name = match action {
        tree::Action::Delete { .. } => "delete",
        tree::Action::Put { entry, .. } if entry.kind == tree::Kind::Socket => "skip",
        tree::Action::Put {
            content: tree::Content::Merged,
            ..
        } => "merge",
        tree::Action::MakeDir { .. } | tree::Action::Put { .. } => "put",
    };
    ActionView {
        path: text(action.path()),
        action: name.to_owned(),
    }
}

fn kind(kind: tree::ConflictKind) -> &'static str {
    use tree::{By, ConflictKind as Kind};
    match kind {
        Kind::BothModified => "both changed it",
        Kind::BinaryBothModified => "both changed it, and it is no text",
        Kind::ModifiedDeleted { deleted: By::Ours } => "changed there, deleted here",
        Kind::ModifiedDeleted {
            deleted: By::Theirs,
        } => "changed here, deleted there",
        Kind::TypeChange => "both made something else of it",
        Kind::DirectoryFile => "a directory on one side only",
        Kind::ModeBothChanged => "both changed its mode",
        Kind::OwnerBothChanged => "both changed its owner",
        Kind::XattrBothChanged => "both changed an attribute of it",
    }
}
