//! Layers of an attacker. Each `unpack` sees that the tree outside is as it was.

use std::os::unix::fs::MetadataExt as _;

use image::{Error, Kind, LayerError};
use serde_json::json;

use crate::images::{Image, Packing, pack};
use crate::layers::{Entry, Layer};
use crate::world::{World, tree};

#[test]
fn a_name_that_leads_upwards_is_refused() {
    for name in [
        "../outside/secret",
        "a/../../x",
        "a/..",
        "..",
        "./../x",
        "/../x",
    ] {
        let world = World::new();
        let why = world.refusal([Layer::new().dir("a").file(name, "evil").done()]);
        assert!(why.contains("its name leads upwards"), "{name}: {why}");
    }
}

#[test]
fn an_absolute_name_stays_within_the_root() {
    let world = World::new();
    let evil = world.outside().join("secret");
    let tree = world.union([Layer::new()
        .file(evil.to_str().unwrap(), "evil")
        .file("//etc//x", "y")
        .done()]);
    let inside = evil.to_str().unwrap().trim_start_matches('/');
    assert_eq!(tree[inside.as_bytes()].data, b"evil");
    assert_eq!(tree[b"etc/x".as_slice()].data, b"y");
}

#[test]
fn nothing_is_written_through_a_symlink() {
    let world = World::new();
    let secret = world.outside().join("secret");
    let secret = secret.to_str().unwrap();
    let layer = Layer::new()
        .symlink("x", secret)
        .file("x", "evil")
        .symlink("y", "../../../../../../outside/secret");
    let tree = world.union([layer.done(), Layer::new().file("y", "evil").done()]);
    assert_eq!(
        (tree[b"x".as_slice()].kind, tree[b"y".as_slice()].kind),
        ('f', 'f')
    );
}

#[test]
fn a_symlinked_parent_leads_where_it_would_lead_inside() {
    let world = World::new();
    let outside = world.outside();
    let up = format!("{}outside", "../".repeat(40));
    let one = Layer::new()
        .symlink("abs", outside.to_str().unwrap())
        .symlink("up", &up)
        .symlink("lib", "usr/lib");
    let two = Layer::new()
        .dir("usr/lib")
        .file("abs/new", "a")
        .file("up/secret", "b")
        .file("lib/c/d", "c");
    let tree = world.union([one.done(), two.done()]);
    let inside = outside.join("new");
    assert_eq!(
        tree[inside.to_str().unwrap().trim_start_matches('/').as_bytes()].data,
        b"a"
    );
    assert_eq!(tree[b"outside/secret".as_slice()].data, b"b");
    assert_eq!(tree[b"usr/lib/c/d".as_slice()].data, b"c");
    assert_eq!(tree[b"lib".as_slice()].kind, 'l');
}

#[test]
fn a_symlink_swapped_in_for_a_directory_is_seen() {
    let world = World::new();
    let outside = world.outside();
    // The parent was just used, and is then another thing.
    let layer = Layer::new()
        .dir("d")
        .file("d/a", "1")
        .symlink("d", outside.to_str().unwrap())
        .file("d/b", "2");
    let tree = world.union([layer.done()]);
    assert!(!tree.contains_key(b"d/a".as_slice()) && tree[b"d".as_slice()].kind == 'l');
}

#[test]
fn a_loop_of_symlinks_is_refused() {
    let world = World::new();
    let why = world.refusal([Layer::new()
        .symlink("a", "b")
        .symlink("b", "a")
        .file("a/x", "")
        .done()]);
    assert!(why.contains("loop of symbolic links"), "{why}");
    let why = world.refusal([Layer::new().symlink("a", "a/a/a/a").file("a/x", "").done()]);
    assert!(why.contains("loop of symbolic links"), "{why}");
}

