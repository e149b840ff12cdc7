//! The seam between the engine and one harness: what a driver is asked and what it answers.

use std::collections::BTreeMap;

use protocol::{Outcome, SessionId};
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
    /// Working directory inside the sandbox, absolute and without symbolic links.
    pub cwd: String,
    /// Home directory inside the sandbox, absolute.
    pub home: String,
    /// Whether it runs in a terminal.
    pub tty: bool,
    /// Which model API the gateway offers to it.
    pub dialect: Dialect,
    /// The model to ask for; the harness's own default (or the user's `--model`) where not given.
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

/// A file that a plan needs.
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
    /// Both are JSON objects: ours is laid over it, key by key.
    Merge,
}

/// Where a session's transcript is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriptAt {
    /// Directory inside the sandbox.
    pub dir: String,
    /// The file's name ends with this; the newest by name where several do.
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

/// What the journal knows of one tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallResult {
    /// It ended.
    Settled {
        /// How; not [`Outcome::Lost`].
        outcome: Outcome,
        /// Its output as spooled. Where the harness merges both streams, so must the caller.
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
    /// The whole file: what was good of the old one, then one record for each dangling call.
    pub bytes: Vec<u8>,
    /// The calls that got a result, in order.
    pub repaired: Vec<String>,
    /// How far the session had got.
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

    /// Returns how the session goes on, after its transcript was repaired and written back. `attempt` counts from 2.
    ///
    /// # Errors
    /// As [`Driver::start`].
    fn resume(&self, start: &Start, phase: Phase, attempt: u32) -> Result<Plan, Error>;

    /// Returns where the transcript of the session is.
    fn transcript(&self, start: &Start) -> TranscriptAt;

    /// Gives each dangling tool call its true result, and drops a torn last line.
    ///
    /// # Errors
    /// A line before the last that this harness cannot have written.
    fn repair(
        &self,
        start: &Start,
        transcript: &[u8],
        results: &dyn Fn(&ToolUse) -> CallResult,
    ) -> Result<Repair, Error>;

    /// Returns what the end of its operation means.
    fn ended(&self, outcome: &Outcome) -> Ended;
}
