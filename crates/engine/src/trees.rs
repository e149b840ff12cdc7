//! What two places differ in. Cuts are looked at, never a live tree: a sandboxed process cannot swap a path while the
//! host reads it.

use std::io::Write;
use std::path::PathBuf;

use protocol::api::ChangeView;
use protocol::files::Name;
use protocol::{ApiError, CutId, ErrorCode, OpId, SandboxName, SandboxSpec, Seq, WorkspaceId};
use tree::{Change, Options, Touched, Trust, View};
use workspace::Pool;

use crate::engine::Engine;
use crate::error;
use crate::images;
use crate::sandbox::{Handle, Held, Request};
use crate::state::Cut;

/// Mount points and places of ours, which every sandbox has and nobody changed.
const OURS: [&str; 6] = [
    // Where a compose makes what it puts in place.
    ".durable-compose",
    "dev",
    "opt/durable",
    "proc",
    "run",
    "sys",
];

/// A cut, and the head that it is of.
type AtCut = (WorkspaceId, CutId);

/// A sandbox at a place, ready to be looked at. Its cut is kept as long as this is.
pub struct Side {
    pub(crate) handle: Handle,
    pub(crate) held: Held,
    pub(crate) spec: SandboxSpec,
    pub(crate) view: View,
}

impl Engine {
    /// Finds `NAME` (as it is now) or `NAME@PLACE`.
    ///
    /// # Errors
    /// `not_found` for the sandbox or the place.
    pub async fn side(&self, text: &str) -> Result<Side, ApiError> {
        let (name, at) = match text.split_once('@') {
            Some((name, at)) => (name, Some(at.to_owned())),
            None => (text, None),
        };
        let name: SandboxName = name
            .parse()
            .map_err(|e: protocol::IdError| ApiError::new(ErrorCode::Invalid, e.to_string()))?;
        let handle = self.get(&name)?;
        let held = handle.hold(at).await?;
        self.side_of(handle, held).await
    }

    pub(crate) async fn side_of(&self, handle: Handle, held: Held) -> Result<Side, ApiError> {
        let spec = handle.ask(|reply| Request::Spec { reply }).await?;
        let cut = held.place.cut.as_ref();
        let upper = cut.map(|(of, cut)| self.shared().pool.cut_path(of, cut));
        let image = images::root(self.shared(), &spec)?;
        let lower = self
            .shared()
            .level
            .lower(&image)
            .map_err(|e| error::of_level(&e))?;
        let view = View {
            upper,
            lower: Some(lower),
        };
        Ok(Side {
            handle,
            held,
            spec,
            view,
        })
    }

    /// Returns what changed from one side to the other, sorted by path.
    ///
    /// # Errors
    /// What could not be read.
    pub async fn diff(&self, a: Side, b: Side) -> Result<(Vec<ChangeView>, Compared), ApiError> {
        let trust = self.trust(&a, &b).await?;
        let (x, y) = (a.view.clone(), b.view.clone());
        let cuts = (a.held.place.cut.clone(), b.held.place.cut.clone());
        let pool = self.shared().pool.clone();
        let compare = move || {
            let options = Options {
                touched: touched(&*pool, cuts),
                ..options(trust)
            };
            tree::changes(&x, &y, &options).map_err(|e| unreadable(&e))
        };
        let changes = blocking(compare).await?;
        let views = changes.iter().map(change_view).collect();
        Ok((views, Compared { a, b, changes }))
    }

    /// The short way of comparing holds where one side's files came from the other's.
    async fn trust(&self, a: &Side, b: &Side) -> Result<Trust, ApiError> {
        if a.handle.id != b.handle.id {
            return Ok(Trust::Nothing);
        }
        let cuts = a.handle.ask(|reply| Request::Cuts { reply }).await?;
        let is_here = |side: &Side| match &side.held.place.cut {
            Some((_, id)) => cuts.iter().any(|(cut, _)| cut.id == *id && !cut.abandoned),
            None => true,
        };
        Ok(if is_here(a) && is_here(b) {
            descendant_trust(&*self.shared().pool)
        } else {
            Trust::Nothing
        })
    }
}

/// What shows that a file is the same in two cuts of which one came from the other: in a snapshot it keeps its inode and
/// times, in a copy it has others.
pub(crate) fn descendant_trust(pool: &dyn Pool) -> Trust {
    match pool.kind() {
        "btrfs" => Trust::InodeAndTimes,
        _ => Trust::Nothing,
    }
}

/// Asks the pool where two cuts of one head can differ: then only these places are looked at, and not the whole tree.
fn touched(pool: &dyn Pool, cuts: (Option<AtCut>, Option<AtCut>)) -> Option<Touched> {
    let (Some((of, one)), Some((with, other))) = cuts else {
        return None;
    };
    if of != with {
        return None;
    }
    // Where it cannot tell, it is looked at all.
    let places = pool.changed_places(&of, &one, &other).unwrap_or_default();
    places.map(Touched::new)
}

