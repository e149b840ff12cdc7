//! Where an image comes from, as a person writes it: a scheme and what follows it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::reference::{BadReference, Reference};

/// Where an image comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// `oci:REF`: a registry.
    Registry(Reference),
    /// `oci-archive:FILE[:NAME]`: a tar of an OCI image layout.
    OciArchive {
        /// The file.
        file: PathBuf,
        /// Which of its images, where there are several.
        name: Option<String>,
    },
    /// `docker-archive:FILE[:NAME]`: what `docker save` writes.
    DockerArchive {
        /// The file.
        file: PathBuf,
        /// Which of its images, where there are several.
        name: Option<String>,
    },
}

/// Says why a text is no source of an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSource {
    /// The scheme is none that we know.
    #[error(
        "`{0}` is no source of an image: it must begin with oci:, oci-archive: or docker-archive:"
    )]
    Scheme(String),
    /// No file is named.
    #[error("`{0}:` needs the name of a file after it")]
    NoFile(&'static str),
    /// The reference is wrong.
    #[error(transparent)]
    Reference(#[from] BadReference),
}

impl FromStr for Source {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Self, BadSource> {
        let unknown = || {
            BadSource::Scheme(
                text.chars()
                    .take(255)
                    .flat_map(char::escape_debug)
                    .collect(),
            )
        };
        let (scheme, rest) = text.split_once(':').ok_or_else(unknown)?;
        match scheme {
            "oci" => Ok(Self::Registry(rest.parse()?)),
            "oci-archive" => {
                let (file, name) = archive("oci-archive", rest)?;
                Ok(Self::OciArchive { file, name })
            }
            "docker-archive" => {
                let (file, name) = archive("docker-archive", rest)?;
                Ok(Self::DockerArchive { file, name })
            }
            _ => Err(unknown()),
        }
    }
}

/// As other tools do it, a file's name ends at the first colon.
fn archive(scheme: &'static str, rest: &str) -> Result<(PathBuf, Option<String>), BadSource> {
    let (file, name) = match rest.split_once(':') {
        Some((file, name)) => (file, Some(name).filter(|name| !name.is_empty())),
        None => (rest, None),
    };
    if file.is_empty() {
        return Err(BadSource::NoFile(scheme));
    }
    Ok((PathBuf::from(file), name.map(str::to_owned)))
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, file, name) = match self {
            Self::Registry(reference) => return write!(f, "oci:{reference}"),
            Self::OciArchive { file, name } => ("oci-archive", file, name),
            Self::DockerArchive { file, name } => ("docker-archive", file, name),
        };
        write!(f, "{scheme}:{}", file.display())?;
        if let Some(name) = name {
            write!(f, ":{name}")?;
        }
        Ok(())
    }
}
