//! The union of layers, against a model of the specification that is too plain to be wrong.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::images::{Image, Packing};
use crate::layers::{Entry, Layer};
use crate::world::{World, is_root, tree};

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    File(Vec<u8>),
    Dir,
    Symlink(String),
    Fifo,
    /// To a path of the same layer's that comes before, or of a lower one's.
    HardLink(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Put {
    what: What,
    mode: u32,
    owner: (u32, u32),
    mtime: u64,
    note: Option<u8>,
}

/// What one layer says, each path once.
#[derive(Debug, Clone, Default)]
struct Said {
    puts: BTreeMap<String, Put>,
    whiteouts: BTreeSet<String>,
    opaques: BTreeSet<String>,
    /// In which order it says so.
    shuffle: u64,
}

fn path() -> impl Strategy<Value = String> {
    // Few names, so that layers meet.
    proptest::collection::vec("[abc]", 1..4).prop_map(|names| names.join("/"))
}

fn put() -> impl Strategy<Value = Put> {
    let what = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(What::File),
        4 => Just(What::Dir),
        1 => path().prop_map(|to| What::Symlink(format!("/../{to}"))),
        1 => Just(What::Fifo),
        2 => path().prop_map(What::HardLink),
    ];
    let mode = prop_oneof![
        Just(0o755_u32),
        Just(0o600),
        Just(0o1777),
        Just(0o4711),
        Just(0o2750),
        Just(0)
    ];
    (
        what,
        mode,
        (0..4_u32, 0..4_u32),
        1..2_000_000_000_u64,
        proptest::option::of(any::<u8>()),
    )
        .prop_map(|(what, mode, owner, mtime, note)| Put {
            what,
            mode,
            owner,
            mtime,
            note,
        })
}

fn said() -> impl Strategy<Value = Said> {
    let paths = || proptest::collection::btree_set(path(), 0..3);
    (
        proptest::collection::btree_map(path(), put(), 0..10),
        paths(),
        paths(),
        any::<u64>(),
    )
        .prop_map(|(puts, whiteouts, opaques, shuffle)| Said {
            puts,
            whiteouts,
            opaques,
            shuffle,
        })
}

/// What is at a path. Links share what they link to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    /// A directory that no entry describes.
    Implied,
    Stated(Put),
}

type Union = BTreeMap<String, Node>;

fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

fn is_dir(node: Option<&Node>) -> bool {
    matches!(
        node,
        Some(
            Node::Implied
                | Node::Stated(Put {
                    what: What::Dir,
                    ..
                })
        )
    )
}

fn hide_below(union: &mut Union, path: &str) {
    let below = format!("{path}/");
    union.retain(|name, _| !name.starts_with(&below));
}

/// Takes out of a layer what would make it ambiguous: things below what is no directory in it, links in vain.
/// What leads through a lower layer's symbolic link has tests of its own.
fn honest(mut said: Said, below: &Union) -> Said {
    let is_link = |p: &str| {
        matches!(
            below.get(p),
            Some(Node::Stated(Put {
                what: What::Symlink(_),
                ..
            }))
        )
    };
    let straight = |path: &str| !parents(path).any(is_link);
    said.puts.retain(|path, put| {
        straight(path) && !matches!(&put.what, What::HardLink(to) if !straight(to))
    });
    said.whiteouts.retain(|path| straight(path));
    said.opaques.retain(|path| straight(path) && !is_link(path));
    let puts = said.puts.clone();
    said.puts.retain(|path, _| {
        parents(path).all(|p| puts.get(p).is_none_or(|put| put.what == What::Dir))
    });
    let puts = said.puts.clone();
    // A layer that both makes a link and hides something through it says nothing that can be understood.
    let own_link = |p: &str| {
        puts.get(p)
            .is_some_and(|put| matches!(put.what, What::Symlink(_)))
    };
    said.whiteouts.retain(|path| !parents(path).any(own_link));
    said.opaques
        .retain(|path| !parents(path).any(own_link) && !own_link(path));
    let exists = |to: &String| {
        let here = puts
            .get(to)
            .filter(|put| !matches!(put.what, What::Dir | What::HardLink(_)));
        let there = || below.get(to).filter(|node| !is_dir(Some(node))).is_some();
        // A lower one must still be there when the link is made, whatever else the layer does.
        let untouched = || {
            let hidden = |p: &str| said.whiteouts.contains(p) || puts.contains_key(p);
            !hidden(to) && parents(to).all(|p| !hidden(p) && !said.opaques.contains(p))
        };
        here.is_some()
            || (there()
                && untouched()
                && puts.keys().all(|p| {
                    !to.starts_with(&format!("{p}/")) && !p.starts_with(&format!("{to}/"))
                }))
    };
    said.puts.retain(|path, put| match &put.what {
        What::HardLink(to) => to != path && exists(to),
        _ => true,
    });
    said
}

