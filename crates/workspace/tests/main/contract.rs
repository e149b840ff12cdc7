//! The verbs, one by one, on both engines.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::{CutId, WorkspaceId};
use workspace::{Choice, Error, Keep};

use crate::picture::{assert_same, picture};
use crate::world::{World, skip, write};

#[test]
fn a_new_head_is_empty_and_has_a_name_of_its_own() {
    World::each(|world| {
        let (one, other) = (world.pool.create().unwrap(), world.pool.create().unwrap());
        assert_ne!(one, other);
        let layout = world.pool.layout(&one).unwrap();
        assert_eq!(fs::read_dir(layout.upper).unwrap().count(), 0);
        assert_eq!(fs::read_dir(layout.work).unwrap().count(), 0);
        world.no_cut(&one);
    });
}

#[test]
fn nothing_changed_is_no_cut_and_anything_changed_is_one() {
    World::each(|world| {
        let head = world.pool.create().unwrap();
        let up = world.upper(&head);
        write(up.join("a"), "one");
        world.cut(&head, "c1");
        world.no_cut(&head);
        // The same length, soon after: only the time of change tells.
        write(up.join("a"), "two");
        let c2 = world.cut(&head, "c2");
        world.no_cut(&head);
        fs::remove_file(up.join("a")).unwrap();
        world.cut(&head, "c3");
        world.no_cut(&head);
        assert_eq!(
            fs::read_to_string(world.pool.cut_path(&head, &c2).join("a")).unwrap(),
            "two"
        );
    });
}

#[test]
fn an_attribute_of_the_top_directory_is_a_change() {
    World::each(|world| {
        let head = world.pool.create().unwrap();
        let up = world.upper(&head);
        rustix::fs::setxattr(&up, "user.note", b"x", rustix::fs::XattrFlags::empty()).unwrap();
        world.cut(&head, "c1");
        world.no_cut(&head);
        rustix::fs::chmod(&up, rustix::fs::Mode::from_raw_mode(0o711)).unwrap();
        let c2 = world.cut(&head, "c2");
        assert_same(
            &picture(&up),
            &picture(&world.pool.cut_path(&head, &c2)),
            "the cut",
        );
    });
}

#[test]
fn a_write_that_only_memory_has_is_in_the_cut() {
    World::each(|world| {
        let head = world.pool.create().unwrap();
        let path = world.upper(&head).join("log");
        let mut log = File::create(&path).unwrap();
        world.cut(&head, "c0");
        let mut written = String::new();
        for round in 1..20 {
            let line = format!("line {round}\n");
            log.write_all(line.as_bytes()).unwrap();
            written += &line;
            let cut = world.cut(&head, &format!("c{round}"));
            assert_eq!(
                fs::read_to_string(world.pool.cut_path(&head, &cut).join("log")).unwrap(),
                written
            );
            world.no_cut(&head);
        }
    });
}

#[test]
fn a_cut_name_is_used_once() {
    World::each(|world| {
        let head = world.pool.create().unwrap();
        let up = world.upper(&head);
        write(up.join("a"), "one");
        let cut = world.cut(&head, "c1");
        write(up.join("a"), "two");
        assert!(matches!(
            world.pool.cut(&head, &cut),
            Err(Error::CutExists { .. })
        ));
        assert_eq!(
            fs::read_to_string(world.pool.cut_path(&head, &cut).join("a")).unwrap(),
            "one"
        );
        world.cut(&head, "c2");
    });
}

#[test]
fn a_restored_head_is_a_new_one_with_the_old_content() {
    World::each(|world| {
        let head = world.pool.create().unwrap();
        let layout = world.pool.layout(&head).unwrap();
        write(layout.upper.join("a"), "one");
        fs::create_dir(layout.work.join("work")).unwrap();
        write(layout.work.join("work/#1"), "left over");
        let c1 = world.cut(&head, "c1");
        let then = picture(&layout.upper);
        write(layout.upper.join("a"), "two");

        let back = world.pool.restore(&head, Some(&c1)).unwrap();
        assert_ne!(back, head);
        let restored = world.pool.layout(&back).unwrap();
        assert_same(&picture(&restored.upper), &then, "the restored head");
        assert_eq!(fs::read_dir(&restored.work).unwrap().count(), 0);
        world.no_cut(&back);
        write(restored.upper.join("b"), "three");
        world.cut(&back, "c2");
        assert_same(
            &picture(&world.pool.cut_path(&head, &c1)),
            &then,
            "the cut it came from",
        );
        assert_eq!(fs::read_to_string(layout.upper.join("a")).unwrap(), "two");

        let empty = world.pool.restore(&head, None).unwrap();
        assert_eq!(fs::read_dir(world.upper(&empty)).unwrap().count(), 0);
    });
}

