//! Everything that honest layers hold arrives as it was.

use image::Kind;
use serde_json::json;

use crate::images::{Image, Packing};
use crate::layers::{Entry, Layer, checksum, header};
use crate::world::{World, is_root, tree};

#[test]
fn modes_owners_times_and_attributes_are_kept() {
    let world = World::new();
    let capability =
        b"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let layer = Layer::new()
        .entry(Entry::new("tmp/", b'5').mode(0o1777))
        .entry(
            Entry::new("tmp/su", b'0')
                .mode(0o6711)
                .owner(12, 34)
                .pax("mtime", "1234567890.5"),
        )
        .entry(
            Entry::new("tmp/ping", b'0')
                .owner(5, 6)
                .pax("SCHILY.xattr.security.capability", capability),
        )
        .entry(Entry::new("tmp/attr", b'0').pax("SCHILY.xattr.user.note", b"a=b\0c\n"))
        .entry(Entry::new("tmp/pipe", b'6').mode(0o622).owner(7, 8))
        .entry(Entry::new("tmp/link", b'2').link("su").owner(9, 10))
        .entry(
            Entry::new("big", b'0')
                .pax("uid", "3000000")
                .pax("gid", "3000001"),
        );
    let found = world.union([layer.done()]);
    let node = |name: &str| &found[name.as_bytes()];
    assert_eq!(
        (node("tmp").mode, node("tmp").mtime),
        (0o1777, 1_000_000_000)
    );
    assert_eq!(
        (node("tmp/su").mode, node("tmp/su").mtime),
        (0o6711, 1_234_567_890)
    );
    assert_eq!((node("tmp/pipe").kind, node("tmp/pipe").mode), ('p', 0o622));
    assert_eq!(
        (node("tmp/link").kind, node("tmp/link").mtime),
        ('l', 1_000_000_000)
    );
    assert_eq!(
        node("tmp/attr").xattrs[b"user.note".as_slice()],
        b"a=b\0c\n"
    );
    if !is_root() {
        return eprintln!("SKIPPED in part: only root can give files away");
    }
    assert_eq!(
        (
            node("tmp/su").owner,
            node("tmp/pipe").owner,
            node("tmp/link").owner
        ),
        ((12, 34), (7, 8), (9, 10))
    );
    assert_eq!(node("big").owner, (3_000_000, 3_000_001));
    assert_eq!(
        node("tmp/ping").xattrs[b"security.capability".as_slice()],
        capability
    );
}

#[test]
fn names_of_any_bytes_and_lengths_are_kept() {
    let world = World::new();
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(255));
    let target = "t".repeat(300);
    let mut prefixed = header(b"name", b'0', 0, &Entry::new("", b'0'));
    prefixed[345..351].copy_from_slice(b"prefix");
    checksum(&mut prefixed);
    let mut layer = Layer::new()
        .file(b"not\xff\xfeutf8", "1")
        .file(&long, "2")
        .symlink("long", &target)
        .gnu_long(b'L', b"gnu/\xffname")
        .gnu_long(b'K', target.as_bytes())
        .symlink("ignored", "ignored")
        .file("new\nline", "3");
    layer.raw(&prefixed, &[]);
    let found = world.union([layer.done()]);
    assert_eq!(found[b"not\xff\xfeutf8".as_slice()].data, b"1");
    assert_eq!(found[long.as_bytes()].data, b"2");
    assert_eq!(found[b"long".as_slice()].data, target.as_bytes());
    assert_eq!(found[b"gnu/\xffname".as_slice()].data, target.as_bytes());
    assert_eq!(found[b"new\nline".as_slice()].data, b"3");
    assert!(found.contains_key(b"prefix/name".as_slice()));
}

