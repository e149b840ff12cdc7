//! A view shows what a mount would, and two views over one image are compared by what was written.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::fs::{CWD, Mode, OFlags, XattrFlags, mkdirat, openat, setxattr};
use tree::{Change, Kind, Options, Status, Trust, View, changes};

use crate::world::{self, Node, Tree, lower_only, opaque, over, plain, seeded, whiteout};

/// Reads a view through its own lookups.
fn seen(view: &View) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![Vec::new()];
    while let Some(dir) = waiting.pop() {
        for (name, entry) in view.list(&dir).unwrap().unwrap() {
            let path = if dir.is_empty() {
                name
            } else {
                [dir.as_slice(), b"/", &name].concat()
            };
            assert_eq!(view.lookup(&path).unwrap().as_ref(), Some(&entry));
            match entry.kind {
                Kind::Dir => waiting.push(path),
                Kind::Symlink => drop(tree.insert(
                    path,
                    Node::Link {
                        target: entry.target,
                    },
                )),
                _ => {
                    let mut content = Vec::new();
                    std::io::copy(&mut view.content(&path, &entry).unwrap(), &mut content).unwrap();
                    tree.insert(
                        path,
                        Node::File {
                            content,
                            mode: entry.mode,
                        },
                    );
                }
            }
        }
    }
    tree
}

/// What of a change does not depend on where its sides lie.
fn gist(changes: &[Change]) -> Vec<(Vec<u8>, Status, tree::What)> {
    changes
        .iter()
        .filter(|change| !change.path.is_empty())
        .map(|change| (change.path.clone(), change.status.clone(), change.what))
        .collect()
}

#[test]
fn an_upper_over_a_lower_is_the_tree_that_a_mount_shows() {
    for seed in 0..150 {
        let mut rng = seeded(seed);
        let dir = tempfile::tempdir().unwrap();
        let [image, one, two, three] =
            ["image", "one", "two", "three"].map(|name| dir.path().join(name));
        let old = world::tree(&mut rng);
        let (first, second) = (
            world::mutated(&mut rng, &old),
            world::mutated(&mut rng, &old),
        );
        world::write(&image, &old);
        world::write_upper(&mut rng, &one, &old, &first);
        world::write_upper(&mut rng, &two, &old, &second);
        assert_eq!(seen(&over(&one, &image)), first, "seed {seed}");
        assert_eq!(seen(&over(&two, &image)), second, "seed {seed}");

        let plains = [("p0", &old), ("p1", &first), ("p2", &second)].map(|(name, tree)| {
            world::write(&dir.path().join(name), tree);
            plain(&dir.path().join(name))
        });
        let views = [lower_only(&image), over(&one, &image), over(&two, &image)];
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (1, 1)] {
            let options = Options::default();
            let ours = changes(&views[from], &views[to], &options).unwrap();
            let oracle = changes(&plains[from], &plains[to], &options).unwrap();
            assert_eq!(gist(&ours), gist(&oracle), "seed {seed}, {from} to {to}");
        }
        // The same, where the lower is not known to be shared.
        world::write(&three, &old);
        let ours = changes(
            &over(&one, &image),
            &over(&two, &three),
            &Options::default(),
        )
        .unwrap();
        let oracle = changes(&plains[1], &plains[2], &Options::default()).unwrap();
        assert_eq!(gist(&ours), gist(&oracle), "seed {seed}, lowers apart");
    }
}

#[test]
fn what_neither_upper_touches_is_not_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let [image, one] = ["image", "one"].map(|name| dir.path().join(name));
    fs::create_dir_all(image.join("closed/deep")).unwrap();
    fs::create_dir(&one).unwrap();
    fs::write(one.join("new"), "x").unwrap();
    let found = changes(
        &lower_only(&image),
        &over(&one, &image),
        &Options::default(),
    )
    .unwrap();
    // Beside the top itself, which was made at another time but with the same mode and owner.
    assert_eq!(gist(&found).len(), 1);
    assert_eq!(found.last().unwrap().status, Status::Added);
}

#[test]
fn whiteouts_and_marks_of_the_overlay_are_not_seen() {
    let dir = tempfile::tempdir().unwrap();
    let [image, one] = ["image", "one"].map(|name| dir.path().join(name));
    fs::create_dir_all(image.join("d/e")).unwrap();
    for file in ["a", "b", "d/x", "d/e/y"] {
        fs::write(image.join(file), file).unwrap();
    }
    fs::create_dir_all(one.join("d")).unwrap();
    opaque(&one.join("d"));
    whiteout(&one.join("a"));
    fs::write(one.join("b"), "").unwrap();
    setxattr(
        one.join("b"),
        "user.overlay.whiteout",
        b"y",
        XattrFlags::empty(),
    )
    .unwrap();
    fs::write(one.join("c"), "").unwrap();
    setxattr(
        one.join("c"),
        "user.overlay.overlay.opaque",
        b"nested",
        XattrFlags::empty(),
    )
    .unwrap();
    let view = over(&one, &image);
    let names: Vec<_> = view
        .list(b"")
        .unwrap()
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, [b"c", b"d"]);
    assert!(view.list(b"d").unwrap().unwrap().is_empty());
    assert!(view.lookup(b"d/e/y").unwrap().is_none());
    assert!(view.lookup(b"d").unwrap().unwrap().xattrs.is_empty());
    let c = view.lookup(b"c").unwrap().unwrap();
    assert_eq!(
        c.xattrs.into_keys().collect::<Vec<_>>(),
        [b"user.overlay.opaque"]
    );
}

