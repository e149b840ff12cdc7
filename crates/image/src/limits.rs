//! What a layer may cost at most. A layer comes from strangers; each limit has a name that the refusal tells.

/// Limits on what is unpacked. The defaults leave room for the largest images that people use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files, directories and links of one image, counted as they are made.
    pub max_entries: u64,
    /// Names in one path. Some work descends by one open file per level.
    pub max_depth: usize,
    /// Bytes in one name; file systems take no more than 255.
    pub max_name_bytes: usize,
    /// Bytes in one path; the kernel takes no more than 4095.
    pub max_path_bytes: usize,
    /// Bytes of all files of an image, holes included: a copy of the file may fill them.
    pub max_unpacked_bytes: u64,
    /// How many times larger than the blob its content may be, after [`Limits::free_bytes`].
    pub max_ratio: u64,
    /// What any blob may unpack to, whatever its size: a small file of zeros is no attack.
    pub free_bytes: u64,
    /// Bytes of one extension header: long names, and extended attributes.
    pub max_extension_bytes: u64,
    /// Data segments of one sparse file.
    pub max_sparse_segments: usize,
    /// Bytes of a manifest, an index or a configuration; these are held in memory.
    pub max_document_bytes: u64,
    /// Layers of one image.
    pub max_layers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_entries: 4_000_000,
            max_depth: 256,
            max_name_bytes: 255,
            max_path_bytes: 4095,
            max_unpacked_bytes: 64 << 30,
            max_ratio: 200,
            free_bytes: 1 << 30,
            max_extension_bytes: 1 << 20,
            max_sparse_segments: 1 << 20,
            max_document_bytes: 8 << 20,
            max_layers: 1024,
        }
    }
}
