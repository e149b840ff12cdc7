//! A world for one test: a store, and a neighbourhood that nothing may touch.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use image::{Error, Options, Pulled, Source, Store};

use crate::images::Image;

pub(crate) struct World {
    dir: tempfile::TempDir,
    options: Options,
}

/// What is known of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// `f`, `d`, `l`, `p`, or what else it is.
    pub(crate) kind: char,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: i64,
    /// A file's data, or a link's target.
    pub(crate) data: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(crate) type Tree = BTreeMap<Vec<u8>, Node>;

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "untouched").unwrap();
        // Hermetic: whatever credentials the one who runs the tests has.
        let docker_config = Some(dir.path().join("docker"));
        fs::create_dir(dir.path().join("docker")).unwrap();
        let options = Options {
            docker_config,
            ..Options::default()
        };
        Self { dir, options }
    }

    pub(crate) fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.path("outside")
    }

    pub(crate) fn store(&self) -> Store {
        Store::open_with(&self.path("data/images"), self.options.clone()).unwrap()
    }

    pub(crate) fn pull(&self, source: &str) -> Result<Pulled, Error> {
        let source: Source = source.parse()?;
        block_on(self.store().pull(&source, |_| {}))
    }

    /// Pulls an image out of an archive, and sees that nothing else has changed, whatever comes of it.
    pub(crate) fn unpack(&self, image: &Image) -> Result<Pulled, Error> {
        let file = self.path("image.tar");
        image.oci_archive(&file);
        let before = tree(&self.outside());
        let names = |world: &Self| -> Vec<_> {
            let mut names: Vec<_> = fs::read_dir(world.dir.path())
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            names.retain(|name| name != "data");
            names.sort();
            names
        };
        let before_names = names(self);
        let pulled = self.pull(&format!("oci-archive:{}", file.display()));
        assert_eq!(tree(&self.outside()), before, "the outside was touched");
        assert_eq!(names(self), before_names, "something was made outside");
        assert_eq!(
            self.staged(),
            Vec::<PathBuf>::new(),
            "something was left behind"
        );
        pulled
    }

    pub(crate) fn layers(
        &self,
        layers: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Pulled, Error> {
        self.unpack(&Image::of(layers))
    }

    /// What is being built, or was left by one who died.
    pub(crate) fn staged(&self) -> Vec<PathBuf> {
        match fs::read_dir(self.path("data/images/tmp")) {
            Ok(entries) => entries.map(|e| e.unwrap().path()).collect(),
            Err(_) => vec![],
        }
    }

    /// Unpacks, and returns the tree.
    pub(crate) fn union(&self, layers: impl IntoIterator<Item = Vec<u8>>) -> Tree {
        tree(&self.layers(layers).unwrap().root)
    }

    /// The image cannot be unpacked: says why, with all causes.
    pub(crate) fn refusal(&self, layers: impl IntoIterator<Item = Vec<u8>>) -> String {
        let error = self.layers(layers).unwrap_err();
        assert_eq!(self.store().list().unwrap(), [], "an image was left");
        story(&error)
    }
}

/// An error with its causes.
pub(crate) fn story(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reads a whole tree, the root itself under the empty name.
pub(crate) fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        let (kind, data) = if kind.is_file() {
            ('f', fs::read(&path).unwrap())
        } else if kind.is_symlink() {
            (
                'l',
                fs::read_link(&path)
                    .unwrap()
                    .as_os_str()
                    .as_bytes()
                    .to_vec(),
            )
        } else if kind.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            ('d', vec![])
        } else {
            let fifo = std::os::unix::fs::FileTypeExt::is_fifo(&kind);
            (if fifo { 'p' } else { '?' }, vec![])
        };
        let node = Node {
            kind,
            mode: meta.mode() & 0o7777,
            owner: (meta.uid(), meta.gid()),
            mtime: meta.mtime(),
            data,
            xattrs: xattrs(&path),
        };
        let name = path
            .strip_prefix(root)
            .unwrap()
            .as_os_str()
            .as_bytes()
            .to_vec();
        tree.insert(name, node);
    }
    tree
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let Ok(length) = rustix::fs::llistxattr(path, &mut names) else {
        return BTreeMap::new();
    };
    let names = names[..length]
        .split(|&b| b == 0)
        .filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let name_text = std::ffi::CString::new(name).unwrap();
            let length = rustix::fs::lgetxattr(path, name_text.as_c_str(), &mut value).unwrap();
            value.truncate(length);
            (name.to_vec(), value)
        })
        .collect()
}
