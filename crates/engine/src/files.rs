//! Files of a sandbox, seen and changed from inside it.
//!
//! Reads and watches go to a helper with a sandboxed user's rights, over a connection of their own: they are no operations,
//! nothing of them is journaled, spooled or cut. Changes are operations like any other, so that one is on disk, in the
//! journal and in a cut before anybody is told. What a helper says is never trusted with more than being passed on.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use protocol::control::{self, FromSupervisor, ToSupervisor};
use protocol::files::{self, Alter, Ask, Change, Entry, Frame, Kind, Name, Problem, Say, Why};
use protocol::{ApiError, ErrorCode, Offset, OpId, OpSpec, Origin, Replay, Role, Stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::sandbox::{Attached, Handle, Request};
use crate::session::helper_id;
use crate::{error, link, spool};

/// The longest answer of an operation that changes files.
const MAX_ANSWER: u64 = 64 << 10;
/// Between SIGTERM and SIGKILL for a change whose input broke off.
const GRACE_MS: u64 = 2000;
/// Longest piece of a helper's words in a message.
const MAX_WORDS: usize = 1000;

/// Why something could not be done to a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// For the caller.
    pub error: ApiError,
    /// Whether only the caller's own condition did not hold.
    pub unmet: bool,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self {
            error,
            unmet: false,
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let code = match problem.why {
            Why::Missing => ErrorCode::NotFound,
            Why::Denied => ErrorCode::Denied,
            Why::Exists | Why::Precondition => ErrorCode::Conflict,
            Why::Unfit => ErrorCode::Invalid,
            Why::Full | Why::Other => ErrorCode::Unavailable,
        };
        let words: String = problem
            .words
            .chars()
            .take(MAX_WORDS)
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect();
        let hint = match problem.why {
            Why::Missing => Some(
                "`durable ls NAME DIRECTORY` tells what is there; a relative path starts in the sandbox's working directory",
            ),
            Why::Denied => Some("another user may be allowed to: `--user 0` is root"),
            Why::Full => Some("make room on the host's disk, or in the sandbox"),
            Why::Exists | Why::Precondition | Why::Unfit | Why::Other => None,
        };
        let error = ApiError::new(code, words);
        Self {
            error: match hint {
                Some(hint) => error.hint(hint),
                None => error,
            },
            unmet: problem.why == Why::Precondition,
        }
    }
}

/// A piece of what is to be written.
#[derive(Debug)]
pub enum Piece {
    /// More of it.
    Bytes(Bytes),
    /// It is whole. A channel that ends without this was broken off.
    End,
}

/// A change that was made, is on disk and in a cut.
#[derive(Debug)]
pub struct Changed {
    /// The operation that made it.
    pub op: OpId,
    /// The cut that holds it.
    pub cut: Option<protocol::CutId>,
    /// What is there now; for a removal what was there.
    pub entry: Entry,
}

/// Where something is looked at: by whom, and from where relative paths start.
#[derive(Debug, Clone)]
pub struct Files {
    handle: Handle,
    user: Option<String>,
    cwd: String,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Handle").field(&self.name).finish()
    }
}

impl Handle {
    /// The sandbox's files with the rights of `user`; where none is given, with those that its operations have.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn files(&self, user: Option<String>) -> Result<Files, ApiError> {
        let spec = self.ask(|reply| Request::Spec { reply }).await?;
        Ok(Files {
            handle: self.clone(),
            user: user.or(spec.user),
            cwd: spec.cwd,
        })
    }
}

