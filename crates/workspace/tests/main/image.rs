//! The loop image: half-made, full, on a full disk; and what only btrfs can have in a head.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

use protocol::CutId;
use workspace::{Error, open_with};

use crate::crash::loops_of;
use crate::picture::{assert_same, picture};
use crate::world::{World, dir, small_image, write};

#[test]
fn an_image_that_was_half_made_is_made_anew() {
    let Some(world) = World::image() else { return };
    drop(world);
    let dir = dir();
    write(dir.path().join("pool.btrfs.new"), "mkfs was killed here");
    write(dir.path().join("pool.kind.new"), "bt");
    let pool = open_with(dir.path(), &small_image()).unwrap();
    assert_eq!(pool.kind(), "btrfs");
    assert!(!dir.path().join("pool.btrfs.new").exists());
    assert_eq!(
        fs::read_to_string(dir.path().join("pool.kind")).unwrap(),
        "btrfs-image\n"
    );
}

#[test]
fn a_second_opening_shares_the_loop_device() {
    let Some(world) = World::image() else { return };
    let head = world.pool.create().unwrap();
    write(world.upper(&head).join("a"), "one");
    let again = open_with(world.dir.path(), &small_image()).unwrap();
    assert_eq!(loops_of(&world.dir.path().join("pool.btrfs")), 1);
    drop(again);
    // It was mounted before that one came, so it stays.
    assert!(world.upper(&head).join("a").exists());
}

#[test]
fn a_full_pool_is_told_and_earlier_cuts_are_whole() {
    let Some(world) = World::image() else { return };
    let head = world.pool.create().unwrap();
    let up = world.upper(&head);
    write(up.join("a"), "one");
    let c1 = world.cut(&head, "c1");
    let then = picture(&up);
    let mut file = File::create(up.join("big")).unwrap();
    let block = vec![7; 1 << 20];
    // Written out as it goes: what memory holds is refused at the write, not at the cut.
    while file
        .write_all(&block)
        .and_then(|()| file.sync_data())
        .is_ok()
    {}
    drop(file);
    // And the rest, in files that fit in metadata.
    for number in 0..100_000 {
        if fs::write(up.join(format!("small{number}")), [1; 1500]).is_err() {
            break;
        }
    }
    match world.pool.cut(&head, &"c2".parse::<CutId>().unwrap()) {
        Ok(Some(_)) | Err(Error::Full { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_same(
        &picture(&world.pool.cut_path(&head, &c1)),
        &then,
        "the cut before",
    );
    world.pool.remove(&head).unwrap();
    // Space comes back when the kernel's cleaner has run; this wakes it, and there is no event for its end.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while world.pool.usage().unwrap().free_bytes < 256 << 20 {
        assert!(
            std::time::Instant::now() < patience,
            "{:?}",
            world.pool.usage()
        );
        let synced = Command::new("btrfs")
            .args(["filesystem", "sync"])
            .arg(world.dir.path().join("pool"))
            .status();
        assert!(synced.unwrap().success());
    }
    let head = world.pool.create().unwrap();
    write(world.upper(&head).join("a"), "again");
    world.cut(&head, "c1");
}

#[test]
fn a_subvolume_inside_a_head_is_refused_and_removed_with_it() {
    let Some(world) = World::btrfs() else { return };
    let head = world.pool.create().unwrap();
    let up = world.upper(&head);
    write(up.join("a"), "one");
    fs::create_dir(up.join("dir")).unwrap();
    for path in [up.join("dir/hidden"), up.join("dir/hidden/deeper")] {
        let made = Command::new("btrfs")
            .args(["subvolume", "create"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    let c1: CutId = "c1".parse().unwrap();
    match world.pool.cut(&head, &c1) {
        Err(Error::Nested { path, .. }) => assert_eq!(path, up.join("dir/")),
        other => panic!("{other:?}"),
    }
    assert!(!world.pool.cut_path(&head, &c1).exists());
    world.pool.remove(&head).unwrap();
    assert_eq!(world.pool.usage().unwrap().heads, 0);
}

#[test]
fn a_data_directory_on_btrfs_needs_no_image() {
    World::each_on_btrfs(|world| {
        assert!(!world.dir.path().join("pool.btrfs").exists());
        let head = world.pool.create().unwrap();
        let layout = world.pool.layout(&head).unwrap();
        // Read after it was written: an access time would be a change.
        write(layout.upper.join("a"), "one");
        fs::create_dir(layout.work.join("work")).unwrap();
        let c1 = world.cut(&head, "c1");
        let then = picture(&layout.upper);
        world.no_cut(&head);
        write(layout.upper.join("a"), "two");
        world.cut(&head, "c2");
        let back = world.pool.restore(&head, Some(&c1)).unwrap();
        assert_same(&picture(&world.upper(&back)), &then, "the restored head");
        world.no_cut(&back);
        write(world.upper(&back).join("a"), "three");
        world.cut(&back, "c3");
        assert_same(&picture(&world.pool.cut_path(&head, &c1)), &then, "the cut");
        world.pool.gc(&[]).unwrap();
        assert_eq!(world.pool.usage().unwrap().heads, 0);
    });
}
