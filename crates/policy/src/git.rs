//! What a request is to git, over its smart HTTP protocol (gitprotocol-http): which repository, and fetched or pushed.

use std::fmt;

use crate::path;
use crate::query;
use crate::shown::cut;

/// What a request is to git.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitAct {
    /// Asks which refs there are, to fetch or to push.
    Advertise {
        /// The path of the repository without its first slash and without `.git`.
        repo: String,
        /// Whether it is the begin of a push.
        push: bool,
    },
    /// Fetches.
    Fetch {
        /// The repository.
        repo: String,
    },
    /// Pushes.
    Push {
        /// The repository.
        repo: String,
        /// The refs that it changes. None where it changes none, which git sends to try whether it may.
        refs: Vec<String>,
    },
}

impl fmt::Display for GitAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Advertise { repo, push: true } => write!(f, "git push to {}", cut(repo)),
            Self::Advertise { repo, push: false } | Self::Fetch { repo } => {
                write!(f, "git fetch of {}", cut(repo))
            }
            Self::Push { repo, refs } if refs.is_empty() => write!(f, "git push to {}", cut(repo)),
            Self::Push { repo, refs } => {
                write!(f, "git push to {}: {}", cut(repo), cut(&refs.join(", ")))
            }
        }
    }
}

const FETCH: &str = "git-upload-pack";
const PUSH: &str = "git-receive-pack";

/// Returns what a request is to git, by its method, path and query; none where it is nothing to git, or has a path that can be
/// read in two ways.
///
/// Of a push it knows the repository alone: its refs are the first bytes of its body, see [`crate::push_commands`].
#[must_use]
pub fn git_act(method: &str, path: &str, query: Option<&str>) -> Option<GitAct> {
    let segments = path::segments(path).ok()?;
    let segments: Vec<&str> = segments
        .iter()
        .map(|one| std::str::from_utf8(one).ok())
        .collect::<Option<_>>()?;
    match (method, segments.as_slice()) {
        ("GET", [repo @ .., "info", "refs"]) => {
            let services: Vec<_> = query::pairs(query?)
                .filter(|(key, _)| key == b"service")
                .collect();
            let says = |service: &str| {
                services
                    .iter()
                    .any(|(_, value)| value == service.as_bytes())
            };
            // Of two services the one that may do more is meant.
            let push = says(PUSH);
            (push || says(FETCH)).then_some(())?;
            Some(GitAct::Advertise {
                repo: named(repo)?,
                push,
            })
        }
        ("POST", [repo @ .., last]) if *last == FETCH => Some(GitAct::Fetch { repo: named(repo)? }),
        ("POST", [repo @ .., last]) if *last == PUSH => Some(GitAct::Push {
            repo: named(repo)?,
            refs: Vec::new(),
        }),
        _ => None,
    }
}

fn named(segments: &[&str]) -> Option<String> {
    let whole = segments.join("/");
    let name = whole.strip_suffix(".git").unwrap_or(&whole);
    (!name.is_empty()).then(|| name.to_owned())
}
