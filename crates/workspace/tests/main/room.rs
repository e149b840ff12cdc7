//! The size of the image, on a disk that others fill.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use workspace::Error;

use crate::picture::{assert_same, picture};
use crate::world::{Disk, World, take, write};

const MIB: u64 = 1 << 20;

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < patience, "{what}");
        // The thread that sizes the image tells nobody.
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn size(disk: &Disk) -> u64 {
    let image = fs::metadata(disk.path().join("pool.btrfs")).unwrap();
    assert!(image.blocks() * 512 >= image.len(), "blocks are missing");
    image.len()
}

/// Writes until there is no room; what stopped it.
fn write_all_of_it(path: &Path) -> Errno {
    let mut file = File::create(path).unwrap();
    let block = vec![7; 1 << 20];
    loop {
        if let Err(error) = file.write_all(&block).and_then(|()| file.sync_data()) {
            return Errno::from_io_error(&error).unwrap();
        }
    }
}

/// Takes what is left for names, too.
fn fill_metadata(dir: &Path) {
    let target = "x".repeat(3500);
    let mut number = 0;
    let full = loop {
        number += 1;
        if let Err(error) = std::os::unix::fs::symlink(&target, dir.join(format!("link{number}"))) {
            break error;
        }
    };
    assert_eq!(Errno::from_io_error(&full), Some(Errno::NOSPC));
    assert!(number > 100, "{number}");
}

#[test]
fn the_image_grows_ahead_of_use_and_gives_back_what_is_not_used() {
    if World::image().is_none() {
        return;
    }
    let disk = Disk::new(4 << 30);
    let pool = disk.pool(u64::MAX);
    let first = size(&disk);
    let total = pool.usage().unwrap().total_bytes;
    let head = pool.create().unwrap();
    let big = File::create(pool.layout(&head).unwrap().upper.join("big")).unwrap();
    for at in 0..30 {
        // More than the image had at first.
        let taken = || take(&big, at * 64 * MIB, 64 * MIB).is_ok();
        until("the image grows", taken);
    }
    until("the image grows ahead of use", || {
        size(&disk) > first + 1024 * MIB
    });
    let now = pool.usage().unwrap();
    assert!(
        now.total_bytes.abs_diff(total) < 64 * MIB,
        "{now:?}, {total} before"
    );
    assert!(now.free_bytes < total - 30 * 64 * MIB);
    drop(big);
    let large = size(&disk);
    pool.remove(&head).unwrap();
    drop(pool);
    let pool = disk.pool(u64::MAX);
    until("the image shrinks", || {
        let sync = Command::new("btrfs")
            .args(["filesystem", "sync"])
            .arg(disk.path().join("pool"))
            .status();
        assert!(sync.unwrap().success());
        size(&disk) < large
    });
    let head = pool.create().unwrap();
    write(pool.layout(&head).unwrap().upper.join("a"), "one");
    pool.cut(&head, &"c1".parse().unwrap()).unwrap().unwrap();
}

/// A file system on a disk that fails it stops; one that is full does not.
#[test]
fn a_disk_that_others_filled_is_a_full_pool_and_nothing_worse() {
    if World::image().is_none() {
        return;
    }
    let disk = Disk::new(600 * MIB);
    let pool = disk.pool(u64::MAX);
    let head = pool.create().unwrap();
    let up = pool.layout(&head).unwrap().upper;
    write(up.join("a"), "one");
    let c1 = pool.cut(&head, &"c1".parse().unwrap()).unwrap().unwrap();
    let then = picture(&up);
    let ballast = disk.fill();
    // There are blocks of the image left.
    write(up.join("a"), "two");
    pool.cut(&head, &"c2".parse().unwrap()).unwrap().unwrap();
    let before = size(&disk);
    assert_eq!(write_all_of_it(&up.join("big")), Errno::NOSPC);
    fill_metadata(&up);
    assert_eq!(size(&disk), before);
    let c3 = pool.cut(&head, &"c3".parse().unwrap());
    println!("the cut of a full pool: {c3:?}");
    match c3 {
        Ok(Some(_)) | Err(Error::Full { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_same(&picture(&c1.path), &then, "the cut before");
    // Going back, and giving up cuts and heads, is what a full pool is for.
    let back = pool.restore(&head, Some(&c1.id)).unwrap();
    assert_same(
        &picture(&pool.layout(&back).unwrap().upper),
        &then,
        "the restored head",
    );
    pool.drop_cut(&head, &"c2".parse().unwrap()).unwrap();
    // A daemon that starts now serves.
    drop(pool);
    let pool = disk.pool(u64::MAX);
    assert_same(&picture(&c1.path), &then, "the cut, after a restart");
    assert_same(
        &picture(&pool.layout(&back).unwrap().upper),
        &then,
        "the head, after a restart",
    );
    pool.remove(&head).unwrap();
    until("there is room again", || {
        let up = pool.layout(&back).unwrap().upper;
        fs::write(up.join("b"), vec![1; 4 << 20]).is_ok()
    });
    fs::remove_file(ballast).unwrap();
    pool.cut(&back, &"c4".parse().unwrap()).unwrap().unwrap();
}

#[test]
fn what_a_crash_left_half_grown_is_finished() {
    if World::image().is_none() {
        return;
    }
    let disk = Disk::new(2 << 30);
    let most = 512 * MIB;
    let pool = disk.pool(most);
    let before = pool.usage().unwrap().total_bytes;
    drop(pool);
    let image = File::options()
        .write(true)
        .open(disk.path().join("pool.btrfs"))
        .unwrap();
    take(&image, 512 * MIB, 64 * MIB).unwrap();
    let pool = disk.pool(most);
    assert_eq!(pool.usage().unwrap().total_bytes, before + 64 * MIB);
}

#[test]
fn an_image_of_an_earlier_version_gets_its_blocks_where_there_is_room() {
    if World::image().is_none() {
        return;
    }
    for (bytes, has_room) in [(2 << 30, true), (300 * MIB, false)] {
        let disk = Disk::new(bytes);
        let path = disk.path().join("pool.btrfs");
        File::create(&path).unwrap().set_len(1 << 30).unwrap();
        let made = Command::new("mkfs.btrfs")
            .args(["-q", "--metadata", "dup"])
            .arg(&path)
            .output();
        assert!(made.unwrap().status.success());
        fs::write(disk.path().join("pool.kind"), "btrfs-image\n").unwrap();
        let pool = disk.pool(1 << 30);
        let head = pool.create().unwrap();
        write(pool.layout(&head).unwrap().upper.join("a"), "one");
        pool.cut(&head, &"c1".parse().unwrap()).unwrap().unwrap();
        if has_room {
            size(&disk);
            continue;
        }
        // As before: told before anything breaks.
        let ballast = disk.fill();
        let held = File::options().write(true).open(&ballast).unwrap();
        // A little: the kernel commits when it likes, and what it cannot write stops it.
        held.set_len(held.metadata().unwrap().len() - 40 * MIB)
            .unwrap();
        drop(held);
        write(pool.layout(&head).unwrap().upper.join("a"), "two");
        assert!(matches!(pool.create(), Err(Error::Full { .. })));
        let c2 = "c2".parse().unwrap();
        match pool.cut(&head, &c2) {
            Err(Error::Full { .. }) => {}
            other => panic!("{other:?}"),
        }
        fs::remove_file(ballast).unwrap();
        pool.cut(&head, &c2).unwrap().unwrap();
    }
}
