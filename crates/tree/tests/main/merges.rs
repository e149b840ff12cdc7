//! Texts merge as `git merge-file` says, trees as `git merge-tree` does; and each kind of conflict is told.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rand::prelude::*;
use rustix::fs::{XattrFlags, setxattr};
use tree::{
    Action, By, ConflictKind, Labels, Merge, MergeOptions, Sides, Strategy, StreamOptions, View,
    merge, write_actions,
};

use crate::world::{self, Node, Tree, extract, git, git_status, plain, read, seeded};

const LABELS: Labels<'static> = Labels {
    ours: "ours",
    base: "base",
    theirs: "theirs",
};

/// Three directories, and what a merge of them comes to.
struct World {
    dir: tempfile::TempDir,
    views: [View; 3],
}

impl World {
    fn new(trees: [&Tree; 3]) -> Self {
        let world = Self::empty();
        for (name, tree) in ["base", "ours", "theirs"].iter().zip(trees) {
            world::write(&world.at(name), tree);
        }
        world
    }

    fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let views = ["base", "ours", "theirs"].map(|name| {
            fs::create_dir(dir.path().join(name)).unwrap();
            plain(&dir.path().join(name))
        });
        Self { dir, views }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn sides(&self) -> Sides<'_> {
        Sides {
            base: &self.views[0],
            ours: &self.views[1],
            theirs: &self.views[2],
        }
    }

    fn merge(&self, strategy: Strategy, paths: &[&str]) -> Merge {
        let options = MergeOptions {
            strategy,
            paths: paths.iter().map(|path| path.as_bytes().to_vec()).collect(),
            ..MergeOptions::default()
        };
        merge(self.sides(), &options).unwrap()
    }

    /// Applies it to ours and reads that back.
    fn applied(&self, merge: &Merge) -> Tree {
        let mut stream = Vec::new();
        write_actions(merge, self.sides(), StreamOptions::default(), &mut stream).unwrap();
        extract(&stream, &self.at("ours"));
        read(&self.at("ours"))
    }

    fn kinds(&self) -> Vec<(String, ConflictKind)> {
        let merge = self.merge(Strategy::Merge, &[]);
        let kind = |conflict: &tree::Conflict| {
            (
                String::from_utf8_lossy(&conflict.path).into_owned(),
                conflict.kind,
            )
        };
        merge.conflicts.iter().map(kind).collect()
    }
}

/// Lines of few sorts, so that changes meet and can slide.
fn dull_text(rng: &mut StdRng, sorts: u32) -> Vec<u8> {
    let lines = rng.random_range(0..40);
    let mut text: Vec<u8> = (0..lines)
        .flat_map(|_| format!("{}\n", rng.random_range(0..sorts)).into_bytes())
        .collect();
    if rng.random_bool(0.2) {
        text.pop();
    }
    text
}

#[test]
fn texts_merge_as_git_merges_them() {
    let mut others = Vec::new();
    let mut clashes = 0;
    const CASES: u64 = 160;
    for seed in 0..CASES {
        let mut rng = seeded(seed);
        let base = match seed % 4 {
            0 => dull_text(&mut rng, 6),
            1 => dull_text(&mut rng, 100_000),
            _ => world::text(&mut rng),
        };
        let ours = world::edited(&mut rng, &base);
        let theirs = match rng.random_range(0..10) {
            0 => ours.clone(),
            _ => world::edited(&mut rng, &base),
        };
        let node = |content: &[u8]| {
            Tree::from([(
                b"f".to_vec(),
                Node::File {
                    content: content.to_vec(),
                    mode: 0o644,
                },
            )])
        };
        let world = World::new([&node(&base), &node(&ours), &node(&theirs)]);
        let merged = world.merge(Strategy::Merge, &[]);
        let by_git = |more: &[&str]| {
            let args = [
                "merge-file",
                "-p",
                "-L",
                "ours",
                "-L",
                "base",
                "-L",
                "theirs",
            ];
            let args = args
                .iter()
                .chain(more)
                .chain(&["ours/f", "base/f", "theirs/f"]);
            let args: Vec<&OsStr> = args.map(OsStr::new).collect();
            let (status, out, err) = git_status(world.dir.path(), &args, b"");
            assert!((0..128).contains(&status), "{err}");
            (status, out)
        };
        let (status, expected) = by_git(&[]);
        let (_, marked_by_git) = by_git(&["--diff3"]);
        let (_, ours_by_git) = by_git(&["--ours"]);
        let marked = merged
            .conflicts
            .first()
            .map(|conflict| conflict.marked(world.sides(), LABELS).unwrap().unwrap());
        clashes += u64::from(marked.is_some());
        let kept = world.merge(Strategy::Ours, &[]);
        let agrees = match &marked {
            Some(marked) => status > 0 && *marked == marked_by_git,
            None => {
                status == 0
                    && world.applied(&merged)[b"f".as_slice()]
                        == Node::File {
                            content: expected,
                            mode: 0o644,
                        }
            }
        };
        fs::write(world.at("ours/f"), &ours).unwrap();
        let kept = world.applied(&kept);
        let kept = kept[b"f".as_slice()]
            == Node::File {
                content: ours_by_git,
                mode: 0o644,
            };
        if !agrees || !kept {
            others.push(seed);
        }
    }
    assert!(
        (CASES / 10..CASES * 9 / 10).contains(&clashes),
        "{clashes} conflicts try too little"
    );
    assert!(
        others.is_empty(),
        "{} of {CASES} are not as git's: seeds {others:?}",
        others.len()
    );
}

