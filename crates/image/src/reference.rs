//! References to images in registries, as `docker pull` takes them: `debian:12`, `ghcr.io/a/b@sha256:…`,
//! `localhost:5000/x/y:tag`. What is parsed here is safe to be a part of a URL as it stands.

use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

/// Where the images without a registry's name live.
const DOCKER_HUB: &str = "docker.io";
/// The longest name that registries take.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A parsed reference; its text is complete, with the registry and the tag or digest that the short form leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Says why a text is no reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no reference to an image: {why}")]
pub struct BadReference {
    text: String,
    why: &'static str,
}

impl Reference {
    /// Returns the registry's host, with its port if one was given.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the name within the registry.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the digest that it is pinned to, if it is.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// Returns the host that answers the registry's API: Docker Hub's has another name than its images.
    pub(crate) fn api_host(&self) -> &str {
        match self.registry.as_str() {
            DOCKER_HUB => "registry-1.docker.io",
            other => other,
        }
    }

    /// Tells whether the registry is on this machine, where plain HTTP is the custom.
    pub(crate) fn is_loopback(&self) -> bool {
        is_loopback(host_of(&self.registry))
    }

    /// Returns what stands at the end of the manifest's URL. The digest goes before the tag.
    pub(crate) fn manifest_name(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".into(),
        }
    }
}

/// Returns the host of `host[:port]`, with the brackets of an IPv6 address.
fn host_of(authority: &str) -> &str {
    if authority.starts_with('[') {
        return authority
            .find(']')
            .map_or(authority, |end| &authority[..=end]);
    }
    authority.split(':').next().unwrap_or(authority)
}

/// Tells whether a host of a URL is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match (&self.tag, &self.digest) {
            (None, None) => write!(f, ":latest"),
            (tag, digest) => {
                if let Some(tag) = tag {
                    write!(f, ":{tag}")?;
                }
                if let Some(digest) = digest {
                    write!(f, "@{digest}")?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        parse(text).map_err(|why| BadReference {
            text: text
                .chars()
                .take(MAX_NAME)
                .flat_map(char::escape_debug)
                .collect(),
            why,
        })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => {
            let digest = digest
                .parse()
                .map_err(|_| "the digest after `@` must be sha256: and 64 hexadecimal digits")?;
            (rest, Some(digest))
        }
        None => (text, None),
    };
    let (registry, rest) = match rest.split_once('/') {
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':', '['])
                || first.contains(|c: char| c.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        _ => (DOCKER_HUB, rest),
    };
    let registry = match registry {
        "index.docker.io" | "registry-1.docker.io" => DOCKER_HUB,
        other => other,
    };
    check_registry(registry)?;
    let (name, tag) = match rest.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (rest, None),
    };
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    let repository = if registry == DOCKER_HUB && !name.contains('/') {
        format!("library/{name}")
    } else {
        name.to_owned()
    };
    if name.is_empty() {
        return Err("the name is empty");
    }
    if repository.len() + registry.len() > MAX_NAME {
        return Err("the name is longer than 255 bytes");
    }
    repository.split('/').try_for_each(check_component)?;
    Ok(Reference {
        registry: registry.to_ascii_lowercase(),
        repository,
        tag: tag.map(str::to_owned),
        digest,
    })
}

fn check_registry(registry: &str) -> Result<(), &'static str> {
    let host = host_of(registry);
    let good = if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']').unwrap_or("");
        address.parse::<std::net::Ipv6Addr>().is_ok()
    } else {
        let label = |label: &str| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        host.split('.').all(label)
    };
    let port = &registry[host.len()..];
    let port_good = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if good && port_good {
        Ok(())
    } else {
        Err("the registry must be host or host:port")
    }
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let good = tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-');
    if good {
        Ok(())
    } else {
        Err("a tag is up to 128 letters, digits and `_.-`")
    }
}

/// Lower-case words with single dots, one or two underscores or any number of hyphens between.
fn check_component(component: &str) -> Result<(), &'static str> {
    const WHY: &str =
        "a name is lower-case words with `.`, `_`, `__` or `-` between, and `/` between its parts";
    let mut separator = String::new();
    let mut seen = false;
    for c in component.chars() {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            let allowed = match separator.as_str() {
                "" => true,
                "." | "_" | "__" => seen,
                hyphens => seen && hyphens.bytes().all(|b| b == b'-'),
            };
            if !allowed {
                return Err(WHY);
            }
            separator.clear();
            seen = true;
        } else if matches!(c, '.' | '_' | '-') {
            separator.push(c);
        } else {
            return Err(WHY);
        }
    }
    if seen && separator.is_empty() {
        Ok(())
    } else {
        Err(WHY)
    }
}
