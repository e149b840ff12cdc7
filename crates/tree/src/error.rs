//! What can go wrong: a tree that cannot be read, or an output that does not take what it is given.

use std::io;

use crate::quote::quoted;

/// Bytes of paths in one comparison.
pub(crate) const MOST_PATHS: usize = 256 << 20;

/// The beginning of a path, for messages.
fn first_names(path: &[u8]) -> &[u8] {
    let end = path.iter().take(200).rposition(|&byte| byte == b'/');
    end.map_or(&path[..path.len().min(200)], |end| &path[..end])
}

/// Why a tree could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused something on a path of a tree.
    #[error("cannot {verb} {}", quoted(path, b""))]
    Io {
        /// What was tried.
        verb: &'static str,
        /// Where, from the top of the tree.
        path: Vec<u8>,
        /// Why not.
        source: io::Error,
    },
    /// More differs than can be told: a tree can be made in which paths take far more room than the tree does.
    #[error("the paths that differ take more than {} MiB, the last of them below {}", MOST_PATHS >> 20, quoted(first_names(path), b""))]
    TooMuch {
        /// Where it went on.
        path: Vec<u8>,
    },
    /// The output could not be written.
    #[error("cannot write the output")]
    Output(#[source] io::Error),
    /// A path is not one of a file, or changed its type while it was read.
    #[error("{} is not {expected}", quoted(path, b""))]
    Unexpected {
        /// Where, from the top of the tree.
        path: Vec<u8>,
        /// What it should have been.
        expected: &'static str,
    },
}

/// The result of reading a tree.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io<E: Into<io::Error>>(
        verb: &'static str,
        path: &[u8],
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Io {
            verb,
            path: path.to_vec(),
            source: source.into(),
        }
    }
}