/// What git makes of three trees; this one cannot be told to look for no renames at all. None: it finds a conflict.
fn by_git(world: &World) -> Option<Tree> {
    let root = world.dir.path();
    git(root, &["init", "-q", "--template=", "repo"], b"").unwrap();
    let repo = world.at("repo");
    let run = |args: &[&str]| {
        String::from_utf8(git(&repo, args, b"").unwrap())
            .unwrap()
            .trim()
            .to_owned()
    };
    let mut commits: Vec<String> = Vec::new();
    for name in ["base", "ours", "theirs"] {
        run(&[&format!("--work-tree=../{name}"), "add", "-A"]);
        let id = run(&["write-tree"]);
        let who = ["-c", "user.name=x", "-c", "user.email=x"];
        let parent = commits.first().cloned();
        let parent: Vec<&str> = parent.iter().flat_map(|id| ["-p", id]).collect();
        commits.push(run(
            &[&who[..], &["commit-tree", &id, "-m", "x"], &parent].concat()
        ));
    }
    let args = [
        "merge-tree",
        "--write-tree",
        "-Xfind-renames=100%",
        "-Xdiff-algorithm=myers",
        &commits[1],
        &commits[2],
    ];
    let args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
    let (status, out, err) = git_status(&repo, &args, b"");
    assert!((0..=1).contains(&status), "{err}");
    if status == 1 {
        return None;
    }
    let tree = String::from_utf8(out).unwrap().trim().to_owned();
    fs::create_dir(world.at("result")).unwrap();
    run(&["read-tree", &tree]);
    run(&["--work-tree=../result", "checkout-index", "-a"]);
    Some(read(&world.at("result")))
}

#[test]
fn trees_merge_as_git_merges_them() {
    let (mut clean, mut others) = (0, Vec::new());
    for seed in 0..25 {
        let mut rng = seeded(seed + 5000);
        let base = world::tree(&mut rng);
        let (ours, theirs) = (
            world::mutated_in_place(&mut rng, &base),
            world::mutated_in_place(&mut rng, &base),
        );
        let world = World::new([&base, &ours, &theirs]);
        let merged = world.merge(Strategy::Merge, &[]);
        let gits = by_git(&world);
        clean += usize::from(gits.is_some());
        let result = world.applied(&merged);
        for conflict in &merged.conflicts {
            assert_eq!(
                result.get(&conflict.path),
                ours.get(&conflict.path),
                "seed {seed}"
            );
        }
        if merged.conflicts.is_empty().then_some(&result) != gits.as_ref() {
            others.push(seed);
        }
    }
    assert!(
        (5..23).contains(&clean),
        "{clean} clean merges try too little"
    );
    assert!(others.is_empty(), "not as git's: seeds {others:?}");
}

#[test]
fn with_a_winner_there_is_no_conflict_and_the_result_is_a_tree() {
    for seed in 0..150 {
        let mut rng = seeded(seed + 9000);
        let base = world::tree(&mut rng);
        let (ours, theirs) = (
            world::mutated(&mut rng, &base),
            world::mutated(&mut rng, &base),
        );
        for strategy in [Strategy::Ours, Strategy::Theirs] {
            let world = World::new([&base, &ours, &theirs]);
            let merged = world.merge(strategy, &[]);
            assert!(merged.conflicts.is_empty());
            let result = world.applied(&merged);
            for path in base.keys().chain(ours.keys()).chain(theirs.keys()) {
                let (b, o, t) = (base.get(path), ours.get(path), theirs.get(path));
                let touched = merged
                    .resolved
                    .iter()
                    .any(|conflict| path.starts_with(&conflict.path));
                if o == b && !touched {
                    assert_eq!(
                        result.get(path),
                        t,
                        "seed {seed} {strategy:?} {}",
                        path.escape_ascii()
                    );
                }
                if t == b && !touched {
                    assert_eq!(
                        result.get(path),
                        o,
                        "seed {seed} {strategy:?} {}",
                        path.escape_ascii()
                    );
                }
            }
        }
    }
}