impl Files {
    /// Returns the whole path of what the caller named.
    ///
    /// # Errors
    /// `invalid` for what no path can be.
    pub fn path(&self, path: &[u8]) -> Result<Name, ApiError> {
        let invalid = |words: &str| ApiError::new(ErrorCode::Invalid, words.to_owned());
        if path.is_empty() {
            return Err(invalid("the path is empty").hint("`/` is the root"));
        }
        if path.contains(&0) {
            return Err(invalid("the path holds a zero byte"));
        }
        let mut full = Vec::new();
        if !path.starts_with(b"/") {
            full.extend_from_slice(self.cwd.trim_end_matches('/').as_bytes());
            full.push(b'/');
        }
        full.extend_from_slice(path);
        let parts = full.split(|byte| *byte == b'/');
        let parts: Vec<&[u8]> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
        let full = [b"/", parts.join(&b'/').as_slice()].concat();
        if full.len() > files::MAX_PATH {
            return Err(invalid("the path is longer than the kernel takes"));
        }
        Ok(Name(full))
    }

    /// Tells what is at a path.
    ///
    /// # Errors
    /// It is not there, or may not be looked at.
    pub async fn stat(&self, path: Name, follow: bool) -> Result<Entry, Refusal> {
        self.open(&Ask::Stat { path, follow }).await?.entry().await
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// It is not there, or is no regular file, or may not be read.
    pub async fn read(&self, path: Name) -> Result<(Entry, Helper), Refusal> {
        let mut helper = self.open(&Ask::Read { path }).await?;
        let entry = helper.entry().await?;
        if entry.kind != Kind::File {
            return Err(helper.nonsense().into());
        }
        Ok((entry, helper))
    }

    /// Begins a listing; [`Helper::next`] gives the entries. The first one is here already, where there is one.
    ///
    /// # Errors
    /// It is not there, or may not be listed.
    pub async fn list(
        &self,
        path: Name,
        recursive: bool,
    ) -> Result<(Option<Entry>, Helper), Refusal> {
        let mut helper = self.open(&Ask::List { path, recursive }).await?;
        let first = match helper.say().await? {
            Say::Entry(entry) => Some(entry),
            Say::Done => None,
            Say::Failed(problem) => return Err(problem.into()),
            Say::Change(_) => return Err(helper.nonsense().into()),
        };
        Ok((first, helper))
    }

    /// Begins an archive of a path; [`Helper::bytes`] gives it.
    ///
    /// # Errors
    /// It is not there.
    pub async fn pack(&self, path: Name) -> Result<Helper, Refusal> {
        let mut helper = self.open(&Ask::Pack { path }).await?;
        helper.entry().await?;
        Ok(helper)
    }

    /// Begins to watch; [`Helper::change`] gives what happens. Nothing is missed from here on.
    ///
    /// # Errors
    /// It is not there, or may not be watched.
    pub async fn watch(&self, path: Name, recursive: bool) -> Result<(Entry, Helper), Refusal> {
        let mut helper = self.open(&Ask::Watch { path, recursive }).await?;
        let entry = helper.entry().await?;
        Ok((entry, helper))
    }

    async fn open(&self, ask: &Ask) -> Result<Helper, ApiError> {
        let name = &self.handle.name;
        // One that went on elsewhere is started for nothing; as long as its supervisor lives, it can be looked at.
        let overtaken = match self.handle.start().await {
            Err(problem) if problem.code == ErrorCode::Conflict => Some(problem),
            started => {
                started?;
                None
            }
        };
        let epoch = self.handle.view().await?.epoch;
        let broken = |e: std::io::Error| {
            ApiError::new(
                ErrorCode::Unavailable,
                format!("sandbox `{name}` cannot be asked for files: {e}"),
            )
            .hint("try again; `durable ps` tells whether it runs")
        };
        let state = self.handle.state_dir();
        let connected = link::connect(&state, protocol::paths::state::CONTROL).await;
        let mut socket = match (connected, overtaken) {
            (Ok(socket), _) => socket,
            (Err(_), Some(problem)) => {
                return Err(problem.hint(format!(
                    "it does not run any more; `durable fork {name}` makes a sandbox of its files"
                )));
            }
            (Err(failure), None) => return Err(broken(failure)),
        };
        let garbled =
            |e: protocol::CodecError| error::internal("the supervisor is not understood", &e);
        let mut out = BytesMut::new();
        let user = self.user.clone();
        control::encode(&ToSupervisor::Files { epoch, user }, &mut out).map_err(garbled)?;
        socket.write_all(&out).await.map_err(broken)?;
        let mut input = BytesMut::new();
        let answer = loop {
            if let Some(answer) = control::decode(&mut input).map_err(garbled)? {
                break answer;
            }
            if socket.read_buf(&mut input).await.map_err(broken)? == 0 {
                return Err(broken(std::io::ErrorKind::UnexpectedEof.into()).hint(
                    "a sandbox that an older version started must be stopped once: `durable stop`",
                ));
            }
        };
        match answer {
            FromSupervisor::FilesReady => {}
            FromSupervisor::FilesRefused { passing, problem } => {
                let code = if passing {
                    ErrorCode::Unavailable
                } else {
                    ErrorCode::Invalid
                };
                let words = format!("sandbox `{name}` cannot be asked for files: {problem}");
                return Err(ApiError::new(code, words));
            }
            FromSupervisor::Refused { .. } => {
                return Err(ApiError::new(
                    ErrorCode::Fenced,
                    format!("sandbox `{name}` obeys another daemon"),
                ));
            }
            _ => return Err(broken(std::io::ErrorKind::InvalidData.into())),
        }
        out.clear();
        files::encode(ask, &mut out).map_err(garbled)?;
        socket.write_all(&out).await.map_err(broken)?;
        Ok(Helper {
            socket,
            input,
            sandbox: name.clone(),
        })
    }

    /// Makes a change and returns once it is on disk, in the journal and in a cut.
    ///
    /// # Errors
    /// What kept it from being made. Where the daemon or the sandbox ends meanwhile it may have been made or not; a file is
    /// the old one or the new one, whole.
    pub async fn alter(
        &self,
        alter: &Alter,
        input: Option<mpsc::Receiver<Piece>>,
    ) -> Result<Changed, Refusal> {
        let word = match alter {
            Alter::Put(_) => "put",
            Alter::Mkdir { .. } => "mkdir",
            Alter::Remove { .. } => "remove",
            Alter::Rename { .. } => "rename",
        };
        let json = serde_json::to_string(alter)
            .map_err(|e| error::internal("the change cannot be said", &e))?;
        let args = ["change", &json];
        let (attached, is_whole) = self.helper(word, &args, self.user.clone(), input).await?;
        if !is_whole {
            return Err(broken_off().into());
        }
        let view = &attached.view;
        let not_known = || {
            ApiError::new(
                ErrorCode::Unavailable,
                format!(
                    "operation `{}` ended before it told whether it changed the file ({})",
                    view.id,
                    view.outcome.as_deref().unwrap_or("unknown")
                ),
            )
            .hint("look at the file; the same request may be sent again")
        };
        let length = view.stdout_bytes.0.min(MAX_ANSWER);
        let said = spool::Reader::new(&attached.state_dir, &view.id, view.attempt, Stream::Stdout)
            .read(0, usize::try_from(length).unwrap_or(0))
            .map_err(|e| error::internal("the spool is not readable", &e))?;
        let entry = match serde_json::from_slice::<Say>(&said) {
            Ok(Say::Entry(entry)) if view.exit_code == Some(0) => entry,
            Ok(Say::Failed(problem)) => return Err(problem.into()),
            _ => return Err(not_known().into()),
        };
        if let Some(problem) = &view.error {
            return Err(ApiError::new(
                ErrorCode::Unavailable,
                format!("the file was changed, and that is not durable: {problem}"),
            )
            .into());
        }
        Ok(Changed {
            op: view.id.clone(),
            cut: view.cut.clone(),
            entry,
        })
    }

    /// Unpacks a tar archive into a directory, which is made if need be; returns once that is in a cut.
    ///
    /// # Errors
    /// What kept it from being unpacked. What came before is there.
    pub async fn unpack(
        &self,
        dir: &Name,
        input: mpsc::Receiver<Piece>,
    ) -> Result<(OpId, Option<protocol::CutId>), Refusal> {
        let dir = std::str::from_utf8(&dir.0)
            .map_err(|_| ApiError::new(ErrorCode::Invalid, "the directory's path is no UTF-8"))?;
        let args = ["tar-in", dir];
        let (attached, is_whole) = self
            .helper("cp", &args, self.user.clone(), Some(input))
            .await?;
        if !is_whole {
            return Err(broken_off().into());
        }
        let view = &attached.view;
        if view.exit_code == Some(0) && view.error.is_none() {
            return Ok((view.id.clone(), view.cut.clone()));
        }
        let said = spool::Reader::new(&attached.state_dir, &view.id, view.attempt, Stream::Stderr)
            .read(0, MAX_WORDS)
            .map_err(|e| error::internal("the spool is not readable", &e))?;
        let mut words = String::from_utf8_lossy(&said).trim().to_owned();
        if words.is_empty() {
            words = view
                .error
                .clone()
                .unwrap_or_else(|| "it broke off".to_owned());
        }
        Err(Problem {
            why: Why::Unfit,
            words,
        }
        .into())
    }

    /// Runs a helper as an operation to its settlement; tells whether its input was whole.
    async fn helper(
        &self,
        word: &str,
        args: &[&str],
        user: Option<String>,
        input: Option<mpsc::Receiver<Piece>>,
    ) -> Result<(Attached, bool), ApiError> {
        let id = helper_id(word)?;
        let argv = [protocol::paths::BIN, "__box"].iter().chain(args);
        let spec = OpSpec {
            argv: argv.map(|s| (*s).to_owned()).collect(),
            cwd: Some("/".to_owned()),
            env: BTreeMap::new(),
            user,
            timeout_ms: None,
            tty: None,
            stdin: input.is_some(),
            replay: Replay::Never,
            role: Role::Internal,
        };
        let mut attached = self.handle.exec(id.clone(), spec, Origin::Daemon).await?;
        let is_whole = match input {
            Some(input) => feed(&self.handle, &mut attached, input).await?,
            None => true,
        };
        if !is_whole {
            // It may have ended by itself meanwhile: then there is nothing to cancel.
            let _cancelled = self.handle.cancel(id.clone(), GRACE_MS).await;
        }
        attached.settled().await?;
        Ok((self.handle.attach(id).await?, is_whole))
    }
}

fn broken_off() -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        "the request broke off before its end",
    )
    .hint("send it again; a file that was to be replaced is as it was")
}