#[test]
fn a_hard_link_cannot_reach_out() {
    let world = World::new();
    let secret = world.outside().join("secret");
    let secret = secret.to_str().unwrap();
    for (target, reason) in [
        (secret, "hard link to nothing"),
        ("../outside/secret", "leads upwards"),
        ("", "hard link to nothing"),
        ("..", "leads upwards"),
        ("/", "hard link to nothing"),
    ] {
        let why = world.refusal([Layer::new().hard_link("x", target).done()]);
        assert!(why.contains(reason), "{target}: {why}");
    }
    let why = world.refusal([Layer::new()
        .symlink("d", world.outside().to_str().unwrap())
        .hard_link("x", "d/secret")
        .done()]);
    assert!(why.contains("hard link to nothing"), "{why}");
}

#[test]
fn a_hard_link_to_a_symlink_links_the_symlink() {
    let world = World::new();
    let secret = world.outside().join("secret");
    let layer = Layer::new()
        .symlink("s", secret.to_str().unwrap())
        .hard_link("h", "s")
        .file("h", "evil");
    let found = world.union([layer.done()]);
    assert_eq!(
        (found[b"s".as_slice()].kind, found[b"h".as_slice()].kind),
        ('l', 'f')
    );
}

#[test]
fn a_hard_link_to_a_directory_or_to_itself_does_no_harm() {
    let world = World::new();
    let why = world.refusal([Layer::new().dir("d").hard_link("x", "d").done()]);
    assert!(why.contains("hard link to a directory"), "{why}");
    let why = world.refusal([Layer::new().file("d/x", "1").hard_link("d", "d/x").done()]);
    assert!(why.contains("hard link to nothing"), "{why}");
    let tree = world.union([Layer::new().file("x", "1").hard_link("x", "x").done()]);
    assert_eq!(tree[b"x".as_slice()].data, b"1");
}

#[test]
fn a_file_that_shares_its_data_with_a_lower_one_does_not_change_it() {
    let world = World::new();
    let one = Layer::new().file("a", "lower");
    let two = Layer::new().hard_link("b", "a").file("b", "upper");
    let tree = world.union([one.done(), two.done()]);
    assert_eq!(
        (
            &tree[b"a".as_slice()].data[..],
            &tree[b"b".as_slice()].data[..]
        ),
        (&b"lower"[..], &b"upper"[..])
    );
}

#[test]
fn a_whiteout_of_no_possible_name_is_refused() {
    for name in [".wh.", ".wh..", ".wh...", "a/.wh...", "a/.wh.b/c"] {
        let world = World::new();
        let why = world.refusal([
            Layer::new().dir("a").done(),
            Layer::new().file(name, "").done(),
        ]);
        assert!(why.contains("whiteout"), "{name}: {why}");
    }
}

#[test]
fn a_whiteout_through_a_symlink_stays_inside() {
    let world = World::new();
    let one = Layer::new()
        .symlink("out", world.outside().to_str().unwrap())
        .dir("real")
        .file("real/x", "")
        .symlink("in", "/real");
    let two = Layer::new()
        .file("out/.wh.secret", "")
        .file("out/.wh..wh..opq", "")
        .file("in/.wh.x", "");
    let tree = world.union([one.done(), two.done()]);
    assert!(tree.contains_key(b"real".as_slice()) && !tree.contains_key(b"real/x".as_slice()));
}

#[test]
fn the_root_directory_cannot_be_replaced() {
    for (name, flag) in [("./", b'2'), (".", b'0'), ("/", b'6'), ("", b'1')] {
        let world = World::new();
        let why = world.refusal([Layer::new()
            .entry(Entry::new(name, flag).link("/outside"))
            .done()]);
        assert!(why.contains("replace the root directory"), "{name}: {why}");
    }
}

