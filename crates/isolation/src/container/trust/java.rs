//! Whom Java trusts: it reads no bundle and hears no variable but one that every start of it prints, so its own keystores are
//! covered as bundles are.
//!
//! The keystore is written in Java's first format, JKS, which all versions read whatever the file is called. An image that has a
//! keystore and no bundle keeps its own: ours would know nobody else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use protocol::paths;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

use super::super::cover;
use super::super::place::Root;
use crate::Error;

/// Where distributions keep one for all their Javas.
const SYSTEM: [&str; 3] = [
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
];
/// Where Javas lie, each in a directory of its own; most have a link to one of the above, the others their own.
const HOMES: [&str; 5] = [
    "/usr/lib/jvm",
    "/opt/java",
    "/opt",
    "/usr/local",
    "/usr/java",
];
const IN_HOME: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];
/// More entries than anybody has of these; what is beyond is not looked at.
const MAX_ENTRIES: usize = 200;
/// What everybody's keystores have, for those who check it.
const PASSWORD: &str = "changeit";

/// Writes the keystore into `ours` and puts it over the image's, if it has any.
pub(super) fn place(
    root: &Root,
    ours: BorrowedFd<'_>,
    own: u64,
    bundle: &[u8],
) -> Result<(), Error> {
    let failed = |e: io::Error| Error::step("write the certificates for Java to trust", e);
    let name = paths::CA_KEYSTORE
        .rsplit('/')
        .next()
        .unwrap_or(paths::CA_KEYSTORE);
    let mut is_written = false;
    for path in candidates(root) {
        // Also where one may not look: it is only a guess.
        let Ok(Some(point)) = root.existing(&path) else {
            continue;
        };
        // Covered already, under another of its names.
        if super::device(point.as_fd()).map_err(failed)? == own {
            continue;
        }
        if !is_written {
            cover::write(ours, name, &keystore(bundle)).map_err(failed)?;
            is_written = true;
        }
        cover::attach(point.as_fd(), ours, name)?;
    }
    Ok(())
}

fn candidates(root: &Root) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    for homes in HOMES {
        for home in root.entries(Path::new(homes), MAX_ENTRIES) {
            let home = Path::new(homes).join(home);
            found.extend(IN_HOME.iter().map(|path| home.join(path)));
        }
    }
    found
}

/// Returns a keystore of the certificates in a bundle. What is no certificate is left out.
fn keystore(bundle: &[u8]) -> Vec<u8> {
    let certificates = certificates(bundle);
    let mut out = Vec::with_capacity(bundle.len());
    out.extend_from_slice(&0xfeed_feed_u32.to_be_bytes());
    out.extend_from_slice(&2_u32.to_be_bytes());
    number(&mut out, certificates.len());
    for (index, certificate) in certificates.iter().enumerate() {
        // A certificate that is trusted, by a name, made at a time; the same bundle makes the same file.
        out.extend_from_slice(&2_u32.to_be_bytes());
        text(&mut out, &format!("durable-{index}"));
        out.extend_from_slice(&0_u64.to_be_bytes());
        text(&mut out, "X.509");
        number(&mut out, certificate.len());
        out.extend_from_slice(certificate);
    }
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    for unit in PASSWORD.encode_utf16() {
        digest.update(&unit.to_be_bytes());
    }
    digest.update(b"Mighty Aphrodite");
    digest.update(&out);
    out.extend_from_slice(digest.finish().as_ref());
    out
}

/// Of things that are far smaller than what the number can say.
fn number(out: &mut Vec<u8>, value: usize) {
    let value = u32::try_from(value).unwrap_or(u32::MAX);
    out.extend_from_slice(&value.to_be_bytes());
}

fn text(out: &mut Vec<u8>, value: &str) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(value.as_bytes());
}

/// Returns the certificates of a PEM file.
fn certificates(pem: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(pem);
    let mut parts = text.split("-----BEGIN CERTIFICATE-----");
    // Before the first.
    parts.next();
    parts
        .filter_map(|part| {
            let (body, _) = part.split_once("-----END CERTIFICATE-----")?;
            let body: String = body.split_ascii_whitespace().collect();
            let der = STANDARD.decode(body).ok()?;
            // One that is none would keep Java from reading all others.
            (der.first() == Some(&0x30)).then_some(der)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keystore_has_what_the_bundle_has() {
        let pem = b"# one\n-----BEGIN CERTIFICATE-----\nMAMC\nAQE=\n-----END CERTIFICATE-----\n\
            -----BEGIN CERTIFICATE-----\nno base64\n-----END CERTIFICATE-----\n\
            -----BEGIN CERTIFICATE-----\nMAMCAQI=\n-----END CERTIFICATE-----\n";
        let one = [0x30, 3, 2, 1, 1];
        assert_eq!(certificates(pem), [one, [0x30, 3, 2, 1, 2]]);
        let store = keystore(pem);
        assert_eq!(
            store[..12],
            [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2]
        );
        assert_eq!(store.windows(5).filter(|w| *w == one).count(), 1);
        assert_eq!(keystore(b"").len(), 12 + 20);
    }
}