/// The specification: opaque directories and whiteouts act on what is below; then the layer's own things are put on top.
fn apply(union: &mut Union, said: &Said) {
    let is_real = |union: &Union, path: &str| parents(path).all(|p| is_dir(union.get(p)));
    let lower = union.clone();
    for path in &said.whiteouts {
        if is_real(&lower, path) {
            union.remove(path);
            hide_below(union, path);
        }
    }
    for path in &said.opaques {
        if is_real(&lower, path) && is_dir(lower.get(path)) {
            hide_below(union, path);
        }
    }
    for (path, put) in &said.puts {
        for parent in parents(path) {
            if !is_dir(union.get(parent)) {
                union.insert(parent.to_owned(), Node::Implied);
            }
        }
        if put.what != What::Dir {
            hide_below(union, path);
        }
        if !matches!(put.what, What::HardLink(_)) {
            union.insert(path.clone(), Node::Stated(put.clone()));
        }
    }
    for (path, put) in &said.puts {
        if let What::HardLink(to) = &put.what {
            let target = union[to].clone();
            union.insert(path.clone(), target);
        }
    }
}

fn written(said: &Said) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut links = Vec::new();
    for (path, put) in &said.puts {
        let (flag, link, data) = match &put.what {
            What::File(data) => (b'0', "", &data[..]),
            What::Dir => (b'5', "", &[][..]),
            What::Symlink(to) => (b'2', to.as_str(), &[][..]),
            What::Fifo => (b'6', "", &[][..]),
            What::HardLink(to) => (b'1', to.as_str(), &[][..]),
        };
        let mut entry = Entry::new(path, flag)
            .mode(put.mode)
            .owner(put.owner.0, put.owner.1)
            .link(link)
            .data(data);
        entry.mtime = put.mtime;
        if let Some(note) = put
            .note
            .filter(|_| matches!(put.what, What::Dir | What::File(_)))
        {
            entry = entry.pax("SCHILY.xattr.user.note", [note]);
        }
        if flag == b'1' {
            links.push(entry)
        } else {
            entries.push(entry)
        }
    }
    for path in &said.whiteouts {
        let (parent, name) = path
            .rsplit_once('/')
            .map_or((String::new(), path.as_str()), |(p, n)| {
                (format!("{p}/"), n)
            });
        entries.push(Entry::new(format!("{parent}.wh.{name}"), b'0'));
    }
    for path in &said.opaques {
        entries.push(Entry::new(format!("{path}/.wh..wh..opq"), b'0'));
    }
    // Any order is legal, but that a link comes after what it links to.
    let mut state = said.shuffle | 1;
    for at in (1..entries.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        entries.swap(at, usize::try_from(state >> 33).unwrap() % (at + 1));
    }
    entries
        .into_iter()
        .chain(links)
        .fold(Layer::new(), Layer::entry)
        .done()
}