#[test]
fn sparse_files_of_all_four_forms_are_whole() {
    let world = World::new();
    let expected = [
        &[0; 1000][..],
        b"middle",
        &[0; 994][..],
        b"end",
        &[0; 97][..],
    ]
    .concat();
    let size = expected.len();
    // Old GNU: the map is in the header.
    let mut old = header(b"old", b'S', 9, &Entry::new("", b'S'));
    old[257..265].copy_from_slice(b"ustar  \0");
    for (at, value) in [(386, 1000), (398, 6), (410, 2000), (422, 3), (483, size)] {
        old[at..at + 11].copy_from_slice(format!("{value:011o}").as_bytes());
    }
    checksum(&mut old);
    let mut layer = Layer::new();
    layer.raw(&old, b"middleend");
    let pairs = ["1000", "6", "2000", "3"];
    let zero = Entry::new("zero", b'0')
        .data("middleend")
        .pax("GNU.sparse.size", size.to_string());
    let zero = zero
        .pax("GNU.sparse.numblocks", "2")
        .pax("GNU.sparse.offset", pairs[0])
        .pax("GNU.sparse.numbytes", pairs[1]);
    let zero = zero
        .pax("GNU.sparse.offset", pairs[2])
        .pax("GNU.sparse.numbytes", pairs[3]);
    let one = Entry::new("ignored", b'0')
        .data("middleend")
        .pax("GNU.sparse.name", "one")
        .pax("GNU.sparse.size", size.to_string());
    let one = one.pax("GNU.sparse.map", pairs.join(","));
    let mut data = b"2\n1000\n6\n2000\n3\n".to_vec();
    data.resize(512, 0);
    data.extend(b"middleend");
    let two = Entry::new("ignored", b'0')
        .data(data)
        .pax("GNU.sparse.major", "1")
        .pax("GNU.sparse.minor", "0");
    let two = two
        .pax("GNU.sparse.name", "two")
        .pax("GNU.sparse.realsize", size.to_string());
    let found = world.union([layer
        .entry(zero)
        .entry(one)
        .entry(two)
        .file("after", "x")
        .done()]);
    for name in ["old", "zero", "one", "two"] {
        assert!(found[name.as_bytes()].data == expected, "{name}");
    }
    assert_eq!(found[b"after".as_slice()].data, b"x");
}

#[test]
fn a_layer_may_be_packed_in_any_way_and_in_pieces() {
    let content = Layer::new().file("x", vec![b'x'; 300_000]).done();
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let world = World::new();
        let pulled = world
            .unpack(&Image::with([content.clone()], packing, json!({})))
            .unwrap();
        assert_eq!(
            tree(&pulled.root)[b"x".as_slice()].data.len(),
            300_000,
            "{packing:?}"
        );
        // As those do who want to find files in a layer: many members, one after the other.
        let mut image = Image::with([content.clone()], packing, json!({}));
        image.blobs[0] = content
            .chunks(70_000)
            .flat_map(|part| crate::images::pack(part, packing))
            .collect();
        image.describe("application/vnd.oci.image.layer.v1.tar+gzip");
        assert!(world.unpack(&image).unwrap().pulled, "{packing:?}");
    }
}

#[test]
fn how_to_start_it_is_read_from_its_configuration() {
    let world = World::new();
    let run = json!({
        "Entrypoint": ["/bin/tini", "--"], "Cmd": null, "Env": ["PATH=/bin", "EMPTY=", "A=b=c"], "User": "app:staff", "WorkingDir": "srv"
    });
    let pulled = world.unpack(&Image::with([], Packing::Plain, run)).unwrap();
    assert_eq!(pulled.config.entrypoint, ["/bin/tini", "--"]);
    assert_eq!(pulled.config.cmd, Vec::<String>::new());
    let env: Vec<_> = pulled
        .config
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(env, [("PATH", "/bin"), ("EMPTY", ""), ("A", "b=c")]);
    assert_eq!(
        (pulled.config.user.as_str(), pulled.config.workdir.as_str()),
        ("app:staff", "/srv")
    );
    assert!(pulled.root.is_dir());
    let error = world
        .unpack(&Image::with(
            [],
            Packing::Plain,
            json!({"Env": ["no value"]}),
        ))
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
}

#[test]
fn the_same_path_twice_in_a_layer_is_the_last_one() {
    let world = World::new();
    let layer = Layer::new()
        .file("a", "1")
        .file("a", "2")
        .dir("b")
        .file("b/x", "")
        .file("b", "now a file")
        .file("c", "")
        .dir("c")
        .file("c/y", "");
    let found = world.union([layer.done()]);
    assert_eq!(found[b"a".as_slice()].data, b"2");
    assert_eq!(found[b"b".as_slice()].data, b"now a file");
    assert_eq!(found[b"c/y".as_slice()].kind, 'f');
}
