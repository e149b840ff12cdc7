//! What is printed is what git prints, and git takes it.

use std::fs;
use std::path::Path;

use tree::{Extra, Options, PatchOptions, Renames, View, changes, patch};

use crate::world::{self, Node, Tree, git, plain, read, seeded};

fn printed(a: &View, b: &View, options: &Options, extra: Extra) -> Vec<u8> {
    let mut out = Vec::new();
    let options_of_print = PatchOptions {
        extra,
        ..PatchOptions::default()
    };
    for change in changes(a, b, options).unwrap() {
        patch(&change, a, b, options_of_print, &mut out).unwrap();
    }
    out
}

fn apart() -> Options {
    Options {
        renames: Renames::Apart,
        ..Options::default()
    }
}

/// What git itself prints between two trees.
fn by_git(world: &Path, args: &[&str]) -> Vec<u8> {
    git(world, &["init", "-q", "--template=", "repo"], b"").unwrap();
    let repo = world.join("repo");
    let tree_of = |name: &str| {
        let work = format!("--work-tree=../{name}");
        git(&repo, &[&work, "add", "-A"], b"").unwrap();
        let id = git(&repo, &["write-tree"], b"").unwrap();
        String::from_utf8(id).unwrap().trim().to_owned()
    };
    let (a, b) = (tree_of("a"), tree_of("b"));
    let diff = [&["diff", "--abbrev=7"], args, &[&a, &b]].concat();
    git(&repo, &diff, b"").unwrap()
}

#[test]
fn git_applies_what_is_printed() {
    for seed in 0..100 {
        let mut rng = seeded(seed);
        let old = world::tree(&mut rng);
        let new = world::mutated(&mut rng, &old);
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        world::write(&a, &old);
        world::write(&b, &new);
        let extra = if seed % 2 == 0 {
            Extra::Hidden
        } else {
            Extra::Shown
        };
        let text = printed(&plain(&a), &plain(&b), &Options::default(), extra);
        if !text.is_empty() {
            git(&a, &["apply", "--whitespace=nowarn", "-"], &text)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", String::from_utf8_lossy(&text)));
        }
        assert_eq!(
            read(&a),
            new,
            "seed {seed}:\n{}",
            String::from_utf8_lossy(&text)
        );
    }
}

#[test]
fn what_is_printed_is_what_git_prints() {
    let mut other_hunks = 0;
    for seed in 1000..1040 {
        let mut rng = seeded(seed);
        let old = world::tree(&mut rng);
        let new = world::mutated(&mut rng, &old);
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        world::write(&a, &old);
        world::write(&b, &new);
        let ours = printed(&plain(&a), &plain(&b), &apart(), Extra::Hidden);
        let gits = by_git(dir.path(), &["--no-renames"]);
        if ours == gits {
            continue;
        }
        // Among equally short diffs git may have taken another.
        let heads = |text: &[u8]| -> Vec<Vec<u8>> {
            let head =
                |line: &&[u8]| !matches!(line.first(), Some(b'@' | b' ' | b'+' | b'-' | b'\\'));
            text.split(|&b| b == b'\n')
                .filter(head)
                .map(<[u8]>::to_vec)
                .collect()
        };
        assert_eq!(heads(&ours), heads(&gits), "seed {seed}");
        other_hunks += 1;
    }
    assert!(
        other_hunks <= 2,
        "{other_hunks} of 40 have other hunks than git's"
    );
}

fn two(files: &[(&str, &str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (side, at) in [("a", 1), ("b", 2)] {
        let node = |text: &str| Node::File {
            content: text.into(),
            mode: 0o644,
        };
        let of = |file: &(&str, &str, &str)| {
            if at == 1 {
                file.1.to_owned()
            } else {
                file.2.to_owned()
            }
        };
        let tree: Tree = files
            .iter()
            .filter(|file| of(file) != "-")
            .map(|file| (file.0.as_bytes().to_vec(), node(&of(file))))
            .collect();
        world::write(&dir.path().join(side), &tree);
    }
    dir
}

#[test]
fn a_rename_with_an_edit_is_printed_as_by_git() {
    let text: String = (0..30).map(|n| format!("line {n}\n")).collect();
    let edited = text.replace("line 7\n", "line seven\n");
    let dir = two(&[
        ("src/old.rs", &text, "-"),
        ("src/new name.rs", "-", &edited),
        ("moved", "-", "same\nbytes\n"),
        ("sits", "same\nbytes\n", "-"),
    ]);
    let (a, b) = (plain(&dir.path().join("a")), plain(&dir.path().join("b")));
    let ours = printed(&a, &b, &Options::default(), Extra::Hidden);
    let gits = by_git(dir.path(), &["-M"]);
    assert_eq!(
        String::from_utf8_lossy(&ours),
        String::from_utf8_lossy(&gits)
    );
    assert!(String::from_utf8_lossy(&ours).contains("similarity index 9"));
}

#[test]
fn binary_files_are_named_and_not_printed() {
    let dir = two(&[("x", "a\0b", "a\0c"), ("y", "-", "\0"), ("z", "\0z", "-")]);
    let (a, b) = (plain(&dir.path().join("a")), plain(&dir.path().join("b")));
    let ours = printed(&a, &b, &apart(), Extra::Hidden);
    assert_eq!(ours, by_git(dir.path(), &["--no-renames"]));
    assert_eq!(
        String::from_utf8_lossy(&ours)
            .matches("Binary files ")
            .count(),
        3
    );
}

#[test]
fn a_text_that_is_too_large_is_binary() {
    let dir = tempfile::tempdir().unwrap();
    for (side, last) in [("a", "x\n"), ("b", "y\n")] {
        fs::create_dir(dir.path().join(side)).unwrap();
        let text = "0123456789abcde\n".repeat(1 << 19) + last;
        fs::write(dir.path().join(side).join("large"), text).unwrap();
    }
    let (a, b) = (plain(&dir.path().join("a")), plain(&dir.path().join("b")));
    let text = printed(&a, &b, &apart(), Extra::Hidden);
    assert!(String::from_utf8_lossy(&text).ends_with("Binary files a/large and b/large differ\n"));
}
