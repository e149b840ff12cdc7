//! The seam between the engine and one harness: what a driver is asked and what it answers.

use std::collections::BTreeMap;

use protocol::{Outcome, SessionId, UnixMillis};
use serde_json::Value;

use crate::Error;

/// Which model API the user's endpoint speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Anthropic Messages.
    #[default]
    Anthropic,
    /// OpenAI Chat Completions.
    OpenAi,
}

/// Where the harness's program is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// In our read-only layer, in this version.
    Layer {
        /// Such as `2.1.332`.
        version: String,
    },
    /// Of the user's own, found on `PATH` in the image.
    Path,
}

/// One session to be started or gone on with. The same value is given to every call for that session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The user's arguments after the harness's name.
    pub args: Vec<String>,
    /// The id we chose for the session: a UUID.
    pub session: SessionId,
    /// When the session was started; it only goes into names and headers for people to read.
    pub started: UnixMillis,
    /// Working directory inside the sandbox, absolute and without symbolic links.
    pub cwd: String,
    /// Home directory inside the sandbox, absolute.
    pub home: String,
    /// Whether it runs in a terminal.
    pub tty: bool,
    /// Which model API the gateway offers to it.
    pub dialect: Dialect,
    /// The model to ask for; the user's `--model` or the harness's own default where not given.
    pub model: Option<String>,
    /// Where the program is.
    pub program: Program,
}

/// What to run, and what must be there before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Added to the environment of the operation.
    pub env: BTreeMap<String, String>,
    /// Files to write before it starts, in order.
    pub files: Vec<PlanFile>,
    /// Whether the user's input is to be given to it.
    pub stdin: bool,
}

/// A file that a plan or a repair needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanFile {
    /// Absolute path inside the sandbox; missing parents are made with mode 0755.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// What it holds.
    pub bytes: Vec<u8>,
    /// What becomes of a file that is there already.
    pub write: Write,
}

/// What becomes of a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// It is replaced.
    Replace,
    /// It stays.
    Keep,
    /// Both are JSON objects: ours is laid over it, key by key; lists are united.
    Merge,
}

/// Where a session's transcript is: the most recently modified file of `dir` whose name ends with `suffix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriptAt {
    /// Directory inside the sandbox.
    pub dir: String,
    /// End of the file's name.
    pub suffix: String,
}

/// One tool call in a transcript.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    /// The harness's (the model's) id for it, which is the id of its operation.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments as the model wrote them.
    pub input: Value,
}

/// What the journal knows of one tool call. Output is both streams in the order in which they came, where that is known;
/// else stdout before stderr. Of more than [`crate::OUTPUT_KEPT`] bytes give [`crate::shorten`]ed ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallResult {
    /// It ended.
    Settled {
        /// How. `Lost` is taken as [`CallResult::Lost`].
        outcome: Outcome,
        /// Its output.
        output: Vec<u8>,
    },
    /// It still runs, and the harness is not to wait for it.
    Running {
        /// The output so far.
        output: Vec<u8>,
    },
    /// It was started and its end is unknown.
    Lost {
        /// The output that was kept.
        output: Vec<u8>,
    },
    /// The journal proves that it was never started.
    NotStarted,
    /// It is not an operation of ours (a tool that runs inside the harness).
    NotOurs,
}

/// A repaired transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The whole file: what was good of the old one, then one record for each dangling call. Empty: remove the file.
    pub bytes: Vec<u8>,
    /// The calls that got a result, in order.
    pub repaired: Vec<String>,
    /// Files that the new records speak of (the full text of long outputs).
    pub files: Vec<PlanFile>,
    /// How far the session had got; to be given to [`Driver::resume`].
    pub phase: Phase,
}

/// How far a session had got, by its transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The user's prompt is not recorded: nothing to resume, start as before.
    Empty,
    /// A turn is unfinished.
    Interrupted,
    /// The last turn is finished.
    Settled,
}

/// What the end of a harness's operation means for its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It ended as it or its user wanted.
    Done,
    /// It was lost; resume it.
    Resume,
}

/// One harness. Every method is pure; [`Start`] says all about the session.
pub trait Driver: Send + Sync {
    /// Returns its name on the command line.
    fn name(&self) -> &'static str;

    /// Returns the version that is tested and installed by default.
    fn default_version(&self) -> &'static str;

    /// Returns how the session is started.
    ///
    /// # Errors
    /// Arguments of the user's that cannot be run durably.
    fn start(&self, start: &Start) -> Result<Plan, Error>;

    /// Returns how the session goes on after [`Driver::repair`], whose outcome was written back.
    ///
    /// # Errors
    /// As [`Driver::start`].
    fn resume(&self, start: &Start, phase: Phase) -> Result<Plan, Error>;

    /// Returns where the transcript of the session is; none where the arguments start no session (`--version`).
    fn transcript(&self, start: &Start) -> Option<TranscriptAt>;

    /// Gives each dangling tool call its true result, and drops what a kill left half written: a torn last line, or an
    /// answer of the model that is not whole. A session that prints its answer and exits is also taken back to before
    /// its last answer, so that the harness asks again, is served from the journal, and prints it.
    ///
    /// `results` is asked once for each dangling call of the shell tool, in order, and for no other tool.
    fn repair(
        &self,
        start: &Start,
        transcript: &[u8],
        results: &dyn Fn(&ToolUse) -> CallResult,
    ) -> Repair;

    /// Returns what the end of its operation means.
    fn ended(&self, start: &Start, outcome: &Outcome) -> Ended;

    /// Returns the arguments of a session that is like this one, is none that was there before, and begins with `note`:
    /// the options without those that choose a session, `--`, and the note in place of every prompt.
    fn afresh(&self, start: &Start, note: &str) -> Vec<String>;

    /// Returns what the harness keeps of conversations where this session keeps its own, this one's included: patterns of
    /// absolute paths in which `*` and `?` stand for parts of a name. What is a user's (settings, memory, plugins) is not
    /// among them.
    fn conversations(&self, start: &Start) -> Vec<String>;

    /// Returns what the user asked for last, by the transcript where it tells, else by the arguments.
    fn last_input(&self, start: &Start, transcript: Option<&[u8]>) -> Option<String>;
}

/// What the end of a harness's operation means: a harness that exits by itself is done, also with an error or when it was
/// asked to end; one that was killed, or of which nobody knows, is gone on with.
pub(crate) fn ended(is_session: bool, outcome: &Outcome) -> Ended {
    const SIGKILL: u8 = 9;
    match outcome {
        Outcome::Lost
        | Outcome::Signaled {
            signal: SIGKILL | 4 | 6 | 7 | 11,
        } if is_session => Ended::Resume,
        Outcome::Exited { .. }
        | Outcome::Signaled { .. }
        | Outcome::TimedOut
        | Outcome::Cancelled
        | Outcome::Lost => Ended::Done,
    }
}
