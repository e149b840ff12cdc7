//! Random trees that a seed gives back, on disk as a plain directory or as an upper over a lower one, and git.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rand::prelude::*;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use tree::View;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    File { content: Vec<u8>, mode: u32 },
    Link { target: Vec<u8> },
}

/// What git would see of a tree: files and links, no empty directories.
pub(crate) type Tree = BTreeMap<Vec<u8>, Node>;

pub(crate) fn seeded(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

pub(crate) fn at(root: &Path, path: &[u8]) -> PathBuf {
    root.join(OsStr::from_bytes(path))
}

pub(crate) fn plain(root: &Path) -> View {
    View {
        upper: Some(root.to_owned()),
        lower: None,
    }
}

pub(crate) fn over(upper: &Path, lower: &Path) -> View {
    View {
        upper: Some(upper.to_owned()),
        lower: Some(lower.to_owned()),
    }
}

pub(crate) fn lower_only(lower: &Path) -> View {
    View {
        upper: None,
        lower: Some(lower.to_owned()),
    }
}

fn name(rng: &mut StdRng) -> Vec<u8> {
    const ODD: [&[u8]; 14] = [
        b"a b",
        b"t\tab",
        b"new\nline",
        b"quo\"te",
        b"back\\slash",
        b"\xff\xfe",
        b" lead",
        b"trail ",
        b"-dash",
        b"b",
        b"\x01\x7f",
        "ü–".as_bytes(),
        b"a.b",
        b"it's",
    ];
    match rng.random_range(0..10) {
        0..2 => ODD.choose(rng).unwrap().to_vec(),
        2 if rng.random_bool(0.1) => vec![b'l'; 255],
        _ => format!(
            "{}{}",
            ["f", "g", "lib", "main"].choose(rng).unwrap(),
            rng.random_range(0..6)
        )
        .into_bytes(),
    }
}

fn path(rng: &mut StdRng) -> Vec<u8> {
    let mut path = Vec::new();
    for _ in 0..rng.random_range(0..3) {
        path.extend([b"d", b"e", b"a"].choose(rng).unwrap().iter());
        path.push(b'/');
    }
    path.extend(name(rng));
    path
}

pub(crate) fn line(rng: &mut StdRng) -> Vec<u8> {
    let indent = " ".repeat(rng.random_range(0..3) * 2);
    match rng.random_range(0..8) {
        0 => b"\n".to_vec(),
        1 => format!("{indent}}}\n").into_bytes(),
        2 => format!("fn name{}() {{\n", rng.random_range(0..20)).into_bytes(),
        3 => b"windows\r\n".to_vec(),
        _ => format!("{indent}line {}\n", rng.random_range(0..1000)).into_bytes(),
    }
}

pub(crate) fn text(rng: &mut StdRng) -> Vec<u8> {
    let most = *[0, 3, 12, 80].choose(rng).unwrap();
    let mut text: Vec<u8> = (0..rng.random_range(0..=most))
        .flat_map(|_| line(rng))
        .collect();
    if rng.random_bool(0.2) && text.ends_with(b"\n") {
        text.pop();
    }
    text
}

pub(crate) fn edited(rng: &mut StdRng, text: &[u8]) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = text
        .split_inclusive(|&b| b == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..=lines.len());
        match rng.random_range(0..4) {
            0 => lines.insert(at, line(rng)),
            1 if at < lines.len() => lines[at] = line(rng),
            2 if at < lines.len() => drop(lines.remove(at)),
            _ => {
                let end = (at + rng.random_range(0..4)).min(lines.len());
                let new: Vec<_> = (0..rng.random_range(0..4)).map(|_| line(rng)).collect();
                lines.splice(at..end, new);
            }
        }
    }
    let last = lines.len().saturating_sub(1);
    for line in &mut lines[..last] {
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
    }
    let mut text = lines.concat();
    if rng.random_bool(0.1) {
        match text.ends_with(b"\n") {
            true => drop(text.pop()),
            false => text.push(b'\n'),
        }
    }
    text
}

