//! Layers written byte by byte: a test must be able to say what no honest writer would.

/// A tar under construction.
#[derive(Clone, Default)]
pub(crate) struct Layer {
    bytes: Vec<u8>,
}

/// One entry, before it is written.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) flag: u8,
    pub(crate) link: Vec<u8>,
    pub(crate) data: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: u64,
    pub(crate) pax: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    pub(crate) fn new(name: impl AsRef<[u8]>, flag: u8) -> Self {
        let name = name.as_ref().to_vec();
        let mode = if flag == b'5' { 0o755 } else { 0o644 };
        Self {
            name,
            flag,
            link: vec![],
            data: vec![],
            mode,
            owner: (0, 0),
            mtime: 1_000_000_000,
            pax: vec![],
        }
    }

    pub(crate) fn pax(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax
            .push((key.as_bytes().to_vec(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub(crate) fn owner(self, uid: u32, gid: u32) -> Self {
        Self {
            owner: (uid, gid),
            ..self
        }
    }

    pub(crate) fn link(self, link: impl AsRef<[u8]>) -> Self {
        Self {
            link: link.as_ref().to_vec(),
            ..self
        }
    }

    pub(crate) fn data(self, data: impl AsRef<[u8]>) -> Self {
        Self {
            data: data.as_ref().to_vec(),
            ..self
        }
    }
}

impl Layer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn file(self, name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        self.entry(Entry::new(name, b'0').data(data))
    }

    pub(crate) fn dir(self, name: impl AsRef<[u8]>) -> Self {
        self.entry(Entry::new(name, b'5'))
    }

    pub(crate) fn symlink(self, name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Self {
        self.entry(Entry::new(name, b'2').link(to))
    }

    pub(crate) fn hard_link(self, name: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Self {
        self.entry(Entry::new(name, b'1').link(to))
    }

    /// Writes an entry; what does not fit into its header goes into a pax header.
    pub(crate) fn entry(mut self, mut entry: Entry) -> Self {
        if entry.name.len() > 100 {
            entry.pax.push((b"path".to_vec(), entry.name.clone()));
        }
        if entry.link.len() > 100 {
            entry.pax.push((b"linkpath".to_vec(), entry.link.clone()));
        }
        if !entry.pax.is_empty() {
            let mut records = Vec::new();
            for (key, value) in &entry.pax {
                let rest = key.len() + value.len() + 3;
                let mut length = rest + 1;
                while length != rest + length.to_string().len() {
                    length = rest + length.to_string().len();
                }
                records.extend(format!("{length} ").bytes());
                records.extend(key);
                records.push(b'=');
                records.extend(value);
                records.push(b'\n');
            }
            self.raw(
                &header(b"pax", b'x', records.len() as u64, &Entry::new("", b'x')),
                &records,
            );
        }
        let name = entry.name[..entry.name.len().min(100)].to_vec();
        let data = std::mem::take(&mut entry.data);
        self.raw(&header(&name, entry.flag, data.len() as u64, &entry), &data);
        self
    }

    /// Writes a GNU long name (`L`) or link (`K`) for the entry that follows.
    pub(crate) fn gnu_long(mut self, flag: u8, name: &[u8]) -> Self {
        let name = [name, b"\0"].concat();
        self.raw(
            &header(
                b"././@LongLink",
                flag,
                name.len() as u64,
                &Entry::new("", flag),
            ),
            &name,
        );
        self
    }

    /// Writes a header and its data as they are.
    pub(crate) fn raw(&mut self, header: &[u8], data: &[u8]) {
        self.bytes.extend(header);
        self.bytes.extend(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }

    /// Ends the archive.
    pub(crate) fn done(mut self) -> Vec<u8> {
        self.bytes.extend([0; 1024]);
        self.bytes
    }

    /// Leaves out the end.
    pub(crate) fn unfinished(self) -> Vec<u8> {
        self.bytes
    }
}

pub(crate) fn header(name: &[u8], flag: u8, size: u64, entry: &Entry) -> [u8; 512] {
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, format!("{:07o}", entry.mode).as_bytes());
    put(108, format!("{:07o}", entry.owner.0).as_bytes());
    put(116, format!("{:07o}", entry.owner.1).as_bytes());
    put(124, format!("{size:011o}").as_bytes());
    put(136, format!("{:011o}", entry.mtime).as_bytes());
    put(156, &[flag]);
    put(157, &entry.link[..entry.link.len().min(100)]);
    put(257, b"ustar\x0000");
    checksum(&mut block);
    block
}

pub(crate) fn checksum(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}
