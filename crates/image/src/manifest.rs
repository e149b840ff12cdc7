//! Manifests, indexes and configurations, of OCI and of Docker, as far as they concern us.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::text::shown;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// What a registry is asked for.
pub(crate) const ACCEPT: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];

const LAYERS: [&str; 5] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar",
];

/// A document of an image that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is no JSON of the expected form.
    #[error("the {what} is malformed: {why}")]
    Malformed {
        /// The document.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// It is for other machines.
    #[error("the image has nothing for {wanted}; it is for {found}")]
    Platform {
        /// This machine.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// It is of a form that we do not take.
    #[error("the {what} is of the type `{media_type}`, which is not supported")]
    MediaType {
        /// The document or blob.
        what: &'static str,
        /// Its type.
        media_type: String,
    },
}

fn malformed(what: &'static str, why: impl ToString) -> ManifestError {
    ManifestError::Malformed {
        what,
        why: shown(why.to_string().as_bytes()),
    }
}

/// Points at a blob.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Debug, Clone, Deserialize)]
struct Annotations {
    #[serde(default, rename = "org.opencontainers.image.ref.name")]
    ref_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
}

/// What stands under a digest: an image, or a choice of images.
#[derive(Debug, Clone)]
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

/// One image.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// A choice of images.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

impl Document {
    pub(crate) fn parse(bytes: &[u8], media_type: Option<&str>) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Form {
            schema_version: u64,
            #[serde(default)]
            media_type: Option<String>,
            #[serde(default)]
            manifests: Option<serde::de::IgnoredAny>,
            #[serde(default)]
            config: Option<serde::de::IgnoredAny>,
        }
        let form: Form = serde_json::from_slice(bytes).map_err(|e| malformed("manifest", e))?;
        let stated = form.media_type.as_deref().or(media_type).unwrap_or("");
        if form.schema_version != 2 {
            let media_type = format!("schema version {}", form.schema_version);
            return Err(ManifestError::MediaType {
                what: "manifest",
                media_type,
            });
        }
        // A document that can be read both ways would be two images under one digest.
        match (form.manifests.is_some(), form.config.is_some()) {
            (true, true) => Err(malformed("manifest", "it is an image and an index at once")),
            (true, false) if stated != OCI_MANIFEST && stated != DOCKER_MANIFEST => {
                serde_json::from_slice(bytes)
                    .map(Self::Index)
                    .map_err(|e| malformed("index", e))
            }
            (false, true) if stated != OCI_INDEX && stated != DOCKER_LIST => {
                serde_json::from_slice(bytes)
                    .map(Self::Manifest)
                    .map_err(|e| malformed("manifest", e))
            }
            _ => Err(ManifestError::MediaType {
                what: "manifest",
                media_type: shown(stated.as_bytes()),
            }),
        }
    }
}

impl Manifest {
    /// Refuses layers of a kind that we cannot apply: encrypted ones, or those that live elsewhere.
    pub(crate) fn check_layers(&self) -> Result<(), ManifestError> {
        match self
            .layers
            .iter()
            .find(|layer| !LAYERS.contains(&layer.media_type.as_str()))
        {
            None => Ok(()),
            Some(layer) => Err(ManifestError::MediaType {
                what: "layer",
                media_type: shown(layer.media_type.as_bytes()),
            }),
        }
    }
}

impl Index {
    /// Picks the image for this machine. Entries that say nothing of a platform count if there is no better one.
    pub(crate) fn pick(&self) -> Result<&Descriptor, ManifestError> {
        let here = |d: &&Descriptor| {
            d.platform
                .as_ref()
                .is_some_and(|p| p.os == "linux" && p.architecture == architecture())
        };
        // The plain variant runs everywhere; others want a newer processor.
        let plain = |d: &&Descriptor| {
            let variant = d.platform.as_ref().and_then(|p| p.variant.as_deref());
            matches!(variant, None | Some("" | "v1" | "v8"))
                || (architecture() == "arm" && variant == Some("v7"))
        };
        let mut unmarked = self.manifests.iter().filter(|d| d.platform.is_none());
        let picked = self
            .manifests
            .iter()
            .filter(here)
            .find(plain)
            .or_else(|| self.manifests.iter().find(here))
            .or_else(|| unmarked.next().filter(|_| self.manifests.len() == 1));
        picked.ok_or_else(|| {
            let found: Vec<String> = self
                .manifests
                .iter()
                .filter_map(|d| d.platform.as_ref())
                .filter(|p| p.os != "unknown")
                .take(12)
                .map(|p| {
                    format!(
                        "{}/{}",
                        shown(p.os.as_bytes()),
                        shown(p.architecture.as_bytes())
                    )
                })
                .collect();
            ManifestError::Platform {
                wanted: format!("linux/{}", architecture()),
                found: if found.is_empty() {
                    "no platform".into()
                } else {
                    found.join(", ")
                },
            }
        })
    }