#[test]
fn device_nodes_are_left_out_with_a_note() {
    let world = World::new();
    // Of the two, the second would be a whiteout to an overlay.
    let layer = Layer::new()
        .entry(Entry::new("dev/sda", b'4'))
        .entry(Entry::new("hole", b'3'))
        .file("x", "");
    let pulled = world
        .layers([Layer::new().file("hole", "lower").done(), layer.done()])
        .unwrap();
    assert_eq!(
        tree(&pulled.root)
            .keys()
            .map(Vec::as_slice)
            .collect::<Vec<_>>(),
        [b"".as_slice(), b"dev", b"x"]
    );
    assert_eq!(
        pulled.notes,
        [
            "dev/sda: device node left out",
            "hole: device node left out"
        ]
    );
}

#[test]
fn an_overlays_own_attributes_are_left_out() {
    let world = World::new();
    let entry = |flag, name| {
        Entry::new(name, flag)
            .pax("SCHILY.xattr.trusted.overlay.opaque", "y")
            .pax("SCHILY.xattr.user.overlay.opaque", "y")
            .pax("SCHILY.xattr.trusted.overlay.redirect", "/etc")
            .pax("SCHILY.xattr.security.selinux", "x")
            .pax("SCHILY.xattr.user.fine", "kept")
    };
    let pulled = world
        .layers([Layer::new()
            .entry(entry(b'5', "d"))
            .entry(entry(b'0', "f"))
            .done()])
        .unwrap();
    let tree = tree(&pulled.root);
    for name in [b"d", b"f"] {
        let names: Vec<_> = tree[name.as_slice()]
            .xattrs
            .keys()
            .filter(|n| !n.starts_with(b"system."))
            .cloned()
            .collect();
        assert_eq!(names, [b"user.fine".to_vec()]);
    }
    assert_eq!(pulled.notes.len(), 8);
}

#[test]
fn what_a_path_costs_is_limited() {
    let world = World::new();
    let deep = "d/".repeat(100_000);
    let why = world.refusal([Layer::new().dir(deep).done()]);
    assert!(why.contains("max_depth, which is 256"), "{why}");
    assert!(why.len() < 600, "{} bytes of message", why.len());
    let why = world.refusal([Layer::new().dir("d/".repeat(257)).done()]);
    assert!(why.contains("max_depth"), "{why}");
    let why = world.refusal([Layer::new().file("n".repeat(256), "").done()]);
    assert!(why.contains("max_name_bytes, which is 255"), "{why}");
    let long = format!("{}x", format!("{}/", "n".repeat(200)).repeat(21));
    let why = world.refusal([Layer::new().file(long, "").done()]);
    assert!(why.contains("max_path_bytes"), "{why}");
}

#[test]
fn depth_that_is_hidden_behind_links_is_limited_too() {
    let world = World::new();
    let mut layer = Layer::new();
    let mut link = String::new();
    for n in 0..8 {
        let target = format!("{link}{}", "d/".repeat(40));
        layer = layer.symlink(format!("l{n}"), target.trim_end_matches('/'));
        link = format!("l{n}/");
    }
    let why = world.refusal([layer.file("l7/x", "").done()]);
    assert!(why.contains("max_depth"), "{why}");
}

