//! What the tar of a merge says, read by the `tar` crate and by the `tar` program.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use tree::{MergeOptions, Sides, StreamOptions, Trust, entry_changed, merge, usage, write_actions};

use crate::world::{at, plain};

#[test]
fn the_tar_program_reads_it_with_hostile_names_links_attributes_and_times() {
    let dir = tempfile::tempdir().unwrap();
    let [base, theirs, result] = ["base", "theirs", "result"].map(|name| {
        fs::create_dir(dir.path().join(name)).unwrap();
        dir.path().join(name)
    });
    let long = [b'n'; 255];
    let names: [&[u8]; 5] = [b"new\nline", b"\xff\xfe raw", b"tab\t\"", &long, b"-rf"];
    for name in names {
        fs::create_dir_all(theirs.join("deep/er")).unwrap();
        fs::write(at(&theirs.join("deep/er"), name), name).unwrap();
    }
    fs::hard_link(theirs.join("deep/er/-rf"), theirs.join("twin")).unwrap();
    symlink(
        std::ffi::OsStr::from_bytes(&[b'/'; 300]),
        theirs.join("far"),
    )
    .unwrap();
    mknodat(
        CWD,
        theirs.join("pipe"),
        FileType::Fifo,
        Mode::from(0o640),
        0,
    )
    .unwrap();
    mknodat(
        CWD,
        theirs.join("socket"),
        FileType::Socket,
        Mode::from(0o640),
        0,
    )
    .unwrap();
    setxattr(
        theirs.join("twin"),
        "user.bytes",
        b"\0=\n\xff",
        XattrFlags::empty(),
    )
    .unwrap();
    let past = std::time::UNIX_EPOCH - std::time::Duration::from_millis(1500);
    fs::File::options()
        .write(true)
        .open(theirs.join("twin"))
        .unwrap()
        .set_modified(past)
        .unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        lchown(theirs.join("far"), Some(100_033), Some(100_000)).unwrap();
    } else {
        eprintln!("not root: owners are not tried");
    }
    let (base_view, theirs_view) = (plain(&base), plain(&theirs));
    let sides = Sides {
        base: &base_view,
        ours: &base_view,
        theirs: &theirs_view,
    };
    let merged = merge(sides, &MergeOptions::default()).unwrap();
    let options = StreamOptions {
        uid_offset: 100_000,
        gid_offset: 100_000,
    };
    let mut stream = Vec::new();
    write_actions(&merged, sides, options, &mut stream).unwrap();
    fs::write(dir.path().join("stream"), &stream).unwrap();

    let mut tar = Command::new("tar");
    tar.args([
        "--xattrs",
        "--xattrs-include=*",
        "-xpf",
        "stream",
        "-C",
        "result",
    ]);
    let status = tar
        .current_dir(dir.path())
        .stderr(Stdio::inherit())
        .status()
        .unwrap();
    assert!(status.success());
    for name in names {
        assert_eq!(fs::read(at(&result.join("deep/er"), name)).unwrap(), name);
    }
    let twin = fs::metadata(result.join("twin")).unwrap();
    assert_eq!(
        twin.ino(),
        fs::metadata(result.join("deep/er/-rf")).unwrap().ino()
    );
    assert_eq!((twin.mtime(), twin.mtime_nsec()), (-2, 500_000_000));
    let found = plain(&result).lookup(b"twin").unwrap().unwrap();
    assert_eq!(found.xattrs[b"user.bytes".as_slice()], b"\0=\n\xff");
    let far = plain(&result).lookup(b"far").unwrap().unwrap();
    assert_eq!(far.target, [b'/'; 300]);
    if is_root {
        assert_eq!((far.uid, far.gid), (33, 0));
    }
    assert!(plain(&result).lookup(b"pipe").unwrap().is_some());
    assert!(plain(&result).lookup(b"socket").unwrap().is_none());
}

#[test]
fn a_file_that_shrank_since_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for side in ["base", "theirs"] {
        fs::create_dir(dir.path().join(side)).unwrap();
    }
    fs::write(dir.path().join("theirs/f"), "content").unwrap();
    let (base, theirs) = (
        plain(&dir.path().join("base")),
        plain(&dir.path().join("theirs")),
    );
    let sides = Sides {
        base: &base,
        ours: &base,
        theirs: &theirs,
    };
    let merged = merge(sides, &MergeOptions::default()).unwrap();
    fs::write(dir.path().join("theirs/f"), "con").unwrap();
    let written = write_actions(&merged, sides, StreamOptions::default(), &mut Vec::new());
    assert!(
        matches!(written, Err(tree::Error::Unexpected { .. })),
        "{written:?}"
    );
}

#[test]
fn one_path_is_asked_about_alone() {
    let dir = tempfile::tempdir().unwrap();
    for side in ["a", "b"] {
        fs::create_dir_all(dir.path().join(side).join("d")).unwrap();
        fs::write(dir.path().join(side).join("d/same"), "s").unwrap();
        fs::write(dir.path().join(side).join("d/other"), side).unwrap();
    }
    fs::write(dir.path().join("b/new"), "").unwrap();
    let (a, b) = (plain(&dir.path().join("a")), plain(&dir.path().join("b")));
    let changed = |path: &str| entry_changed(&a, &b, path.as_bytes(), Trust::Nothing).unwrap();
    assert!(!changed("d/same") && !changed("d") && !changed("absent") && !changed("d/same/below"));
    assert!(changed("d/other") && changed("new"));
}

#[test]
fn usage_counts_names_and_each_content_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/f"), "12345").unwrap();
    fs::hard_link(dir.path().join("d/f"), dir.path().join("twin")).unwrap();
    symlink("f", dir.path().join("d/link")).unwrap();
    let usage = usage(&plain(dir.path())).unwrap();
    assert_eq!((usage.files, usage.bytes), (3, 5));
}
