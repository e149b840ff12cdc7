//! Images made of layers: as blobs for a registry, and as archives of both kinds.

use std::io::Write as _;
use std::path::Path;

use image::Digest;
use serde_json::{Value, json};

use crate::layers::{Entry, Layer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// An image: its layers unpacked, and as they are stored.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
    pub(crate) blobs: Vec<Vec<u8>>,
    contents: Vec<Vec<u8>>,
}

pub(crate) fn pack(content: &[u8], packing: Packing) -> Vec<u8> {
    match packing {
        Packing::Plain => content.to_vec(),
        Packing::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(content).unwrap();
            gzip.finish().unwrap()
        }
        Packing::Zstd => zstd::encode_all(content, 1).unwrap(),
    }
}

pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Image {
    pub(crate) fn of(layers: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self::with(layers, Packing::Plain, json!({}))
    }

    pub(crate) fn with(
        layers: impl IntoIterator<Item = Vec<u8>>,
        packing: Packing,
        run: Value,
    ) -> Self {
        let contents: Vec<Vec<u8>> = layers.into_iter().collect();
        let diff_ids: Vec<_> = contents.iter().map(|content| Digest::of(content)).collect();
        let config = json!({
            "architecture": architecture(), "os": "linux", "created": "2024-02-29T12:00:00Z", "config": run,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let blobs: Vec<_> = contents
            .iter()
            .map(|content| pack(content, packing))
            .collect();
        let suffix = match packing {
            Packing::Plain => "",
            Packing::Gzip => "+gzip",
            Packing::Zstd => "+zstd",
        };
        let mut image = Self {
            config: config.to_string().into(),
            manifest: vec![],
            blobs,
            contents,
        };
        image.describe(&format!("application/vnd.oci.image.layer.v1.tar{suffix}"));
        image
    }

    /// Writes the manifest anew, after something was changed.
    pub(crate) fn describe(&mut self, media_type: &str) {
        let describe = |blob: &[u8], media_type: &str| json!({"mediaType": media_type, "digest": Digest::of(blob), "size": blob.len()});
        let layers: Vec<_> = self
            .blobs
            .iter()
            .map(|blob| describe(blob, media_type))
            .collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": describe(&self.config, "application/vnd.oci.image.config.v1+json"), "layers": layers,
        });
        self.manifest = manifest.to_string().into();
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    pub(crate) fn descriptor(&self) -> Value {
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": self.digest(), "size": self.manifest.len()})
    }

    /// Writes a tar of an OCI layout.
    pub(crate) fn oci_archive(&self, file: &Path) {
        oci_archive(
            file,
            &[self],
            &json!({"schemaVersion": 2, "manifests": [self.descriptor()]}),
        );
    }

    /// Writes what `docker save` writes.
    pub(crate) fn docker_archive(&self, file: &Path, tag: &str) {
        let config = format!("{}.json", Digest::of(&self.config).hex());
        let names: Vec<_> = (0..self.contents.len())
            .map(|n| format!("{n}/layer.tar"))
            .collect();
        let manifest = json!([{"Config": config, "RepoTags": [tag], "Layers": names}]);
        let mut tar = Layer::new();
        for (name, content) in names.iter().zip(&self.contents) {
            tar = tar.file(name, content);
        }
        let tar = tar
            .file(&config, &self.config)
            .file("manifest.json", manifest.to_string());
        std::fs::write(file, tar.done()).unwrap();
    }
}

/// Writes a tar of an OCI layout with several images.
pub(crate) fn oci_archive(file: &Path, images: &[&Image], index: &Value) {
    let mut tar = Layer::new().file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    tar = tar.file("index.json", index.to_string());
    for image in images {
        for blob in image.blobs.iter().chain([&image.config, &image.manifest]) {
            tar = tar.entry(
                Entry::new(format!("./blobs/sha256/{}", Digest::of(blob).hex()), b'0').data(blob),
            );
        }
    }
    std::fs::write(file, tar.done()).unwrap();
}