#[test]
fn a_fork_has_everything_whatever_becomes_of_its_source() {
    World::each(|world| {
        let source = world.pool.create().unwrap();
        write(world.upper(&source).join("a"), "one");
        let cut = world.cut(&source, "c1");
        write(world.upper(&source).join("a"), "two");
        let fork = world.pool.fork(&source, &cut).unwrap();
        world.no_cut(&fork);
        world.pool.remove(&source).unwrap();
        let read = |path: std::path::PathBuf| fs::read_to_string(path.join("a")).unwrap();
        assert_eq!(read(world.upper(&fork)), "one");
        assert_eq!(read(world.pool.cut_path(&fork, &cut)), "one");
        write(world.upper(&fork).join("a"), "three");
        world.cut(&fork, "c2");
        assert_eq!(read(world.pool.cut_path(&fork, &cut)), "one");
        let again = world.pool.restore(&fork, Some(&cut)).unwrap();
        assert_eq!(read(world.upper(&again)), "one");
    });
}

#[test]
fn a_fork_that_a_crash_left_half_made_is_finished_under_its_name() {
    World::each(|world| {
        let source = world.pool.create().unwrap();
        write(world.upper(&source).join("a"), "one");
        let cut = world.cut(&source, "c1");
        let fork = workspace::new_workspace().unwrap();
        let whole = |text: &str| {
            let read = |dir: std::path::PathBuf| fs::read_to_string(dir.join("a")).unwrap();
            assert_eq!(read(world.upper(&fork)), "one", "{text}");
            assert_eq!(read(world.pool.cut_path(&fork, &cut)), "one", "{text}");
            world.no_cut(&fork);
        };
        for _ in 0..2 {
            world.pool.fork_as(&source, &cut, &fork).unwrap();
            whole("made, or made already");
        }
        world.pool.retire(&fork).unwrap();
        world.pool.fork_as(&source, &cut, &fork).unwrap();
        whole("the head was missing");
        world.pool.drop_cut(&fork, &cut).unwrap();
        world.pool.fork_as(&source, &cut, &fork).unwrap();
        whole("the cut was missing");

        let none: CutId = "none".parse().unwrap();
        let never = workspace::new_workspace().unwrap();
        let refused = world.pool.fork_as(&source, &none, &never);
        assert!(matches!(refused, Err(Error::NoCut { .. })), "{refused:?}");
        assert!(matches!(
            world.pool.layout(&never),
            Err(Error::NoHead { .. })
        ));
        world.pool.create_as(&never).unwrap();
        write(world.upper(&never).join("b"), "kept");
        world.pool.create_as(&never).unwrap();
        assert!(world.upper(&never).join("b").exists());
    });
}

#[test]
fn writers_are_stopped_for_a_cut_and_only_where_there_is_one() {
    let Some(world) = World::btrfs() else { return };
    let head = world.pool.create().unwrap();
    let (up, stops) = (world.upper(&head), AtomicU64::new(0));
    let still = || -> Box<dyn Send> {
        stops.fetch_add(1, Ordering::Relaxed);
        // Written in the last moment, by somebody who was not stopped yet.
        write(up.join("late"), "in it");
        Box::new(())
    };
    let cut = |name: &str| name.parse::<CutId>().unwrap();
    assert!(
        world
            .pool
            .cut_still(&head, &cut("c0"), &still)
            .unwrap()
            .is_none()
    );
    assert_eq!(stops.load(Ordering::Relaxed), 0, "nothing changed");
    write(up.join("a"), "one");
    let taken = world.pool.cut_still(&head, &cut("c1"), &still).unwrap();
    let late = taken.unwrap().path.join("late");
    assert_eq!(fs::read_to_string(late).unwrap(), "in it");
    assert_eq!(stops.load(Ordering::Relaxed), 1);
}

#[test]
fn a_restart_does_not_take_a_fork_for_changed() {
    for world in std::iter::once(World::copy()).chain(World::btrfs()) {
        let source = world.pool.create().unwrap();
        write(world.upper(&source).join("a"), "one");
        let cut = world.cut(&source, "c1");
        let fork = world.pool.fork(&source, &cut).unwrap();
        let world = world.reopened();
        world.no_cut(&fork);
        write(world.upper(&fork).join("a"), "two");
        let world = world.reopened();
        world.cut(&fork, "c2");
    }
}