    /// Returns the names of its entries.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self
            .manifests
            .iter()
            .filter_map(|d| d.annotations.as_ref()?.ref_name.as_ref());
        let mut names: Vec<String> = names.map(|name| shown(name.as_bytes())).collect();
        names.dedup();
        names
    }

    /// Keeps the entries of a name; an archive may hold several images.
    pub(crate) fn named(self, name: &str) -> Self {
        let is_named = |d: &Descriptor| {
            let ref_name = d.annotations.as_ref().and_then(|a| a.ref_name.as_deref());
            ref_name == Some(name)
        };
        Self {
            manifests: self.manifests.into_iter().filter(is_named).collect(),
        }
    }
}

/// Returns this machine's architecture as images name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// How a program of the image is meant to be started. Nothing of it is applied here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// The program, and its first arguments.
    pub entrypoint: Vec<String>,
    /// The arguments that follow, or the whole command where there is no entrypoint.
    pub cmd: Vec<String>,
    /// The environment, in its order.
    pub env: Vec<(String, String)>,
    /// The user as written: a name or number, perhaps with `:group`. Empty is root.
    pub user: String,
    /// Where it starts; absolute.
    pub workdir: String,
}

/// What a configuration says beside how to start.
#[derive(Debug, Clone)]
pub(crate) struct Configuration {
    pub(crate) config: ImageConfig,
    pub(crate) diff_ids: Vec<Digest>,
    pub(crate) created: Option<String>,
}

impl Configuration {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Whole {
            #[serde(default)]
            architecture: String,
            #[serde(default)]
            os: String,
            #[serde(default)]
            created: Option<String>,
            #[serde(default)]
            config: Option<Run>,
            rootfs: Rootfs,
        }
        #[derive(Deserialize)]
        struct Rootfs {
            #[serde(default)]
            diff_ids: Option<Vec<Digest>>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        struct Run {
            entrypoint: Option<Vec<String>>,
            cmd: Option<Vec<String>>,
            env: Option<Vec<String>>,
            user: Option<String>,
            working_dir: Option<String>,
        }
        let what = "configuration";
        let whole: Whole = serde_json::from_slice(bytes).map_err(|e| malformed(what, e))?;
        if whole.os != "linux" || whole.architecture != architecture() {
            return Err(ManifestError::Platform {
                wanted: format!("linux/{}", architecture()),
                found: format!(
                    "{}/{}",
                    shown(whole.os.as_bytes()),
                    shown(whole.architecture.as_bytes())
                ),
            });
        }
        let run = whole.config.unwrap_or_default();
        let env = run
            .env
            .unwrap_or_default()
            .into_iter()
            .map(|line| match line.split_once('=') {
                Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
                _ => Err(malformed(
                    what,
                    "an environment variable has no name or no value",
                )),
            });
        let env = env.collect::<Result<Vec<_>, _>>()?;
        let workdir = match run.working_dir.as_deref() {
            None | Some("") => "/".to_owned(),
            Some(path) if path.starts_with('/') => path.to_owned(),
            Some(path) => format!("/{path}"),
        };
        let config = ImageConfig {
            entrypoint: run.entrypoint.unwrap_or_default(),
            cmd: run.cmd.unwrap_or_default(),
            env,
            user: run.user.unwrap_or_default(),
            workdir,
        };
        let pairs = config.env.iter().flat_map(|(name, value)| [name, value]);
        let texts = config.entrypoint.iter().chain(&config.cmd).chain(pairs);
        let has_zero = texts
            .chain([&config.user, &config.workdir])
            .any(|text| text.contains('\0'));
        if has_zero {
            return Err(malformed(what, "there is a zero byte in it"));
        }
        Ok(Self {
            config,
            diff_ids: whole.rootfs.diff_ids.unwrap_or_default(),
            created: whole.created,
        })
    }

    /// The configuration names the content of each layer, no more and no fewer.
    pub(crate) fn check_count(&self, layers: usize) -> Result<(), ManifestError> {
        let ids = self.diff_ids.len();
        if ids == layers {
            return Ok(());
        }
        Err(malformed(
            "configuration",
            format!("it names {ids} layers, and the manifest {layers}"),
        ))
    }
}