/// The operations of one cut.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ops {
    /// They ended with it, or since the cut before it that is still there.
    pub(crate) ended: Vec<OpId>,
    /// They were running when it was taken.
    pub(crate) running: Vec<OpId>,
}

/// Two sides whose differences are known, for printing them.
pub struct Compared {
    a: Side,
    b: Side,
    changes: Vec<Change>,
}

impl Compared {
    /// Writes the differences as git prints them. Blocks.
    ///
    /// # Errors
    /// What could not be read or written.
    pub fn patch(&self, out: &mut impl Write) -> Result<(), ApiError> {
        let options = tree::PatchOptions {
            extra: tree::Extra::Shown,
            ..tree::PatchOptions::default()
        };
        for change in &self.changes {
            tree::patch(change, &self.a.view, &self.b.view, options, out)
                .map_err(|e| unreadable(&e))?;
        }
        Ok(())
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| error::internal("the work was abandoned", &e))?
}

fn options(trust: Trust) -> Options {
    Options {
        trust,
        ignore: ignored(),
        ..Options::default()
    }
}

pub(crate) fn ignored() -> Vec<Vec<u8>> {
    OURS.iter().map(|path| path.as_bytes().to_vec()).collect()
}

/// A path as people write it, from the root of the view: a relative one starts in the sandbox's working directory.
pub(crate) fn inside(spec: &SandboxSpec, path: &str) -> Vec<u8> {
    let full = if path.starts_with('/') {
        PathBuf::from(path)
    } else {
        PathBuf::from(&spec.cwd).join(path)
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in full.to_str().unwrap_or_default().split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/").into_bytes()
}

fn change_view(change: &Change) -> ChangeView {
    let (status, from) = match &change.status {
        tree::Status::Added => ("added", None),
        tree::Status::Deleted => ("deleted", None),
        tree::Status::Modified => ("modified", None),
        tree::Status::Renamed { from, .. } => ("renamed", Some(from)),
    };
    let entry = change.after.as_ref().or(change.before.as_ref());
    let is_file = |entry: &&tree::Entry| entry.kind == tree::Kind::File;
    let size = |entry: &Option<tree::Entry>| entry.as_ref().filter(is_file).map(|e| e.size);
    ChangeView {
        path: text(&change.path),
        path_base64: odd(&change.path),
        status: status.to_owned(),
        from: from.map(|from| text(from)),
        from_base64: from.and_then(|from| odd(from)),
        kind: entry.map_or_else(String::new, |entry| entry.kind.word().to_owned()),
        what: what(change.what),
        mode: entry.map_or(0, |entry| entry.mode),
        size_before: size(&change.before),
        size_after: size(&change.after),
    }
}

fn what(what: tree::What) -> Vec<String> {
    let names = [
        ("content", what.content),
        ("type", what.kind),
        ("mode", what.mode),
        ("owner", what.owner),
        ("target", what.target),
        ("device", what.device),
        ("xattrs", what.xattrs),
    ];
    let names = names.into_iter().filter(|(_, differs)| *differs);
    names.map(|(name, _)| name.to_owned()).collect()
}

/// A path for people and JSON; bytes that are no UTF-8 as `\\xNN`.
pub(crate) fn text(path: &[u8]) -> String {
    path.utf8_chunks()
        .map(|chunk| {
            let odd: String = chunk
                .invalid()
                .iter()
                .map(|byte| format!("\\x{byte:02x}"))
                .collect();
            format!("{}{odd}", chunk.valid())
        })
        .collect()
}

/// What [`text`] says of it could be another path's as well: its bytes.
fn odd(path: &[u8]) -> Option<String> {
    Name(path.to_vec()).base64()
}

pub(crate) fn unreadable(failure: &tree::Error) -> ApiError {
    error::internal("the files cannot be compared", failure)
}

/// Splits the operations over the cuts that they ended with.
pub(crate) fn ops_of_cuts(
    cuts: Vec<Cut>,
    ended: &[(Seq, OpId)],
    open_at: impl Fn(Seq) -> Vec<OpId>,
) -> Vec<(Cut, Ops)> {
    let mut before = Seq(0);
    cuts.into_iter()
        .map(|cut| {
            let here = |at: &Seq| *at > before && *at <= cut.until;
            let ended = ended.iter().filter(|(at, _)| here(at));
            let ops = Ops {
                ended: ended.map(|(_, op)| op.clone()).collect(),
                running: if cut.quiet {
                    Vec::new()
                } else {
                    open_at(cut.until)
                },
            };
            before = cut.until;
            (cut, ops)
        })
        .collect()
}