#[test]
fn what_is_not_there_is_told_or_already_removed() {
    World::each(|world| {
        let (head, cut): (WorkspaceId, CutId) = ("nobody".parse().unwrap(), "c1".parse().unwrap());
        assert!(matches!(
            world.pool.layout(&head),
            Err(Error::NoHead { .. })
        ));
        assert!(matches!(
            world.pool.cut(&head, &cut),
            Err(Error::NoHead { .. })
        ));
        assert!(matches!(
            world.pool.restore(&head, Some(&cut)),
            Err(Error::NoCut { .. })
        ));
        world.pool.retire(&head).unwrap();
        world.pool.remove(&head).unwrap();
        world.pool.drop_cut(&head, &cut).unwrap();
    });
}

#[test]
fn removing_a_head_takes_its_cuts_and_retiring_it_leaves_them() {
    World::each(|world| {
        let heads = [world.pool.create().unwrap(), world.pool.create().unwrap()];
        for head in &heads {
            write(world.upper(head).join("a"), "one");
            world.cut(head, "c1");
        }
        let cut = "c1".parse().unwrap();
        world.pool.retire(&heads[0]).unwrap();
        world.pool.remove(&heads[1]).unwrap();
        assert!(world.pool.cut_path(&heads[0], &cut).join("a").exists());
        assert!(!world.pool.cut_path(&heads[1], &cut).exists());
        assert!(world.pool.layout(&heads[0]).is_err());
        assert!(world.pool.layout(&heads[1]).is_err());
        let back = world.pool.restore(&heads[0], Some(&cut)).unwrap();
        assert!(world.upper(&back).join("a").exists());
        let usage = world.pool.usage().unwrap();
        assert_eq!((usage.heads, usage.cuts), (1, 1));
        assert!(usage.free_bytes > 0 && usage.free_bytes <= usage.total_bytes);
    });
}

/// A cut whose journal entry failed is dropped; "nothing changed since the last cut" must not mean that one.
#[test]
fn a_dropped_cut_is_not_what_the_next_compares_with() {
    World::each(|world| {
        let head = world.pool.create().unwrap();
        write(world.upper(&head).join("a"), "one");
        let c1 = world.cut(&head, "c1");
        write(world.upper(&head).join("a"), "two");
        let c2 = world.cut(&head, "c2");
        world.pool.drop_cut(&head, &c2).unwrap();
        let c3 = world.cut(&head, "c3");
        world.pool.drop_cut(&head, &c1).unwrap();
        world.no_cut(&head);
        assert_eq!(
            fs::read_to_string(world.pool.cut_path(&head, &c3).join("a")).unwrap(),
            "two"
        );
    });
}

#[test]
fn a_restart_forgets_neither_changes_nor_that_there_are_none() {
    for world in [Some(World::copy()), World::btrfs()].into_iter().flatten() {
        let fresh = world.pool.create().unwrap();
        let dirty = world.pool.create().unwrap();
        let head = world.pool.create().unwrap();
        write(world.upper(&dirty).join("a"), "one");
        write(world.upper(&head).join("a"), "one");
        let c1 = world.cut(&head, "c1");
        let back = world.pool.restore(&head, Some(&c1)).unwrap();
        let world = world.reopened();
        world.no_cut(&fresh);
        world.no_cut(&head);
        world.no_cut(&back);
        world.cut(&dirty, "c1");
        write(world.upper(&head).join("a"), "two");
        write(world.upper(&back).join("a"), "two");
        let world = world.reopened();
        world.cut(&head, "c2");
        world.cut(&back, "c2");
    }
}

#[test]
fn gc_leaves_what_is_named_and_tells_what_is_missing() {
    World::each(|world| {
        let kept = world.pool.create().unwrap();
        let litter = world.pool.create().unwrap();
        for head in [&kept, &litter] {
            for name in ["c1", "c2"] {
                write(world.upper(head).join("a"), name);
                world.cut(head, name);
            }
        }
        let id = |name: &str| name.parse::<CutId>().unwrap();
        let (lost, gone): (WorkspaceId, WorkspaceId) =
            ("w-lost".parse().unwrap(), "w-gone".parse().unwrap());
        let keep = [
            Keep {
                workspace: kept.clone(),
                head: true,
                cuts: vec![id("c2"), id("c9")],
            },
            Keep {
                workspace: lost.clone(),
                head: true,
                cuts: vec![],
            },
            Keep {
                workspace: gone.clone(),
                head: true,
                cuts: vec![id("c1")],
            },
        ];
        let swept = world.pool.gc(&keep).unwrap();
        assert_eq!(swept.heads, std::slice::from_ref(&litter));
        let mut cuts = vec![
            (kept.clone(), id("c1")),
            (litter.clone(), id("c1")),
            (litter, id("c2")),
        ];
        cuts.sort();
        assert_eq!(swept.cuts, cuts);
        assert_eq!(swept.remade_heads, std::slice::from_ref(&lost));
        assert_eq!(swept.missing_heads, std::slice::from_ref(&gone));
        assert_eq!(
            swept.missing_cuts,
            [(gone, id("c1")), (kept.clone(), id("c9"))]
                .to_vec()
                .sorted()
        );
        assert_eq!(world.pool.usage().unwrap().cuts, 1);
        world.no_cut(&kept);
        world.no_cut(&lost);
        assert_eq!(world.pool.gc(&keep[..2]).unwrap().heads, []);
    });
}

