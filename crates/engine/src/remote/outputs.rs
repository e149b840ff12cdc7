//! What settled operations printed, as one stream that only grows: a line of JSON for each file, then its bytes.

use std::fs::{self, File};
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use protocol::paths;
use protocol::{OpId, Seq, Stream};
use serde::{Deserialize, Serialize};

use crate::branch;
use crate::state::{Op, OpState, State};

/// The longest line: an operation's id and some numbers.
const MAX_LINE: u64 = 4096;

/// One file of the spool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Output {
    op: OpId,
    attempt: u32,
    branch: u32,
    stream: Stream,
    len: u64,
}

/// Lists what settled after a place, in the order of the settlements.
pub(crate) fn since(state: &State, after: Seq) -> Vec<Output> {
    let here = state.ops.iter();
    let left = state.abandoned.iter().map(|((id, _), op)| (id, op));
    let mut settled: Vec<(Seq, &OpId, &Op)> = here
        .chain(left)
        .filter_map(|(id, op)| match &op.state {
            OpState::Settled { at, .. } if *at > after => Some((*at, id, op)),
            _ => None,
        })
        .collect();
    settled.sort_by_key(|(at, id, op)| (*at, *id, op.branch));
    let outputs = settled.into_iter().flat_map(|(_, id, op)| {
        let settlement = op.settlement();
        let of = |stream, len: protocol::Offset| Output {
            op: id.clone(),
            attempt: op.attempt(),
            branch: op.branch,
            stream,
            len: len.0,
        };
        let both = settlement.map(|s| {
            [
                of(Stream::Stdout, s.stdout_bytes),
                of(Stream::Stderr, s.stderr_bytes),
            ]
        });
        both.into_iter().flatten()
    });
    outputs.filter(|output| output.len > 0).collect()
}

impl Output {
    fn file(&self) -> String {
        paths::spool_file(&self.op, self.attempt, self.stream)
    }

    /// Opens it, wherever a rewind may be putting its branch right now.
    fn open(&self, state: &Path) -> io::Result<Option<File>> {
        let left = branch::dir(state, self.branch, u32::MAX).join(self.file());
        let top = state.join(self.file());
        for path in [&left, &top, &left] {
            match File::open(path) {
                Ok(file) if path == &top && left.exists() => drop(file),
                Ok(file) => return Ok(Some(file)),
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }
}

/// Reads the stream out of a sandbox's state directory.
pub(crate) struct Reader {
    state: PathBuf,
    left: std::vec::IntoIter<Output>,
    line: io::Cursor<Vec<u8>>,
    file: Option<io::Take<File>>,
}

impl Reader {
    pub(crate) fn new(state: PathBuf, outputs: Vec<Output>) -> Self {
        Self {
            state,
            left: outputs.into_iter(),
            line: io::Cursor::default(),
            file: None,
        }
    }
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let from_line = self.line.read(buf)?;
            if from_line > 0 {
                return Ok(from_line);
            }
            if let Some(file) = &mut self.file {
                let read = file.read(buf)?;
                if read > 0 || buf.is_empty() {
                    return Ok(read);
                }
                if file.limit() > 0 {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "an operation's output became shorter",
                    ));
                }
                self.file = None;
            }
            let Some(mut output) = self.left.next() else {
                return Ok(0);
            };
            let file = output.open(&self.state)?;
            let there = match &file {
                Some(file) => file.metadata()?.len(),
                None => 0,
            };
            // What somebody deleted cannot be pushed.
            output.len = output.len.min(there);
            let mut line = serde_json::to_vec(&output)?;
            line.push(b'\n');
            self.line = io::Cursor::new(line);
            self.file = file.map(|file| file.take(output.len));
        }
    }
}

/// Writes the stream's files into a sandbox's state directory, whose top is branch `now`. A later one of the same name
/// counts. Syncing is the caller's.
pub(crate) fn unpack(from: &mut impl BufRead, state: &Path, now: u32) -> io::Result<()> {
    loop {
        let mut line = Vec::new();
        from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let output: Output = serde_json::from_slice(&line)?;
        let path = branch::dir(state, output.branch, now).join(output.file());
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut file = File::create(&path)?;
        let copied = io::copy(&mut from.by_ref().take(output.len), &mut file)?;
        if copied < output.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
