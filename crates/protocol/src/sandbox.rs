//! What a sandbox is made from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{IdError, SandboxName};

/// The read-only root that a sandbox starts from. Written `host`, `dir:PATH`, `oci:REF`, `oci-archive:FILE` or
/// `docker-archive:FILE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Image {
    /// The host's own system directories; nothing of its homes, secrets, sockets or devices.
    Host,
    /// An unpacked root file system.
    Dir(PathBuf),
    /// An image in a registry, such as `debian:12` or `ghcr.io/a/b@sha256:…`.
    Oci(String),
    /// An OCI image layout in a tar file.
    OciArchive(PathBuf),
    /// What `docker save` writes.
    DockerArchive(PathBuf),
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
            Some(("oci-archive", path)) if path.starts_with('/') => {
                Ok(Self::OciArchive(PathBuf::from(path)))
            }
            Some(("docker-archive", path)) if path.starts_with('/') => {
                Ok(Self::DockerArchive(PathBuf::from(path)))
            }
            Some(("dir" | "oci-archive" | "docker-archive", _)) => {
                Err(bad("the path after the colon must be absolute"))
            }
            Some(("oci", reference)) if !reference.is_empty() => {
                Ok(Self::Oci(reference.to_owned()))
            }
            _ => Err(bad(
                "use `host`, `dir:PATH`, `oci:REF`, `oci-archive:FILE` or `docker-archive:FILE`",
            )),
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
            Self::Oci(reference) => write!(f, "oci:{reference}"),
            Self::OciArchive(path) => write!(f, "oci-archive:{}", path.display()),
            Self::DockerArchive(path) => write!(f, "docker-archive:{}", path.display()),
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
    /// What its files take on disk, in bytes: what it wrote, without the image and without old cuts.
    pub disk_bytes: Option<u64>,
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
            disk_bytes: None,
            pids: Some(4096),
            cpu_milli: None,
            spool_bytes: 16 << 30,
        }
    }
}

/// A blob store, as the machine of the daemon finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StoreAt {
    /// An absolute path, `file:///dir`, `s3://bucket/prefix`, `gs://…` or `az://…`; credentials come from the environment of
    /// the daemon.
    pub url: String,
    /// A file with an age identity; a store that is made with one is encrypted to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub key_file: Option<PathBuf>,
    /// For a directory: the number of the device that the caller finds it on. A daemon has mounts of its own and may not see
    /// what was mounted after its start; with this it refuses, instead of writing below the mount point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u64>,
}

/// Everything that a sandbox is created with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxSpec {
    /// What people call it.
    pub name: SandboxName,
    /// Where its root comes from.
    pub image: Image,
    /// The digest of the image's manifest, where it has one: the same bytes for ever, whatever its name means later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<String>,
    /// Who operations run as that name nobody: the image's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What an operation runs that names no command: the image's entrypoint and command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// What it may use.
    #[serde(default)]
    pub limits: Limits,
    /// What its files look like after a crash.
    #[serde(default)]
    pub on_crash: CrashPolicy,
    /// Where every cut goes before anyone hears of the operation that it was taken after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicate: Option<StoreAt>,
    /// What may leave it, as the text of a policy (TOML); none allows nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
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
