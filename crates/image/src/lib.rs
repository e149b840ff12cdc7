//! Images: pulled from any OCI registry or read from archives, unpacked once, shared between sandboxes.
//!
//! A [`Store`] gives each image as one complete root directory, ready to be the lower directory of an overlay, and the
//! configuration that came with it. An image is named by the SHA-256 of its manifest; everything that leads from there to
//! its files (configuration, layers as stored, layers unpacked) is checked against digests while it streams through.
//! Layers come from strangers: see the crate's `layer` module for what they are refused.
//!
//! On disk:
//! ```text
//! images/                      0700: setuid programs of an image are nothing for other users of this machine
//!   lock                       shared while something is being built or removed, exclusive while leftovers are swept
//!   locks/<hex>                one who builds this image
//!   images/<hex>/rootfs/       the root directory; nobody writes to it
//!   images/<hex>/image.json    its configuration; the file's time is that of the last use
//!   refs/<hex of the name>     a name that was pulled, and the digest that it led to then
//!   tmp/<unique>/              what is being built or removed
//! ```
//! An image is built in `tmp`, synced and renamed to its place: a kill at any moment leaves a whole image or none.
//!
//! This crate never mounts anything, starts nothing of an image, and knows no sandbox: who uses an image is the caller's
//! knowledge, and is asked for when one is to be removed.

#![deny(unsafe_code)]

mod archive;
mod digest;
mod error;
mod layer;
mod limits;
mod manifest;
mod reference;
mod registry;
mod source;
mod store;
mod text;

pub use archive::ArchiveError;
pub use digest::{Digest, NotADigest};
pub use error::{Error, Kind, Result};
pub use layer::LayerError;
pub use limits::Limits;
pub use manifest::{ImageConfig, ManifestError};
pub use reference::{BadReference, Reference};
pub use registry::RegistryError;
pub use source::{BadSource, Source};
pub use store::{Listed, Options, Progress, Pulled, Store};