/// Passes input on as the operation takes it; returns whether it came to its end, or the operation wanted no more.
async fn feed(
    handle: &Handle,
    attached: &mut Attached,
    mut input: mpsc::Receiver<Piece>,
) -> Result<bool, ApiError> {
    let id = attached.view.id.clone();
    let mut at = 0;
    loop {
        let piece = tokio::select! {
            piece = input.recv() => piece,
            // It has failed, perhaps: the caller must not go on sending into nothing.
            closed = attached.stdin.wait_for(|s| s.closed) => {
                closed.map_err(|_| let_go())?;
                return Ok(true);
            }
        };
        let mut bytes = match piece {
            Some(Piece::Bytes(bytes)) => bytes,
            Some(Piece::End) => {
                handle.offer(&id, Offset(at), Bytes::new(), true).await?;
                return Ok(true);
            }
            None => return Ok(false),
        };
        while !bytes.is_empty() {
            let chunk = bytes.split_to(bytes.len().min(control::MAX_STDIN_CHUNK));
            let end = at + chunk.len() as u64;
            if !handle.offer(&id, Offset(at), chunk, false).await? {
                return Ok(true);
            }
            at = end;
            let state = attached
                .stdin
                .wait_for(|s| s.closed || s.offset >= Offset(end))
                .await
                .map_err(|_| let_go())?;
            if state.closed {
                return Ok(true);
            }
        }
    }
}

