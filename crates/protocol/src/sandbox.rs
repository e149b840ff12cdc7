//! What a sandbox is made from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{IdError, SandboxName};

/// The read-only root that a sandbox starts from. Written `host` or `dir:PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Image {
    /// The host's own system directories; nothing of its homes, secrets, sockets or devices.
    Host,
    /// An unpacked root file system.
    Dir(PathBuf),
}

// In JSON it is the text form, which a derived schema would not say.
impl utoipa::PartialSchema for Image {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        String::schema()
    }
}

impl utoipa::ToSchema for Image {}

impl FromStr for Image {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let bad = |why| IdError {
            what: "image",
            text: text.chars().take(64).collect(),
            why,
        };
        match text.split_once(':') {
            None if text == "host" => Ok(Self::Host),
            Some(("dir", path)) if path.starts_with('/') => Ok(Self::Dir(PathBuf::from(path))),
            Some(("dir", _)) => Err(bad("the path after `dir:` must be absolute")),
            _ => Err(bad("use `host` or `dir:PATH`")),
        }
    }
}

impl TryFrom<String> for Image {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<Image> for String {
    fn from(image: Image) -> Self {
        image.to_string()
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Dir(path) => write!(f, "dir:{}", path.display()),
        }
    }
}

/// What the files of a sandbox look like after its supervisor was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CrashPolicy {
    /// As they were.
    #[default]
    Keep,
    /// As of the last cut.
    Rollback,
}

/// What one sandbox may use. `None` is no limit beyond the machine's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct Limits {
    /// Memory of all processes together, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at one time.
    pub pids: Option<u64>,
    /// CPU time per wall time, in thousandths of one core.
    pub cpu_milli: Option<u64>,
    /// Bytes of operation output kept on disk, all operations together.
    pub spool_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            pids: Some(4096),
            cpu_milli: None,
            spool_bytes: 16 << 30,
        }
    }
}

/// Everything that a sandbox is created with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxSpec {
    /// What people call it.
    pub name: SandboxName,
    /// Where its root comes from.
    pub image: Image,
    /// What it may use.
    #[serde(default)]
    pub limits: Limits,
    /// What its files look like after a crash.
    #[serde(default)]
    pub on_crash: CrashPolicy,
    /// Environment of every operation.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory of an operation that names none.
    #[serde(default = "default_cwd")]
    pub cwd: String,
}

fn default_cwd() -> String {
    "/workspace".to_owned()
}