#[test]
fn a_tree_as_deep_as_allowed_is_made_and_removed() {
    let world = World::new();
    let pulled = world
        .layers([Layer::new()
            .file(format!("{}x", "d/".repeat(255)), "")
            .done()])
        .unwrap();
    world.store().remove(&pulled.digest, |_| vec![]).unwrap();
    assert_eq!(world.staged(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn the_number_of_entries_is_limited_and_directories_on_the_way_count() {
    let mut world = World::new();
    world.options().limits.max_entries = 10;
    let why = world.refusal([Layer::new().file("1/2/3/4/5/6/7/8/9/10/11", "").done()]);
    assert!(why.contains("max_entries, which is 10"), "{why}");
}

#[test]
fn the_bytes_of_all_files_are_limited_and_holes_count() {
    let mut world = World::new();
    world.options().limits.max_unpacked_bytes = 1 << 20;
    let half = vec![1; 600 << 10];
    let why = world.refusal([
        Layer::new().file("a", &half).done(),
        Layer::new().file("a", &half).done(),
    ]);
    assert!(why.contains("max_unpacked_bytes"), "{why}");
    let hole = Entry::new("hole", b'0')
        .pax("GNU.sparse.size", "1099511627776")
        .pax("GNU.sparse.map", "");
    let hole = Entry {
        pax: hole.pax[..1].to_vec(),
        ..hole
    };
    let why = world.refusal([Layer::new().entry(hole).done()]);
    assert!(why.contains("max_unpacked_bytes"), "{why}");
}

#[test]
fn a_bomb_is_stopped_long_before_its_end() {
    for packing in [Packing::Gzip, Packing::Zstd] {
        let mut world = World::new();
        world.options().limits.free_bytes = 1 << 20;
        world.options().limits.max_ratio = 100;
        let content = Layer::new().file("zeros", vec![0; 64 << 20]).done();
        let error = world
            .unpack(&Image::with([content], packing, json!({})))
            .unwrap_err();
        let limit = matches!(
            &error,
            Error::Layer {
                source: LayerError::Limit {
                    limit: "max_ratio",
                    ..
                },
                ..
            }
        );
        assert!(limit, "{error:?}");
        assert_eq!(error.kind(), Kind::Invalid);
    }
}

#[test]
fn a_bomb_behind_the_archives_end_is_stopped_too() {
    let mut world = World::new();
    world.options().limits.free_bytes = 1 << 20;
    world.options().limits.max_ratio = 100;
    let mut content = Layer::new().file("x", "").done();
    content.resize(64 << 20, 0);
    let error = world
        .unpack(&Image::with([content], Packing::Gzip, json!({})))
        .unwrap_err();
    let limit = matches!(
        &error,
        Error::Layer {
            source: LayerError::Limit {
                limit: "max_ratio",
                ..
            },
            ..
        }
    );
    assert!(limit, "{error:?}");
}

#[test]
fn a_long_name_that_fills_the_memory_is_refused() {
    for flag in [b'L', b'K', b'x', b'g'] {
        let world = World::new();
        let mut layer = Layer::new();
        let claim = crate::layers::header(b"long", flag, 4 << 30, &Entry::new("", flag));
        layer.raw(&claim, &[b'a'; 4096]);
        let why = world.refusal([layer.unfinished()]);
        assert!(why.contains("max_extension_bytes"), "{why}");
    }
}

#[test]
fn what_ends_too_early_or_is_no_tar_is_named() {
    let world = World::new();
    let whole = Layer::new().file("x", vec![7; 3000]).done();
    for cut in [100, 600, 3000] {
        let why = world.refusal([whole[..cut].to_vec()]);
        assert!(
            why.contains("the archive ends in the middle"),
            "{cut}: {why}"
        );
    }
    let why = world.refusal([vec![b'z'; 4096]]);
    assert!(
        why.contains("malformed") || why.contains("checksum"),
        "{why}"
    );
    let mut flipped = whole;
    flipped[1] ^= 1;
    assert!(world.refusal([flipped]).contains("checksum"));
}

#[test]
fn numbers_at_the_end_of_their_range_overflow_nothing() {
    let world = World::new();
    let most = u64::MAX.to_string();
    for entry in [
        Entry::new("x", b'0').pax("size", &most),
        Entry::new("x", b'0').pax("size", "9223372036854775807"),
        Entry::new("x", b'0').pax("uid", "4294967295"),
        Entry::new("x", b'0')
            .pax("GNU.sparse.size", &most)
            .pax("GNU.sparse.map", format!("{most},1")),
        Entry::new("x", b'0')
            .pax("GNU.sparse.size", "10")
            .pax("GNU.sparse.map", "5,3,4,3"),
        Entry::new("x", b'0')
            .pax("GNU.sparse.major", "1")
            .pax("GNU.sparse.realsize", "4"),
        Entry::new("x", b'0').pax("mtime", "nonsense"),
    ] {
        let error = world
            .layers([Layer::new().entry(entry.clone()).done()])
            .unwrap_err();
        assert!(
            matches!(error.kind(), Kind::Corrupt | Kind::Invalid),
            "{:?}: {error:?}",
            entry.pax
        );
    }
    let mut binary = crate::layers::header(b"x", b'0', 0, &Entry::new("", b'0'));
    binary[124..136].fill(0xff);
    crate::layers::checksum(&mut binary);
    let mut layer = Layer::new();
    layer.raw(&binary, &[]);
    assert!(
        world
            .refusal([layer.done()])
            .contains("number is malformed")
    );
}

#[test]
fn a_zero_byte_in_a_name_is_refused() {
    let world = World::new();
    let why = world.refusal([Layer::new()
        .entry(Entry::new("x", b'0').pax("path", b"a\0b"))
        .done()]);
    assert!(why.contains("zero byte"), "{why}");
}

#[test]
fn a_name_made_for_terminals_is_escaped_in_the_message() {
    let world = World::new();
    let why = world.refusal([Layer::new().file("\x1b[2J/../x", "").done()]);
    assert!(!why.contains('\x1b'), "{why:?}");
}

#[test]
fn unknown_kinds_of_entries_are_refused() {
    let world = World::new();
    let why = world.refusal([Layer::new().entry(Entry::new("x", b'M')).done()]);
    assert!(why.contains("of a type that layers do not have"), "{why}");
}

#[test]
fn content_that_its_configuration_does_not_name_is_refused() {
    let world = World::new();
    let (good, evil) = (
        Layer::new().file("x", "good").done(),
        Layer::new().file("x", "evil").done(),
    );
    let mut image = Image::with([good], Packing::Gzip, json!({}));
    image.blobs = vec![pack(&evil, Packing::Gzip)];
    image.describe("application/vnd.oci.image.layer.v1.tar+gzip");
    let error = world.unpack(&image).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Layer {
                source: LayerError::DiffId { .. },
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(error.kind(), Kind::Corrupt);
}

#[test]
fn a_blob_of_another_content_or_length_is_named() {
    let world = World::new();
    let content = Layer::new().file("x", "good").done();
    let mut image = Image::with([content], Packing::Gzip, json!({}));
    let manifest = image.manifest.clone();
    let whole = image.blobs[0].clone();
    let file = world.path("image.tar");
    let mut try_with = |blob: Vec<u8>| {
        let name = format!("./blobs/sha256/{}", image::Digest::of(&whole).hex());
        image.manifest.clone_from(&manifest);
        image.blobs.clear();
        image.oci_archive(&file);
        let mut tar = std::fs::read(&file).unwrap();
        tar.truncate(tar.len() - 1024);
        tar.extend(Layer::new().file(name, blob).done());
        std::fs::write(&file, tar).unwrap();
        world
            .pull(&format!("oci-archive:{}", file.display()))
            .unwrap_err()
    };
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let error = try_with(flipped);
    assert!(
        matches!(
            &error,
            Error::Layer {
                source: LayerError::BlobDigest { .. },
                ..
            }
        ),
        "{error:?}"
    );
    for blob in [
        [&whole[..], b"tail"].concat(),
        whole[..whole.len() - 1].to_vec(),
    ] {
        let error = try_with(blob);
        assert!(
            matches!(
                &error,
                Error::Layer {
                    source: LayerError::BlobSize { .. },
                    ..
                }
            ),
            "{error:?}"
        );
    }
}

#[test]
fn the_store_is_closed_to_other_users_for_its_setuid_programs() {
    let world = World::new();
    let pulled = world
        .layers([Layer::new()
            .entry(Entry::new("su", b'0').mode(0o4755))
            .done()])
        .unwrap();
    assert_eq!(tree(&pulled.root)[b"su".as_slice()].mode, 0o4755);
    let mode = std::fs::metadata(world.path("data/images")).unwrap().mode();
    assert_eq!(mode & 0o077, 0);
}
