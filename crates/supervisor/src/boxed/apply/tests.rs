use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::*;

/// One entry: records, type, path, content.
type Told<'a> = (&'a [(&'a str, &'a str)], EntryType, &'a str, &'a str);

fn stream(entries: &[Told<'_>], is_whole: bool) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |kind, path: &str, link: &str, content: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(0o640);
        header.set_uid(rustix::process::getuid().as_raw().into());
        header.set_gid(rustix::process::getgid().as_raw().into());
        header.set_mtime(5);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_size(content.len() as u64);
        header.set_cksum();
        tar.append(&header, content).unwrap();
    };
    let words = |records: &[(&str, &str)]| {
        let mut text = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let length = (rest + 1..).find(|l| rest + l.to_string().len() == *l);
            text.extend(format!("{} {key}={value}\n", length.unwrap()).into_bytes());
        }
        text
    };
    for (records, kind, path, content) in entries {
        add(EntryType::XHeader, "PaxHeader", "", &words(records));
        match kind {
            EntryType::Link => add(*kind, path, content, b""),
            _ => add(*kind, path, "", content.as_bytes()),
        }
    }
    if is_whole {
        let end = words(&[("DURABLE.end", "1")]);
        add(EntryType::XGlobalHeader, "PaxHeader", "", &end);
    }
    tar.into_inner().unwrap()
}

fn seen(path: &Path) -> String {
    words(&rustix::fs::lstat(path).unwrap())
}

fn names(dir: &Path) -> Vec<String> {
    let name = |e: io::Result<fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn all_is_done_and_names_of_one_file_stay_one() {
    let world = tempfile::tempdir().unwrap();
    let at = |name: &str| world.path().join(name);
    fs::write(at("a"), "1").unwrap();
    fs::hard_link(at("a"), at("b")).unwrap();
    fs::create_dir(at("gone")).unwrap();
    fs::write(at("gone/x"), "x").unwrap();
    // Left by one that was killed.
    fs::create_dir_all(at(".durable-compose/0")).unwrap();
    let (a, x) = (seen(&at("a")), seen(&at("gone/x")));
    let changes = stream(
        &[
            (
                &[("DURABLE.delete", "1"), ("DURABLE.was", &x)],
                EntryType::Regular,
                "gone/x",
                "",
            ),
            (
                &[("DURABLE.delete", "1"), ("DURABLE.was", "d")],
                EntryType::Regular,
                "gone",
                "",
            ),
            (
                &[("DURABLE.was", &a), ("SCHILY.xattr.user.k", "v\nw")],
                EntryType::Regular,
                "a",
                "two",
            ),
            (&[("DURABLE.was", &a)], EntryType::Link, "b", "a"),
            (
                &[("DURABLE.was", "absent")],
                EntryType::Directory,
                "new/",
                "",
            ),
            (
                &[("DURABLE.was", "absent")],
                EntryType::Fifo,
                "new/pipe",
                "",
            ),
        ],
        true,
    );
    apply(world.path(), changes.as_slice()).unwrap();
    assert_eq!(names(world.path()), ["a", "b", "new"]);
    assert_eq!(fs::read(at("b")).unwrap(), b"two");
    let (a, b) = (
        fs::metadata(at("a")).unwrap(),
        fs::metadata(at("b")).unwrap(),
    );
    assert_eq!((a.ino(), a.mtime(), a.mode() & 0o777), (b.ino(), 5, 0o640));
    assert!(seen(&at("new/pipe")).starts_with('p'));
    assert_eq!(fs::metadata(at("new")).unwrap().mtime(), 5);
    let mut value = [0; 16];
    if let Ok(length) = rustix::fs::getxattr(at("a"), "user.k", &mut value) {
        assert_eq!(&value[..length], b"v\nw");
    }
}

#[test]
fn what_changed_or_was_cut_off_changes_nothing() {
    let world = tempfile::tempdir().unwrap();
    let at = |name: &str| world.path().join(name);
    for name in ["one", "two"] {
        fs::write(at(name), "old").unwrap();
    }
    fs::create_dir(at("dir")).unwrap();
    let (one, two) = (seen(&at("one")), seen(&at("two")));
    let delete = [("DURABLE.delete", "1"), ("DURABLE.was", one.as_str())];
    let delete_dir = [("DURABLE.delete", "1"), ("DURABLE.was", "d")];
    let put = [("DURABLE.was", two.as_str())];
    let entries: [Told<'_>; 3] = [
        (&delete_dir, EntryType::Regular, "dir", ""),
        (&delete, EntryType::Regular, "one", ""),
        (&put, EntryType::Regular, "two", "new"),
    ];
    let refused = apply(world.path(), stream(&entries, false).as_slice()).unwrap_err();
    assert!(matches!(refused, Error::Stream(..)), "{refused:?}");
    let whole = stream(&entries, true);
    for cut in [100, 1024, whole.len() - 2048] {
        assert!(apply(world.path(), &whole[..cut]).is_err(), "{cut}");
    }
    fs::write(at("dir/file"), "").unwrap();
    let refused = apply(world.path(), whole.as_slice()).unwrap_err();
    assert!(
        matches!(&refused, Error::Meanwhile(p) if p.ends_with("dir/file")),
        "{refused:?}"
    );
    fs::remove_file(at("dir/file")).unwrap();
    fs::write(at("two"), "meanwhile").unwrap();
    let refused = apply(world.path(), whole.as_slice()).unwrap_err();
    assert!(
        matches!(&refused, Error::Meanwhile(p) if p.ends_with("two")),
        "{refused:?}"
    );
    fs::remove_file(at("two")).unwrap();
    let refused = apply(world.path(), whole.as_slice()).unwrap_err();
    assert!(
        matches!(&refused, Error::Meanwhile(p) if p.ends_with("two")),
        "{refused:?}"
    );
    assert_eq!(names(world.path()), ["dir", "one"]);
}
