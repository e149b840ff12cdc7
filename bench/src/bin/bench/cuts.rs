//! What does a cut cost in a workspace of 50,000 files, when 0, 10 and 1,000 of them changed?
//!
//! Measured alone, as the pool's verb, and from outside, as what settling an operation takes that changes so many. Held
//! against copying the tree, which is what keeping a state takes without snapshots, and against the same command in a plain
//! directory, which keeps nothing. The aim: a cut of nothing in less than a millisecond.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use bench::api::command;
use bench::{Api, Failure};
use protocol::{CutId, Image};
use workspace::{Choice, Pool};

use crate::figures::Sample;
use crate::table::{Group, Unit};
use crate::world::{World, millis};

const DIRS: usize = 500;
const FILES_PER_DIR: usize = 100;
const CHANGES: [usize; 3] = [0, 10, 1000];

pub(crate) fn run(world: &World, rounds: usize) -> Result<Vec<Group>, Failure> {
    Ok(vec![alone(world, rounds)?, settled(world, rounds)?])
}

/// Writes files `0..count` of the tree; `mark` differs from what was there.
fn write(tree: &Path, count: usize, mark: &str) -> Result<(), Failure> {
    for nth in 0..count {
        let path = tree.join(format!("d{}/f{}", nth / FILES_PER_DIR, nth % FILES_PER_DIR));
        std::fs::write(&path, mark)
            .map_err(Failure::cannot(format!("write {}", path.display())))?;
    }
    Ok(())
}

fn plant(tree: &Path) -> Result<(), Failure> {
    for nth in 0..DIRS {
        let dir = tree.join(format!("d{nth}"));
        std::fs::create_dir_all(&dir)
            .map_err(Failure::cannot(format!("make {}", dir.display())))?;
    }
    write(tree, DIRS * FILES_PER_DIR, "first\n")
}

fn alone(world: &World, rounds: usize) -> Result<Group, Failure> {
    let dir = world.dir().join("pool-alone");
    std::fs::create_dir(&dir).map_err(Failure::cannot("make a directory for a pool"))?;
    let pool = workspace::open(&dir, Choice::Auto).map_err(Failure::cannot("open a pool"))?;
    let head = pool.create().map_err(Failure::cannot("make a head"))?;
    let tree = pool
        .layout(&head)
        .map_err(Failure::cannot("find a head"))?
        .upper;
    plant(&tree)?;
    let mut taken = 0;
    let mut cut = |pool: &dyn Pool| -> Result<(Option<CutId>, f64), Failure> {
        taken += 1;
        let id: CutId = format!("c{taken}")
            .parse()
            .map_err(Failure::cannot("name a cut"))?;
        let begun = Instant::now();
        let made = pool
            .cut(&head, &id)
            .map_err(Failure::cannot("take a cut"))?;
        Ok((made.map(|cut| cut.id), millis(begun.elapsed())))
    };
    cut(pool.as_ref())?;
    let mut group = Group::new(format!(
        "a cut of 50,000 files, the pool's verb alone ({})",
        pool.kind()
    ));
    for changes in CHANGES {
        let mut sample = Sample::default();
        for round in 0..rounds {
            let mark = format!("{changes} {round}\n");
            write(&tree, changes, &mark)?;
            let (made, took) = cut(pool.as_ref())?;
            sample.push(took);
            let Some(made) = made else {
                if changes > 0 {
                    return Err(Failure::wrong("a change was cut as none"));
                }
                continue;
            };
            let path = pool.cut_path(&head, &made);
            // What came after must not show in it, nor may anything be missing.
            write(&tree, changes, "later\n")?;
            let first = std::fs::read_to_string(path.join("d0/f0"));
            let first = first.map_err(Failure::cannot("read a cut"))?;
            if changes == 0 || first != mark {
                return Err(Failure::wrong(format!(
                    "a cut of {changes} changes holds {first:?}"
                )));
            }
            cut(pool.as_ref())?;
        }
        group.line(format!("{changes} files changed"), Unit::Millis, &sample);
    }
    let copy = world.dir().join("copy");
    let mut sample = Sample::default();
    for _ in 0..3 {
        let begun = Instant::now();
        succeed(Command::new("cp").arg("-a").arg(&tree).arg(&copy))?;
        sample.push(millis(begun.elapsed()));
        std::fs::remove_dir_all(&copy).map_err(Failure::cannot("remove a copy"))?;
    }
    group.peer("cp -a of the tree, not synced", Unit::Millis, &sample);
    if let Some(nothing) = group.median(0) {
        group.at_most("a cut of nothing < 1 ms", nothing, 1.0);
    }
    pool.remove(&head)
        .map_err(Failure::cannot("remove a head"))?;
    Ok(group)
}

fn script(changes: usize, mark: &str) -> String {
    format!(
        "i=0; while [ $i -lt {changes} ]; do echo '{mark}' > d$((i/{FILES_PER_DIR}))/f$((i%{FILES_PER_DIR})); i=$((i+1)); done"
    )
}

fn settled(world: &World, rounds: usize) -> Result<Group, Failure> {
    const SANDBOX: &str = "cuts";
    let mut api = world.connect()?;
    api.create(SANDBOX, Image::Host)?;
    let make = format!(
        "d=0; while [ $d -lt {DIRS} ]; do mkdir d$d; f=0; while [ $f -lt {FILES_PER_DIR} ]; do echo first > d$d/f$f; \
         f=$((f+1)); done; d=$((d+1)); done"
    );
    exec(&mut api, SANDBOX, "plant", &make)?;
    let plain = world.dir().join("plain");
    plant(&plain)?;
    let mut group =
        Group::new("an operation that changes so many of 50,000 files, to its settlement");
    for changes in CHANGES {
        let (mut ours, mut bare) = (Sample::default(), Sample::default());
        for round in 0..rounds {
            let mark = format!("{changes} {round}");
            let script = script(changes, &mark);
            let op = format!("change-{changes}-{round}");
            let begun = Instant::now();
            let view = exec(&mut api, SANDBOX, &op, &script)?;
            ours.push(millis(begun.elapsed()));
            if view.cut.is_some() != (changes > 0) {
                return Err(Failure::wrong(format!(
                    "{changes} changes, and the cut is {:?}",
                    view.cut
                )));
            }
            let begun = Instant::now();
            succeed(Command::new("sh").args(["-c", &script]).current_dir(&plain))?;
            bare.push(millis(begun.elapsed()));
        }
        group.line(format!("{changes} files, durable"), Unit::Millis, &ours);
        group.line(
            format!("{changes} files, a plain directory"),
            Unit::Millis,
            &bare,
        );
        let (ours, bare) = (ours.figures(), bare.figures());
        if let (Some(ours), Some(bare), Some(line)) = (ours, bare, group.lines.last_mut()) {
            line.ours_to_this = Some(ours.median / bare.median);
        }
    }
    api.remove(SANDBOX)?;
    Ok(group)
}

fn exec(
    api: &mut Api,
    sandbox: &str,
    op: &str,
    script: &str,
) -> Result<protocol::api::OpView, Failure> {
    let settled = api.exec(sandbox, op, &command(&["sh", "-c", script]), |_| ())?;
    if settled.view.exit_code == Some(0) {
        Ok(settled.view)
    } else {
        Err(Failure::wrong(format!(
            "{op} settled as {:?}",
            settled.view
        )))
    }
}

fn succeed(command: &mut Command) -> Result<(), Failure> {
    let what = format!("run {}", command.get_program().to_string_lossy());
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(Failure::cannot(what.clone()))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::wrong(format!("{what}: {status}")))
    }
}