#[test]
fn without_changes_of_ours_the_result_is_theirs() {
    for seed in 0..100 {
        let mut rng = seeded(seed + 7000);
        let base = world::tree(&mut rng);
        let theirs = world::mutated(&mut rng, &base);
        let world = World::new([&base, &base, &theirs]);
        let merged = world.merge(Strategy::Merge, &[]);
        assert!(
            merged.conflicts.is_empty(),
            "seed {seed}: {:?}",
            merged.conflicts
        );
        assert_eq!(world.applied(&merged), theirs, "seed {seed}");
        let world = World::new([&base, &theirs, &base]);
        assert!(
            world.merge(Strategy::Merge, &[]).actions.is_empty(),
            "seed {seed}"
        );
    }
}

fn put(world: &World, path: &str, content: &str) {
    let path = world.at(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// The same on all three sides.
fn everywhere(world: &World, path: &str, content: &str) {
    for side in ["base", "ours", "theirs"] {
        put(world, &format!("{side}/{path}"), content);
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn each_kind_of_conflict_is_told() {
    let world = World::empty();
    for path in [
        "text", "bytes", "gone", "kept", "type", "mode", "xattr", "dir/in",
    ] {
        everywhere(&world, path, "one\ntwo\nthree\n");
    }
    for (side, text) in [("ours", "a"), ("theirs", "b")] {
        put(
            &world,
            &format!("{side}/text"),
            &format!("one\n{text}\nthree\n"),
        );
        put(&world, &format!("{side}/bytes"), &format!("{text}\0"));
        setxattr(
            world.at(&format!("{side}/xattr")),
            "user.x",
            text.as_bytes(),
            XattrFlags::empty(),
        )
        .unwrap();
    }
    fs::remove_file(world.at("ours/gone")).unwrap();
    put(&world, "theirs/gone", "changed");
    put(&world, "ours/kept", "changed");
    fs::remove_file(world.at("theirs/kept")).unwrap();
    put(&world, "ours/type", "changed");
    fs::remove_file(world.at("theirs/type")).unwrap();
    symlink("text", world.at("theirs/type")).unwrap();
    chmod(&world.at("ours/mode"), 0o600);
    chmod(&world.at("theirs/mode"), 0o755);
    // Ours has a new file in a directory that is a file in theirs.
    put(&world, "ours/dir/new", "n");
    fs::remove_dir_all(world.at("theirs/dir")).unwrap();
    put(&world, "theirs/dir", "file");
    let expected = [
        ("bytes", ConflictKind::BinaryBothModified),
        ("dir", ConflictKind::DirectoryFile),
        ("gone", ConflictKind::ModifiedDeleted { deleted: By::Ours }),
        (
            "kept",
            ConflictKind::ModifiedDeleted {
                deleted: By::Theirs,
            },
        ),
        ("mode", ConflictKind::ModeBothChanged),
        ("text", ConflictKind::BothModified),
        ("type", ConflictKind::TypeChange),
        ("xattr", ConflictKind::XattrBothChanged),
    ];
    assert_eq!(
        world.kinds(),
        expected.map(|(path, kind)| (path.to_owned(), kind))
    );
    let merged = world.merge(Strategy::Merge, &[]);
    assert!(merged.actions.is_empty(), "{:?}", merged.actions);
    let text = merged.conflicts[5]
        .marked(world.sides(), LABELS)
        .unwrap()
        .unwrap();
    let expected = "one\n<<<<<<< ours\na\n||||||| base\ntwo\n=======\nb\n>>>>>>> theirs\nthree\n";
    assert_eq!(String::from_utf8(text).unwrap(), expected);
    let theirs = read(&world.at("theirs"));
    assert_eq!(world.applied(&world.merge(Strategy::Theirs, &[])), theirs);
}

#[test]
fn a_file_of_ours_is_no_directory_of_theirs() {
    let world = World::empty();
    everywhere(&world, "d/x", "x");
    fs::remove_dir_all(world.at("ours/d")).unwrap();
    put(&world, "ours/d", "a file");
    put(&world, "theirs/d/y", "y");
    assert_eq!(
        world.kinds(),
        [("d".to_owned(), ConflictKind::DirectoryFile)]
    );
    assert!(world.merge(Strategy::Ours, &[]).actions.is_empty());
    let result = world.applied(&world.merge(Strategy::Theirs, &[]));
    assert_eq!(result.into_keys().collect::<Vec<_>>(), [b"d/y"]);
}

#[test]
fn what_both_sides_need_of_a_directory_is_kept() {
    let world = World::empty();
    everywhere(&world, "d/x", "x");
    everywhere(&world, "e/x", "x");
    // Theirs deletes `d`, where ours has something new; ours deletes `e`, where theirs has something new.
    fs::remove_dir_all(world.at("theirs/d")).unwrap();
    put(&world, "ours/d/new", "n");
    fs::remove_dir_all(world.at("ours/e")).unwrap();
    put(&world, "theirs/e/new", "n");
    let merged = world.merge(Strategy::Merge, &[]);
    assert!(merged.conflicts.is_empty());
    let keys: BTreeSet<_> = world.applied(&merged).into_keys().collect();
    assert_eq!(keys, BTreeSet::from([b"d/new".to_vec(), b"e/new".to_vec()]));
}

#[test]
fn a_mode_of_theirs_and_a_text_of_ours_go_together() {
    let world = World::empty();
    everywhere(&world, "f", "one\n");
    put(&world, "ours/f", "two\n");
    chmod(&world.at("theirs/f"), 0o755);
    let merged = world.merge(Strategy::Merge, &[]);
    assert!(merged.conflicts.is_empty());
    let expected = Node::File {
        content: b"two\n".to_vec(),
        mode: 0o755,
    };
    assert_eq!(world.applied(&merged)[b"f".as_slice()], expected);
}

#[test]
fn only_the_paths_that_were_asked_for_are_taken() {
    let world = World::empty();
    for path in ["src/a.rs", "src/b.txt", "other/c.rs"] {
        put(&world, &format!("theirs/{path}"), "new");
    }
    let paths = |patterns: &[&str]| -> Vec<String> {
        let merged = world.merge(Strategy::Merge, patterns);
        let puts = merged
            .actions
            .iter()
            .filter(|action| !matches!(action, Action::Delete { .. }));
        puts.map(|action| String::from_utf8_lossy(action.path()).into_owned())
            .collect()
    };
    assert_eq!(paths(&["src"]), ["src", "src/a.rs", "src/b.txt"]);
    assert_eq!(paths(&["*.rs"]), ["other", "other/c.rs", "src", "src/a.rs"]);
    assert_eq!(paths(&["src/b.txt"]), ["src", "src/b.txt"]);
}

#[test]
fn overlays_over_one_image_merge_as_whole_trees_do() {
    for seed in 0..25 {
        let mut rng = seeded(seed + 11_000);
        let base = world::tree(&mut rng);
        let (ours, theirs) = (
            world::mutated(&mut rng, &base),
            world::mutated(&mut rng, &base),
        );
        let world = World::new([&base, &ours, &theirs]);
        world::write_upper(&mut rng, &world.at("one"), &base, &ours);
        world::write_upper(&mut rng, &world.at("two"), &base, &theirs);
        let image = world.at("base");
        let sides = Sides {
            base: &world::lower_only(&image),
            ours: &world::over(&world.at("one"), &image),
            theirs: &world::over(&world.at("two"), &image),
        };
        let merged = merge(sides, &MergeOptions::default()).unwrap();
        let oracle = world.merge(Strategy::Merge, &[]);
        let gist = |merged: &Merge| {
            let conflicts = merged.conflicts.iter();
            let conflicts: Vec<_> = conflicts
                .map(|conflict| (conflict.path.clone(), conflict.kind))
                .collect();
            let actions = merged
                .actions
                .iter()
                .filter(|action| !action.path().is_empty());
            let actions: Vec<_> = actions
                .map(|action| (std::mem::discriminant(action), action.path().to_vec()))
                .collect();
            (actions, conflicts)
        };
        assert_eq!(gist(&merged), gist(&oracle), "seed {seed}");
        let mut stream = Vec::new();
        write_actions(&merged, sides, StreamOptions::default(), &mut stream).unwrap();
        world::write(&world.at("x"), &ours);
        extract(&stream, &world.at("x"));
        assert_eq!(read(&world.at("x")), world.applied(&oracle), "seed {seed}");
    }
}