fn let_go() -> ApiError {
    ApiError::new(ErrorCode::Unavailable, "the sandbox was let go")
}

/// One helper that serves us. Dropped, it ends.
#[derive(Debug)]
pub struct Helper {
    socket: UnixStream,
    input: BytesMut,
    sandbox: protocol::SandboxName,
}

impl Helper {
    /// Asks for a part of the file that was opened; [`Self::bytes`] gives it.
    ///
    /// # Errors
    /// The helper is gone.
    pub async fn send(&mut self, offset: u64, length: u64) -> Result<(), ApiError> {
        let mut out = BytesMut::new();
        files::encode(&Ask::Send { offset, length }, &mut out)
            .map_err(|e| error::internal("the helper cannot be asked", &e))?;
        let sent = self.socket.write_all(&out).await;
        sent.map_err(|e| self.lost(&e))
    }

    /// Returns the next piece of what was asked for; none at its end.
    ///
    /// # Errors
    /// What could not be read, or the helper is gone.
    pub async fn bytes(&mut self) -> Result<Option<Bytes>, Refusal> {
        let frame = self.frame().await?;
        if let Frame::Bytes(bytes) = frame {
            return Ok(Some(bytes));
        }
        match self.message(&frame)? {
            Say::Done => Ok(None),
            Say::Failed(problem) => Err(problem.into()),
            Say::Entry(_) | Say::Change(_) => Err(self.nonsense().into()),
        }
    }