/// Puts a node where it can be: no file of the tree may be a directory of another path.
pub(crate) fn insert(tree: &mut Tree, path: Vec<u8>, node: Node) {
    let below = [path.as_slice(), b"/"].concat();
    let above = tree
        .keys()
        .any(|key| path.starts_with(&[key.as_slice(), b"/"].concat()));
    if !above && !tree.keys().any(|key| key.starts_with(&below)) {
        tree.insert(path, node);
    }
}

fn node(rng: &mut StdRng) -> Node {
    match rng.random_range(0..6) {
        0 => Node::Link { target: name(rng) },
        _ => Node::File {
            content: text(rng),
            mode: *[0o644, 0o755].choose(rng).unwrap(),
        },
    }
}

pub(crate) fn tree(rng: &mut StdRng) -> Tree {
    let mut tree = Tree::new();
    for _ in 0..rng.random_range(0..16) {
        insert(&mut tree, path(rng), node(rng));
    }
    tree
}

pub(crate) fn mutated(rng: &mut StdRng, old: &Tree) -> Tree {
    mutated_by(rng, old, 14)
}

/// The same, but no file moves.
pub(crate) fn mutated_in_place(rng: &mut StdRng, old: &Tree) -> Tree {
    mutated_by(rng, old, 10)
}

fn mutated_by(rng: &mut StdRng, old: &Tree, fates: u32) -> Tree {
    let mut new = old.clone();
    for path_of in old.keys() {
        match (rng.random_range(0..fates), new[path_of].clone()) {
            (0..3, Node::File { content, mode }) => {
                let content = edited(rng, &content);
                new.insert(path_of.clone(), Node::File { content, mode });
            }
            (3, Node::File { content, mode }) => {
                let mode = mode ^ 0o111;
                new.insert(path_of.clone(), Node::File { content, mode });
            }
            (4, Node::Link { .. }) => {
                drop(new.insert(path_of.clone(), Node::Link { target: name(rng) }))
            }
            (5, _) => drop(new.insert(path_of.clone(), node(rng))),
            (6, _) => drop(new.remove(path_of)),
            (12 | 13, Node::File { content, mode }) => {
                let content = if rng.random_bool(0.5) {
                    edited(rng, &content)
                } else {
                    content
                };
                new.remove(path_of);
                insert(&mut new, path(rng), Node::File { content, mode });
            }
            _ => {}
        }
    }
    for _ in 0..rng.random_range(0..3) {
        let (path, node) = (path(rng), node(rng));
        insert(&mut new, path, node);
    }
    new
}

fn make_dirs(root: &Path, path: &Path) {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(root.join(path))
        .unwrap();
}

pub(crate) fn put(root: &Path, path: &[u8], node: &Node) {
    let full = at(root, path);
    make_dirs(root, full.parent().unwrap());
    match node {
        Node::File { content, mode } => {
            fs::write(&full, content).unwrap();
            fs::set_permissions(&full, fs::Permissions::from_mode(*mode)).unwrap();
        }
        Node::Link { target } => symlink(OsStr::from_bytes(target), &full).unwrap(),
    }
}

pub(crate) fn write(root: &Path, tree: &Tree) {
    fs::create_dir_all(root).unwrap();
    for (path, node) in tree {
        put(root, path, node);
    }
}