trait Sorted {
    fn sorted(self) -> Self;
}

impl<T: Ord> Sorted for Vec<T> {
    fn sorted(mut self) -> Self {
        self.sort();
        self
    }
}

#[test]
fn sixteen_workspaces_are_cut_at_once() {
    World::each(|world| {
        let heads: Vec<_> = (0..16).map(|_| world.pool.create().unwrap()).collect();
        std::thread::scope(|scope| {
            for head in &heads {
                scope.spawn(move || {
                    let up = world.upper(head);
                    for round in 0..10 {
                        let text = format!("{head} {round}");
                        write(up.join("a"), &text);
                        let cut = world.cut(head, &format!("c{round}"));
                        assert_eq!(
                            fs::read_to_string(world.pool.cut_path(head, &cut).join("a")).unwrap(),
                            text
                        );
                        world.no_cut(head);
                    }
                });
            }
        });
        assert_eq!(world.pool.usage().unwrap().cuts, 160);
    });
}

/// Every line whose write returned before the cut was asked for is in it, and none is out of order. Only what is written
/// meanwhile may be there in part: the kernel takes a write page by page, and btrfs may have the new length before the data.
#[test]
fn a_cut_beside_a_writer_holds_all_that_was_written_before() {
    World::each(|world| {
        const LINES: u64 = 20_000;
        let head = world.pool.create().unwrap();
        let path = world.upper(&head).join("log");
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap();
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for line in 1..=LINES {
                    // One write for each line: the macro would make several.
                    log.write_all(format!("{line:08}\n").as_bytes()).unwrap();
                    written.store(line, Ordering::SeqCst);
                }
            });
            let mut round = 0;
            while written.load(Ordering::SeqCst) < LINES {
                let before = written.load(Ordering::SeqCst);
                let id: CutId = format!("c{round}").parse().unwrap();
                if world.pool.cut(&head, &id).unwrap().is_some() {
                    let text =
                        fs::read_to_string(world.pool.cut_path(&head, &id).join("log")).unwrap();
                    let (whole, begun) = text.split_at(text.rfind('\n').map_or(0, |at| at + 1));
                    for (line, number) in whole.lines().zip(1_u64..) {
                        assert_eq!(line, format!("{number:08}"), "{}", world.pool.kind());
                    }
                    let lines = whole.lines().count() as u64;
                    assert!(lines >= before, "a line that was written is not in the cut");
                    let next = format!("{:08}\n", lines + 1);
                    let begun = begun.trim_end_matches('\0');
                    assert!(next.starts_with(begun), "{begun:?} is no part of {next:?}");
                }
                round += 1;
            }
        });
        // Whatever the last cut saw, this one sees the end.
        let last: CutId = "last".parse().unwrap();
        let newest = match world.pool.cut(&head, &last).unwrap() {
            Some(cut) => fs::read_to_string(cut.path.join("log")).unwrap(),
            None => fs::read_to_string(&path).unwrap(),
        };
        assert_eq!(newest.lines().count() as u64, LINES);
        world.no_cut(&head);
    });
}

#[test]
fn a_pool_is_opened_as_the_kind_it_was_made() {
    let world = World::copy();
    let refused = workspace::open(world.dir.path(), Choice::Btrfs).err();
    assert!(
        matches!(refused, Some(Error::Unavailable { .. })),
        "{refused:?}"
    );
    assert_eq!(
        workspace::open(world.dir.path(), Choice::Auto)
            .unwrap()
            .kind(),
        "copy"
    );
    let Some(world) = World::btrfs() else {
        return skip("the other way round");
    };
    let refused = workspace::open(world.dir.path(), Choice::Copy).err();
    assert!(
        matches!(refused, Some(Error::Unavailable { .. })),
        "{refused:?}"
    );
    assert_eq!(
        workspace::open(world.dir.path(), Choice::Auto)
            .unwrap()
            .kind(),
        "btrfs"
    );
    let facts = workspace::doctor(world.dir.path());
    assert!(
        facts
            .iter()
            .any(|fact| fact.name == "pool" && fact.ok && fact.detail.starts_with("btrfs")),
        "{facts:?}"
    );
}
