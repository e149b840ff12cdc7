//! On real btrfs snapshots, inode and times tell as much as the bytes do.
//!
//! Needs root, loop devices and btrfs-progs; without them it says so and passes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tree::{Options, Trust, changes};

use crate::world::{at, plain};

/// A mounted btrfs, gone on drop.
struct Btrfs {
    dir: tempfile::TempDir,
}

impl Btrfs {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        fs::create_dir(&at).unwrap();
        fs::File::create(&image)
            .unwrap()
            .set_len(256 << 20)
            .unwrap();
        let made = run("mkfs.btrfs", &[Path::new("-q"), &image]);
        let mounted = made && run("mount", &[Path::new("-oloop"), &image, &at]);
        mounted.then_some(Self { dir })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join("at").join(name)
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        run("umount", &[Path::new("-l"), &self.dir.path().join("at")]);
    }
}

fn run(program: &str, args: &[&Path]) -> bool {
    let status = Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn between_snapshots_inode_and_times_tell_what_bytes_tell() {
    let Some(btrfs) = Btrfs::new() else {
        eprintln!("skipped: no root, no loop device or no mkfs.btrfs");
        return;
    };
    let head = btrfs.at("head");
    let subvolume = |args: &[&Path]| {
        assert!(run(
            "btrfs",
            &[&[Path::new("-q"), Path::new("subvolume")], args].concat()
        ))
    };
    let snapshot = |name: &str| {
        subvolume(&[
            Path::new("snapshot"),
            Path::new("-r"),
            &head,
            &btrfs.at(name),
        ]);
        plain(&btrfs.at(name))
    };
    subvolume(&[Path::new("create"), &head]);
    for file in 0..50 {
        fs::write(head.join(file.to_string()), format!("content {file:03}")).unwrap();
    }
    let one = snapshot("one");
    // The same size, and the old time put back: only the ctime tells.
    let times = fs::metadata(head.join("7")).unwrap().modified().unwrap();
    fs::write(head.join("7"), "CONTENT 007").unwrap();
    fs::File::options()
        .write(true)
        .open(head.join("7"))
        .unwrap()
        .set_modified(times)
        .unwrap();
    fs::remove_file(head.join("9")).unwrap();
    let two = snapshot("two");
    let found = [Trust::Nothing, Trust::InodeAndTimes].map(|trust| {
        let options = Options {
            trust,
            ..Options::default()
        };
        let paths = changes(&one, &two, &options)
            .unwrap()
            .into_iter()
            .map(|change| change.path);
        paths.collect::<Vec<_>>()
    });
    assert_eq!(found[0], [b"7", b"9"]);
    assert_eq!(found[0], found[1]);
    // What the shortcut rests on.
    let stamps = ["one", "two"].map(|name| {
        let meta = fs::metadata(at(&btrfs.at(name), b"8")).unwrap();
        (meta.ino(), meta.ctime(), meta.ctime_nsec())
    });
    assert_eq!(stamps[0], stamps[1]);
}