pub(crate) fn whiteout(path: &Path) {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

pub(crate) fn opaque(path: &Path) {
    setxattr(path, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
}

/// Writes what an overlay over `old` would hold after it became `new`; whole directories now and then by an opaque one.
pub(crate) fn write_upper(rng: &mut StdRng, root: &Path, old: &Tree, new: &Tree) {
    fs::create_dir_all(root).unwrap();
    let dirs = |tree: &Tree| -> std::collections::BTreeSet<Vec<u8>> {
        let ends = |path: &Vec<u8>| -> Vec<Vec<u8>> {
            path.iter()
                .enumerate()
                .filter(|(_, b)| **b == b'/')
                .map(|(at, _)| path[..at].to_vec())
                .collect()
        };
        tree.keys().flat_map(ends).collect()
    };
    let (old_dirs, new_dirs) = (dirs(old), dirs(new));
    let mut opaques: Vec<Vec<u8>> = Vec::new();
    for dir in new_dirs.intersection(&old_dirs) {
        if rng.random_bool(0.2) {
            make_dirs(root, &at(root, dir));
            opaque(&at(root, dir));
            opaques.push([dir.as_slice(), b"/"].concat());
        }
    }
    let hidden = |path: &[u8]| opaques.iter().any(|dir| path.starts_with(dir));
    for (path, node) in new {
        if old.get(path) != Some(node) || hidden(path) || rng.random_bool(0.1) {
            put(root, path, node);
        }
    }
    let gone_dirs = old_dirs
        .difference(&new_dirs)
        .filter(|dir| !new.contains_key(*dir));
    let gone = old
        .keys()
        .filter(|path| !new.contains_key(*path) && !new_dirs.contains(*path))
        .chain(gone_dirs);
    let mut whited: Vec<Vec<u8>> = Vec::new();
    let mut gone: Vec<&Vec<u8>> = gone.collect();
    gone.sort();
    for path in gone {
        let parent = match path.iter().rposition(|b| *b == b'/') {
            Some(end) => &path[..end],
            None => b"",
        };
        let below_file = new
            .keys()
            .any(|key| path.starts_with(&[key.as_slice(), b"/"].concat()));
        if hidden(path) || below_file || whited.iter().any(|dir| path.starts_with(dir)) {
            continue;
        }
        // A directory whose last file went is gone here, as it is for git.
        make_dirs(root, &at(root, parent));
        whiteout(&at(root, path));
        whited.push([path.as_slice(), b"/"].concat());
    }
}

/// Reads a plain directory back.
pub(crate) fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(dir) = waiting.pop() {
        for item in fs::read_dir(root.join(&dir)).unwrap() {
            let item = item.unwrap();
            let path = dir.join(item.file_name());
            let meta = item.metadata().unwrap();
            assert!(!meta.file_type().is_fifo());
            let key = path.clone().into_os_string().into_vec();
            if meta.is_dir() {
                waiting.push(path);
            } else if meta.is_symlink() {
                let target = fs::read_link(item.path())
                    .unwrap()
                    .into_os_string()
                    .into_vec();
                tree.insert(key, Node::Link { target });
            } else {
                let content = fs::read(item.path()).unwrap();
                let mode = meta.permissions().mode() & 0o777;
                tree.insert(key, Node::File { content, mode });
            }
        }
    }
    tree
}

/// Runs git away from any settings and repositories of this machine, and returns status and output.
pub(crate) fn git_status(dir: &Path, args: &[&OsStr], input: &[u8]) -> (i32, Vec<u8>, String) {
    let mut child = Command::new("git")
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("these tests need git");
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    // Git may have stopped reading.
    drop(feeder.join().unwrap());
    (
        output.status.code().unwrap_or(-1),
        output.stdout,
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

pub(crate) fn git(dir: &Path, args: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    match git_status(dir, &args, input) {
        (0, out, _) => Ok(out),
        (code, _, err) => Err(format!("git {args:?} gave {code}: {err}")),
    }
}

/// Does what a tar of actions says, as a plain extractor would that knows of deletions.
pub(crate) fn extract(stream: &[u8], root: &Path) {
    let mut archive = tar::Archive::new(stream);
    archive.set_preserve_permissions(true);
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let records = entry.pax_extensions().unwrap();
        let is_delete = |record: tar::PaxExtension<'_>| record.key_bytes() == b"DURABLE.delete";
        if records.is_some_and(|mut records| records.any(|record| is_delete(record.unwrap()))) {
            let path = at(root, &entry.path_bytes());
            match path.symlink_metadata().unwrap().is_dir() {
                true => fs::remove_dir(path).unwrap(),
                false => fs::remove_file(path).unwrap(),
            }
        } else {
            assert!(entry.unpack_in(root).unwrap());
        }
    }
}
