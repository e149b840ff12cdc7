//! What the daemon decided about a sandbox's world; the launcher only carries it out.

use std::path::{Path, PathBuf};

use protocol::{Image, Limits};
use serde::{Deserialize, Serialize};

use super::ids::IdMap;
use super::{door, host_image};
use crate::{Error, StartSpec};

/// Everything that PID 1 needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) hostname: String,
    pub(super) limits: Limits,
    pub(super) ids: IdMap,
    /// The overlay's directories, relative to the tree at [`Place::Head`].
    pub(super) upper: PathBuf,
    pub(super) work: PathBuf,
    /// What is mounted, in this order.
    pub(super) trees: Vec<Tree>,
    /// Further ports of its doors; none where it has no doors.
    pub(super) doors: Option<Vec<u16>>,
    /// The certificate to trust, PEM.
    pub(super) ca: Option<String>,
    /// Who makes the trees: with privilege the daemon (it may map owners), without it PID 1 in its own namespaces.
    pub(super) trees_come: TreesCome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TreesCome {
    FromDaemon,
    FromPaths,
}

/// A directory or file of the host that becomes a mount of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Tree {
    pub(super) source: PathBuf,
    pub(super) place: Place,
    pub(super) owners: Owners,
}

/// What a tree is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Place {
    /// The read-only layer of the root.
    Lower,
    /// Holds the writable layer.
    Head,
    /// The state directory; never mounted anywhere, only held open.
    State,
    /// The `durable` binary.
    Binary,
    /// The installed harnesses.
    Harness,
    /// Read-only at this path.
    At(PathBuf),
}

/// How owners on disk look inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Owners {
    /// The same numbers; nothing works without.
    Same,
    /// The same numbers where the file system can.
    SameIfPossible,
    /// As nobody's, so that only what everybody may read is readable.
    Nobody,
}

impl Plan {
    /// Decides; makes nothing but the generated root of `image: host` in the data directory.
    pub(super) fn of(spec: &StartSpec, data: &Path) -> Result<Self, Error> {
        door::check(spec.doors.as_deref().unwrap_or_default())?;
        let ids = IdMap::choose(spec.sandbox)?;
        let upper = find(&spec.upper, "upper directory")?;
        let work = find(&spec.work, "work directory")?;
        let state = find(&spec.state, "state directory")?;
        let head = common(&upper, &work);
        let (lower, system) = match &spec.image {
            Image::Host => {
                let hidden = [data, &upper, &work, &state];
                (host_image::prepare(data)?, host_image::trees(&hidden)?)
            }
            Image::Dir(path) => (image_directory(path, &[&upper, &work, &state])?, Vec::new()),
            Image::Oci(_) | Image::OciArchive(_) | Image::DockerArchive(_) => {
                return Err(packed(&spec.image));
            }
        };
        let tree = |source, place, owners| Tree {
            source,
            place,
            owners,
        };
        let binary = find(&spec.binary, "binary")?;
        let mut trees = vec![
            tree(lower, Place::Lower, Owners::Same),
            tree(head.clone(), Place::Head, Owners::Same),
            tree(state, Place::State, Owners::SameIfPossible),
            tree(binary, Place::Binary, Owners::SameIfPossible),
        ];
        if let Some(harnesses) = &spec.harness_dir {
            let harnesses = find(harnesses, "harness directory")?;
            trees.push(tree(harnesses, Place::Harness, Owners::SameIfPossible));
        }
        trees.extend(system);
        let relative = |path: &Path| path.strip_prefix(&head).unwrap_or(path).to_owned();
        Ok(Self {
            hostname: spec.hostname.clone(),
            limits: spec.limits.clone(),
            ids,
            upper: relative(&upper),
            work: relative(&work),
            trees,
            doors: spec.doors.clone(),
            ca: spec.ca.clone(),
            trees_come: match ids {
                IdMap::Range { .. } => TreesCome::FromDaemon,
                IdMap::Delegated { .. } | IdMap::Single { .. } => TreesCome::FromPaths,
            },
        })
    }
}

/// Returns the true path of something that must exist.
pub(super) fn find(path: &Path, what: &str) -> Result<PathBuf, Error> {
    path.canonicalize()
        .map_err(|e| Error::step(format!("find the {what} {}", path.display()), e))
}

/// The image's directory, if it can serve as the layer under `hidden`.
fn image_directory(path: &Path, hidden: &[&Path]) -> Result<PathBuf, Error> {
    let refuse = |why: String| Error::Image {
        path: path.to_owned(),
        why,
    };
    let found = path.canonicalize().map_err(|e| refuse(e.to_string()))?;
    if !found.is_dir() {
        return Err(refuse("it is no directory".to_owned()));
    }
    match hidden.iter().find(|h| h.starts_with(&found)) {
        Some(inside) => Err(refuse(format!(
            "it contains the sandbox's own {}",
            inside.display()
        ))),
        None => Ok(found),
    }
}

/// Images are unpacked by whoever starts a sandbox; this level knows directories.
pub(super) fn packed(image: &Image) -> Error {
    Error::Image {
        path: PathBuf::from(image.to_string()),
        why: "it is not unpacked".to_owned(),
    }
}

/// The deepest directory that holds both.
fn common(a: &Path, b: &Path) -> PathBuf {
    let both = a.components().zip(b.components());
    both.take_while(|(x, y)| x == y).map(|(x, _)| x).collect()
}