#[test]
fn no_link_of_a_tree_leads_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
    for root in [&tree, &outside] {
        fs::create_dir(root).unwrap();
    }
    fs::write(outside.join("secret"), "s").unwrap();
    symlink(&outside, tree.join("out")).unwrap();
    symlink(outside.join("secret"), tree.join("file")).unwrap();
    let view = plain(&tree);
    assert!(view.lookup(b"out/secret").unwrap().is_none());
    assert!(view.list(b"out").unwrap().is_none());
    assert!(view.lookup(b"../outside/secret").unwrap().is_none());
    let mut link = view.lookup(b"file").unwrap().unwrap();
    assert_eq!(link.kind, Kind::Symlink);
    link.kind = Kind::File;
    view.content(b"file", &link).unwrap_err();
    view.content(b"out/secret", &link).unwrap_err();
    view.content(b"../outside/secret", &link).unwrap_err();
}

#[test]
fn a_tree_may_be_deeper_than_a_path_is_long() {
    let dir = tempfile::tempdir().unwrap();
    let mut at = openat(
        CWD,
        dir.path(),
        OFlags::RDONLY | OFlags::DIRECTORY,
        Mode::empty(),
    )
    .unwrap();
    let name = "d".repeat(100);
    for _ in 0..1500 {
        mkdirat(&at, &name, Mode::from(0o755)).unwrap();
        at = openat(
            &at,
            &name,
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        )
        .unwrap();
    }
    let file = openat(
        &at,
        "leaf",
        OFlags::CREATE | OFlags::WRONLY,
        Mode::from(0o644),
    )
    .unwrap();
    rustix::io::write(file, b"deep").unwrap();
    let empty = tempfile::tempdir().unwrap();
    let found = changes(
        &plain(empty.path()),
        &plain(dir.path()),
        &Options::default(),
    )
    .unwrap();
    assert_eq!(gist(&found).len(), 1501);
    let leaf = found.last().unwrap();
    assert!(leaf.path.ends_with(b"/leaf"));
    assert_eq!(plain(dir.path()).lookup(&leaf.path).unwrap(), leaf.after);
    plain(dir.path())
        .content(&leaf.path, leaf.after.as_ref().unwrap())
        .unwrap();
}

#[test]
fn modes_owners_attributes_and_types_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    for root in [&a, &b] {
        fs::create_dir_all(root.join("dir")).unwrap();
        for file in ["mode", "xattr", "type", "same"] {
            fs::write(root.join(file), "content").unwrap();
        }
        symlink("one", root.join("link")).unwrap();
    }
    fs::set_permissions(b.join("mode"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(b.join("dir"), fs::Permissions::from_mode(0o700)).unwrap();
    setxattr(b.join("xattr"), "user.colour", b"red", XattrFlags::empty()).unwrap();
    fs::remove_file(b.join("type")).unwrap();
    fs::create_dir(b.join("type")).unwrap();
    fs::write(b.join("type/in"), "").unwrap();
    fs::remove_file(b.join("link")).unwrap();
    symlink("two", b.join("link")).unwrap();
    let found = changes(&plain(&a), &plain(&b), &Options::default()).unwrap();
    let told: Vec<String> = found
        .iter()
        .map(|change| {
            let what = change.what;
            let flags = [
                ("content", what.content),
                ("kind", what.kind),
                ("mode", what.mode),
                ("target", what.target),
                ("xattrs", what.xattrs),
            ];
            let flags: Vec<_> = flags
                .into_iter()
                .filter(|flag| flag.1)
                .map(|flag| flag.0)
                .collect();
            format!(
                "{} {}",
                String::from_utf8_lossy(&change.path),
                flags.join(",")
            )
        })
        .collect();
    let expected = [
        "dir mode",
        "link target",
        "mode mode",
        "type kind,mode",
        "type/in ",
        "xattr xattrs",
    ];
    assert_eq!(told, expected);

    let options = Options {
        ignore: ["type", "dir", "mode"]
            .map(|path| path.as_bytes().to_vec())
            .to_vec(),
        ..Options::default()
    };
    assert_eq!(changes(&plain(&a), &plain(&b), &options).unwrap().len(), 2);
}

#[test]
fn without_trust_a_file_with_the_same_times_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    for (root, text) in [(&a, "one"), (&b, "two")] {
        fs::create_dir(root).unwrap();
        let file = fs::File::create(root.join("file")).unwrap();
        fs::write(root.join("file"), text).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    for trust in [Trust::Nothing, Trust::InodeAndTimes] {
        let options = Options {
            trust,
            ..Options::default()
        };
        assert_eq!(changes(&plain(&a), &plain(&b), &options).unwrap().len(), 1);
    }
}