fn check(layers: &[Said]) -> Result<(), TestCaseError> {
    let mut union = Union::new();
    let mut tars = Vec::new();
    for said in layers {
        let said = honest(said.clone(), &union);
        apply(&mut union, &said);
        tars.push(written(&said));
    }
    let world = World::new();
    let pulled = world.unpack(&Image::with(tars, Packing::Plain, json!({})));
    let pulled = pulled.map_err(|e| TestCaseError::fail(crate::world::story(&e)))?;
    let found = tree(&pulled.root);
    let names: Vec<_> = found
        .keys()
        .skip(1)
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    prop_assert_eq!(names, union.keys().cloned().collect::<Vec<_>>());
    for (path, node) in &union {
        let there = &found[path.as_bytes()];
        let note = there
            .xattrs
            .get(b"user.note".as_slice())
            .map(|note| note[0]);
        let put = match node {
            Node::Implied => {
                prop_assert_eq!(
                    (there.kind, there.mode, note),
                    ('d', 0o755, None),
                    "{}",
                    path
                );
                continue;
            }
            Node::Stated(put) => put,
        };
        let (kind, data) = match &put.what {
            What::File(data) => ('f', data.clone()),
            What::Dir => ('d', vec![]),
            What::Symlink(to) => ('l', to.clone().into_bytes()),
            What::Fifo => ('p', vec![]),
            What::HardLink(_) => unreachable!("links were replaced by what they link to"),
        };
        prop_assert_eq!((there.kind, &there.data), (kind, &data), "{}", path);
        prop_assert_eq!(there.mtime, i64::try_from(put.mtime).unwrap(), "{}", path);
        if kind != 'l' {
            prop_assert_eq!(there.mode, put.mode, "{}", path);
        }
        if kind == 'f' || kind == 'd' {
            prop_assert_eq!(note, put.note, "{}", path);
        }
        if is_root() {
            prop_assert_eq!(there.owner, put.owner, "{}", path);
        }
    }
    Ok(())
}

#[test]
fn random_layers_are_the_models_union() {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(64);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 400,
        ..Config::default()
    };
    let layers = proptest::collection::vec(said(), 1..5);
    let mut runner = TestRunner::new(config);
    runner.run(&layers, |layers| check(&layers)).unwrap();
}

#[test]
fn a_whiteout_hides_what_is_below_and_nothing_of_its_own_layer() {
    let one = || {
        Layer::new()
            .dir("d")
            .file("d/old", "1")
            .file("f", "1")
            .file("d/both", "1")
            .done()
    };
    for order in [true, false] {
        let world = World::new();
        let put = |layer: Layer| layer.file("d/new", "2").file("f", "2").file("d/both", "2");
        let hide = |layer: Layer| layer.file(".wh.d", "").file(".wh.f", "");
        let two = if order {
            put(hide(Layer::new()))
        } else {
            hide(put(Layer::new()))
        };
        let found = world.union([one(), two.done()]);
        let names: Vec<_> = found.keys().map(Vec::as_slice).collect();
        assert_eq!(
            names,
            [b"".as_slice(), b"d", b"d/both", b"d/new", b"f"],
            "whiteout first: {order}"
        );
        assert_eq!(
            (
                &found[b"f".as_slice()].data[..],
                &found[b"d/both".as_slice()].data[..]
            ),
            (&b"2"[..], &b"2"[..])
        );
    }
}

#[test]
fn an_opaque_directory_hides_what_is_below_wherever_it_is_said() {
    let one = || {
        Layer::new()
            .dir("d")
            .file("d/old", "")
            .dir("d/sub")
            .file("d/sub/old", "")
            .done()
    };
    for order in [true, false] {
        let world = World::new();
        let opaque = |layer: Layer| layer.file("d/.wh..wh..opq", "");
        let new = |layer: Layer| layer.file("d/sub/new", "");
        let two = if order {
            new(opaque(Layer::new()))
        } else {
            opaque(new(Layer::new()))
        };
        let found = world.union([one(), two.done()]);
        let names: Vec<_> = found.keys().map(Vec::as_slice).collect();
        assert_eq!(
            names,
            [b"".as_slice(), b"d", b"d/sub", b"d/sub/new"],
            "opaque first: {order}"
        );
    }
}
