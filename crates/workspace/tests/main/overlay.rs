//! Under a real overlay: its mount is no change, what is done through it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use protocol::WorkspaceId;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::picture::{assert_same, picture};
use crate::world::{World, is_root, skip, write};

/// An overlay over a small base; unmounted on drop, though its namespace would see to that.
struct Overlay {
    at: PathBuf,
}

impl Overlay {
    fn over(world: &World, head: &WorkspaceId) -> Self {
        let layout = world.pool.layout(head).unwrap();
        let (base, at) = (
            world.dir.path().join("base"),
            world.dir.path().join("merged"),
        );
        for dir in [&base, &at] {
            fs::create_dir_all(dir).unwrap();
        }
        fs::create_dir_all(base.join("dir")).unwrap();
        write(base.join("dir/of-the-base"), "base");
        let options = format!(
            "userxattr,lowerdir={},upperdir={},workdir={}",
            base.display(),
            layout.upper.display(),
            layout.work.display()
        );
        let options = std::ffi::CString::new(options).unwrap();
        mount(
            "overlay",
            &at,
            "overlay",
            MountFlags::NOATIME,
            options.as_c_str(),
        )
        .unwrap();
        Self { at }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        unmount(&self.at, UnmountFlags::DETACH).unwrap();
    }
}

fn each(claim: impl Fn(&World)) {
    if !is_root() {
        return skip("only root can mount an overlay here");
    }
    // Copies need no mount of their own, but the overlay does.
    workspace::private_mounts().unwrap();
    World::each(claim);
}

#[test]
fn mounting_and_reading_is_no_change() {
    each(|world| {
        let head = world.pool.create().unwrap();
        for _ in 0..2 {
            let overlay = Overlay::over(world, &head);
            world.no_cut(&head);
            assert_eq!(
                fs::read_to_string(overlay.at.join("dir/of-the-base")).unwrap(),
                "base"
            );
            assert_eq!(fs::read_dir(&overlay.at).unwrap().count(), 1);
            assert!(
                Command::new("true")
                    .current_dir(&overlay.at)
                    .status()
                    .unwrap()
                    .success()
            );
            world.no_cut(&head);
            drop(overlay);
            world.no_cut(&head);
        }
        // The same over a head that has something, cut and restored.
        let overlay = Overlay::over(world, &head);
        write(overlay.at.join("new"), "new");
        let c1 = world.cut(&head, "c1");
        drop(overlay);
        let back = world.pool.restore(&head, Some(&c1)).unwrap();
        for head in [&head, &back] {
            let overlay = Overlay::over(world, head);
            assert_eq!(fs::read_to_string(overlay.at.join("new")).unwrap(), "new");
            world.no_cut(head);
            fs::remove_file(overlay.at.join("new")).unwrap();
            world.cut(head, "c2");
            world.no_cut(head);
        }
    });
}

#[test]
fn one_change_right_after_the_mount_is_seen() {
    type Change = (&'static str, fn(&Path));
    let changes: [Change; 6] = [
        ("make", |at| write(at.join("dir/new"), "x")),
        ("remove of the base", |at| {
            fs::remove_file(at.join("dir/of-the-base")).unwrap()
        }),
        ("remove of ours", |at| {
            fs::remove_file(at.join("ours")).unwrap()
        }),
        ("rename", |at| {
            fs::rename(at.join("ours"), at.join("sruo")).unwrap()
        }),
        ("mode of the root", |at| {
            rustix::fs::chmod(at, rustix::fs::Mode::from_raw_mode(0o700)).unwrap()
        }),
        ("attribute of the root", |at| {
            rustix::fs::setxattr(at, "user.note", b"1", rustix::fs::XattrFlags::empty()).unwrap();
        }),
    ];
    each(|world| {
        for (what, change) in changes {
            let head = world.pool.create().unwrap();
            write(world.upper(&head).join("ours"), "x");
            let c1 = world.cut(&head, "c1");
            let overlay = Overlay::over(world, &head);
            change(&overlay.at);
            println!("{what}");
            let c2 = world.cut(&head, "c2");
            world.no_cut(&head);
            let (then, now) = (
                world.pool.cut_path(&head, &c1),
                world.pool.cut_path(&head, &c2),
            );
            assert_ne!(picture(&then), picture(&now), "{what}");
            assert_same(&picture(&now), &picture(&world.upper(&head)), what);
        }
    });
}

#[test]
fn a_restored_head_shows_through_an_overlay_what_was_cut() {
    each(|world| {
        let head = world.pool.create().unwrap();
        let overlay = Overlay::over(world, &head);
        // A whiteout, a directory that hides the base's, a hard link, a file copied up.
        write(overlay.at.join("dir/of-the-base"), "changed");
        fs::hard_link(
            overlay.at.join("dir/of-the-base"),
            overlay.at.join("second"),
        )
        .unwrap();
        world.cut(&head, "c0");
        fs::remove_dir_all(overlay.at.join("dir")).unwrap();
        fs::create_dir(overlay.at.join("dir")).unwrap();
        write(overlay.at.join("dir/only"), "only");
        let c1 = world.cut(&head, "c1");
        let then = picture(&overlay.at);
        fs::remove_dir_all(overlay.at.join("dir")).unwrap();
        drop(overlay);
        let back = world.pool.restore(&head, Some(&c1)).unwrap();
        let overlay = Overlay::over(world, &back);
        assert_same(&picture(&overlay.at), &then, "through the overlay");
    });
}
