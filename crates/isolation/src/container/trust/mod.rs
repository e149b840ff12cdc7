//! Whom programs inside trust: the authorities of the image and one more, the sandbox's own.
//!
//! Programs differ in where they look (facts: no variable and no file is used by all), so the bundle lies at a place of ours
//! that the environment of operations names, and is mounted over the bundles that the image has, and over Java's keystores as one. A program that wants to
//! replace one of these inside is refused by the kernel (`EBUSY`).

mod java;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use protocol::paths;

use super::cover;
use super::place::Root;
use crate::Error;

/// Where distributions keep their bundle; several of these are often one file.
const SYSTEM: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Far more than any has. What is larger, or no file, counts as none: a workspace must not keep its sandbox from starting.
const MAX_BUNDLE: u64 = 2 << 20;

/// Writes certificate and bundle into `ours`, a mounted directory that is sealed later, and puts the bundle over the image's.
pub(super) fn place(root: &Root, ours: BorrowedFd<'_>, authority: &str) -> Result<(), Error> {
    let failed = |e: io::Error| Error::step("write the certificates to trust", e);
    let name = |path: &'static str| path.rsplit('/').next().unwrap_or(path);
    let mut bundle = SYSTEM
        .iter()
        .find_map(|path| root.read(Path::new(path), MAX_BUNDLE))
        .unwrap_or_default();
    let has_roots = !bundle.is_empty();
    if bundle.last().is_some_and(|last| *last != b'\n') {
        bundle.push(b'\n');
    }
    bundle.extend_from_slice(authority.as_bytes());
    cover::write(ours, name(paths::CA_CERT), authority.as_bytes()).map_err(failed)?;
    cover::write(ours, name(paths::CA_BUNDLE), &bundle).map_err(failed)?;
    let own = device(ours).map_err(failed)?;
    for path in SYSTEM {
        let Some(point) = root.existing(Path::new(path))? else {
            continue;
        };
        // Covered already, under another of its names.
        if device(point.as_fd()).map_err(failed)? == own {
            continue;
        }
        cover::attach(point.as_fd(), ours, name(paths::CA_BUNDLE))?;
    }
    if has_roots {
        java::place(root, ours, own, &bundle)?;
    }
    Ok(())
}

fn device(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::fstat(fd)?.st_dev)
}