    /// Returns the next entry of a listing; none at its end.
    ///
    /// # Errors
    /// What could not be listed, or the helper is gone.
    pub async fn next(&mut self) -> Result<Option<Entry>, Refusal> {
        match self.say().await? {
            Say::Entry(entry) => Ok(Some(entry)),
            Say::Done => Ok(None),
            Say::Failed(problem) => Err(problem.into()),
            Say::Change(_) => Err(self.nonsense().into()),
        }
    }

    /// Waits for the next change; none once what was watched is gone.
    ///
    /// # Errors
    /// It cannot be watched any more, or the helper is gone.
    pub async fn change(&mut self) -> Result<Option<Change>, Refusal> {
        match self.say().await? {
            Say::Change(change) => Ok(Some(change)),
            Say::Done => Ok(None),
            Say::Failed(problem) => Err(problem.into()),
            Say::Entry(_) => Err(self.nonsense().into()),
        }
    }

    /// Whether the next answer is here already.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let Some(head) = self.input.first_chunk::<4>() else {
            return false;
        };
        let length = u32::from_le_bytes(*head) as usize;
        self.input.len() >= files::HEADER.saturating_add(length)
    }

    async fn entry(&mut self) -> Result<Entry, Refusal> {
        self.next().await?.ok_or_else(|| self.nonsense().into())
    }

    async fn say(&mut self) -> Result<Say, ApiError> {
        let frame = self.frame().await?;
        self.message(&frame)
    }

    fn message(&self, frame: &Frame) -> Result<Say, ApiError> {
        frame.message().map_err(|_| self.nonsense())
    }

    async fn frame(&mut self) -> Result<Frame, ApiError> {
        loop {
            if let Some(frame) = files::decode(&mut self.input).map_err(|_| self.nonsense())? {
                return Ok(frame);
            }
            self.input.reserve(files::CHUNK);
            let read = self.socket.read_buf(&mut self.input).await;
            if read.map_err(|e| self.lost(&e))? == 0 {
                return Err(self.lost(&std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn lost(&self, error: &std::io::Error) -> ApiError {
        ApiError::new(
            ErrorCode::Unavailable,
            format!(
                "what serves the files of sandbox `{}` is gone: {error}",
                self.sandbox
            ),
        )
        .hint("try again; `durable ps` tells whether the sandbox runs")
    }

    fn nonsense(&self) -> ApiError {
        ApiError::new(
            ErrorCode::Unavailable,
            format!(
                "what serves the files of sandbox `{}` makes no sense: something inside meddles with it",
                self.sandbox
            ),
        )
    }
}
