//! What only the copying engine has to care about.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use workspace::Error;

use crate::crash::{self, Helper};
use crate::world::{World, is_root, skip, write};

fn ino(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

#[test]
fn unchanged_files_are_shared_between_cuts_and_never_with_the_head() {
    let world = World::copy();
    let head = world.pool.create().unwrap();
    let up = world.upper(&head);
    write(up.join("same"), "same");
    write(up.join("other"), "other");
    let cuts = [world.cut(&head, "c1"), {
        // What was written about when the first cut was made is copied once more: the second one shares.
        world.no_cut(&head);
        write(up.join("other"), "changed");
        world.cut(&head, "c2")
    }]
    .map(|cut| world.pool.cut_path(&head, &cut));
    assert_eq!(ino(cuts[0].join("same")), ino(cuts[1].join("same")));
    assert_ne!(ino(cuts[0].join("other")), ino(cuts[1].join("other")));
    assert_ne!(ino(up.join("same")), ino(cuts[1].join("same")));
    let back = world
        .pool
        .restore(&head, Some(&"c2".parse().unwrap()))
        .unwrap();
    assert_ne!(
        ino(world.upper(&back).join("same")),
        ino(cuts[1].join("same"))
    );
}

#[test]
fn holes_stay_holes() {
    let world = World::copy();
    let head = world.pool.create().unwrap();
    let file = fs::File::create(world.upper(&head).join("sparse")).unwrap();
    file.write_all_at(b"in the middle", 512 << 20).unwrap();
    file.set_len(1 << 30).unwrap();
    let cut = world.cut(&head, "c1");
    let copy = fs::metadata(world.pool.cut_path(&head, &cut).join("sparse")).unwrap();
    assert_eq!(copy.len(), 1 << 30);
    assert!(copy.blocks() * 512 < 1 << 20, "{} blocks", copy.blocks());
}

/// A store through a mapping whose page is dirty already leaves no stamp. Here it comes after the file was looked at and
/// copied, and before it is written out.
#[test]
fn a_store_right_after_the_copy_is_not_missed() {
    crash::stored_after_the_copy();
}

#[test]
fn an_unprivileged_daemon_has_a_pool_of_copies() {
    if !is_root() {
        // The whole suite runs as such a user then.
        return;
    }
    Helper::Unprivileged.run_to_end();
}

/// Runs as `nobody`, in a process of its own.
pub(crate) fn unprivileged() {
    assert!(!is_root());
    let world = World {
        pool: workspace::open(crate::crash::data_dir(), workspace::Choice::Auto).unwrap(),
        dir: crate::world::dir(),
    };
    assert_eq!(world.pool.kind(), "copy");
    let head = world.pool.create().unwrap();
    let up = world.upper(&head);
    write(up.join("a"), "one");
    let open = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        up.join("whiteout"),
        rustix::fs::FileType::CharacterDevice,
        open,
        0,
    )
    .unwrap();
    rustix::fs::setxattr(
        up.join("a"),
        "user.overlay.origin",
        b"x",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    fs::create_dir(up.join("closed")).unwrap();
    write(up.join("closed/file"), "x");
    rustix::fs::chmod(up.join("closed"), rustix::fs::Mode::from_raw_mode(0o500)).unwrap();
    let cut = world.cut(&head, "c1");
    world.no_cut(&head);
    let copy = world.pool.cut_path(&head, &cut);
    crate::picture::assert_same(
        &crate::picture::picture(&up),
        &crate::picture::picture(&copy),
        "the cut",
    );
    let back = world.pool.restore(&head, Some(&cut)).unwrap();
    assert_eq!(
        fs::read_to_string(world.upper(&back).join("a")).unwrap(),
        "one"
    );
    // A directory nobody may write to is removed all the same.
    world.pool.remove(&head).unwrap();
    assert!(!copy.exists());

    // What it cannot read it names.
    let shut = world.upper(&back).join("shut");
    write(&shut, "x");
    rustix::fs::chmod(&shut, rustix::fs::Mode::from_raw_mode(0o000)).unwrap();
    match world.pool.cut(&back, &"c1".parse().unwrap()) {
        Err(Error::Unreadable { path, mode: 0, .. }) => assert_eq!(path, shut),
        other => panic!("{other:?}"),
    }
    rustix::fs::chmod(&shut, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    world.cut(&back, "c1");
}

#[test]
fn root_would_have_run_the_unprivileged_test() {
    if !is_root() {
        skip("this is the unprivileged run");
    }
}
