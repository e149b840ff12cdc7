//! What do checkpoints, forks, rewinds and differences cost on a tree of 50,000 files and 1 GB, and do they stay the same
//! from the first to the thousandth?
//!
//! The tree is real: sources of packages and what a compiler made of some. Held against copying it, which is what a branch
//! costs without snapshots, against `diff -r` and `git diff`, which look at all of it, and, where it goes to a store, against
//! restic and tar. The aims: a fork of a checkpoint in 5 ms, a fork of a running sandbox in 50, whatever the size; a push of
//! what changed five times as fast as restic's; a build inside at most 5 % slower than on the bare disk.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use bench::api::command;
use bench::{Api, Failure};
use hyper::Method;
use protocol::api::{
    ChangeView, CheckpointView, ForkSandbox, PushView, RewindSandbox, SandboxView, TakeCheckpoint,
};
use protocol::{Image, SandboxName};

use crate::figures::Sample;
use crate::table::{Group, Unit};
use crate::world::{World, millis};

const FILES: usize = 50_000;
const BYTES: u64 = 1 << 30;
const SANDBOX: &str = "big";
/// Files that a step changes, as an agent's edit with its build does.
const EDITED: usize = 20;

pub(crate) fn run(world: &World, quick: bool) -> Result<Vec<Group>, Failure> {
    let some = |full: usize, few: usize| if quick { few } else { full };
    let tree = world.dir().join("tree");
    let (files, bytes) = plant(&tree, some(FILES, 2_000))?;
    crate::say(&format!("the tree has {files} files, {} MiB", bytes >> 20));
    let mut api = world.connect()?;
    api.create(SANDBOX, Image::Host)?;
    let put = world
        .durable(&["cp", &tree.display().to_string(), "big:/workspace/tree"])
        .stdin(Stdio::null())
        .status()
        .map_err(Failure::cannot("copy the tree into a sandbox"))?;
    if !put.success() {
        return Err(Failure::wrong(
            "the tree could not be copied into the sandbox",
        ));
    }
    let mut bench = Bench {
        api,
        world,
        ops: 0,
        names: 0,
        what: format!("{files} files, {} MiB", bytes >> 20),
    };
    let mut groups = vec![
        bench.forks(some(100, 5), &tree)?,
        bench.many_forks(some(9, 2), some(32, 4))?,
        bench.differences(some(15, 2), &tree)?,
        bench.rewinds(some(15, 2))?,
        bench.space(some(50, 5))?,
    ];
    groups.extend(bench.stores(some(5, 1), &tree)?);
    // Last, for it leaves a thousand labels.
    groups.push(bench.growth(some(1000, 20))?);
    groups.push(build(world, some(5, 1))?);
    Ok(groups)
}

struct Bench<'a> {
    api: Api,
    world: &'a World,
    ops: usize,
    names: usize,
    /// The tree, for people.
    what: String,
}

impl Bench<'_> {
    fn sh(&mut self, name: &str, script: &str) -> Result<(), Failure> {
        self.ops += 1;
        let op = format!("b{}", self.ops);
        let settled = self
            .api
            .exec(name, &op, &command(&["sh", "-c", script]), |_| {})?;
        match settled.view.exit_code {
            Some(0) => Ok(()),
            code => Err(Failure::wrong(format!("{script}: exit code {code:?}"))),
        }
    }

    /// Changes some files, each with content that was never there.
    fn edit(&mut self, name: &str) -> Result<(), Failure> {
        let mark = self.ops;
        self.sh(
            name,
            &format!("for i in $(seq {EDITED}); do echo {mark} > tree/e$i; done"),
        )
    }

    fn fresh(&mut self, count: usize) -> Vec<SandboxName> {
        (0..count)
            .filter_map(|_| {
                self.names += 1;
                format!("f{}", self.names).parse().ok()
            })
            .collect()
    }

    /// Makes forks; returns them with the milliseconds it took.
    fn fork(&mut self, count: usize, at: Option<&str>) -> Result<(Vec<SandboxName>, f64), Failure> {
        let names = self.fresh(count);
        let ask = ForkSandbox {
            names: names.clone(),
            at: at.map(str::to_owned),
            flush: None,
        };
        let path = format!("/v1/sandboxes/{SANDBOX}/forks");
        let begun = Instant::now();
        let views: Vec<SandboxView> = self.api.call(Method::POST, &path, Some(&ask))?;
        let took = millis(begun.elapsed());
        if views.len() != count {
            return Err(Failure::wrong("not every fork was made"));
        }
        Ok((names, took))
    }

    /// Makes forks and waits for their files; the milliseconds to both.
    fn fork_and_wait(
        &mut self,
        count: usize,
        at: Option<&str>,
    ) -> Result<(Vec<SandboxName>, f64, f64), Failure> {
        let begun = Instant::now();
        let (names, took) = self.fork(count, at)?;
        for name in &names {
            // A fork answers when its files are there.
            let _view: SandboxView = self.api.get(&format!("/v1/sandboxes/{name}"))?;
        }
        Ok((names, took, millis(begun.elapsed())))
    }

    fn remove(&mut self, names: &[SandboxName]) -> Result<f64, Failure> {
        let begun = Instant::now();
        for name in names {
            self.api.remove(name.as_str())?;
        }
        Ok(millis(begun.elapsed()))
    }

    fn checkpoint(&mut self, label: Option<&str>) -> Result<CheckpointView, Failure> {
        let ask = TakeCheckpoint {
            label: label.map(str::to_owned),
        };
        let path = format!("/v1/sandboxes/{SANDBOX}/checkpoints");
        self.api.call(Method::POST, &path, Some(&ask))
    }

    fn forks(&mut self, rounds: usize, tree: &Path) -> Result<Group, Failure> {
        self.checkpoint(Some("base"))?;
        let mut group = Group::new(format!(
            "fork of {}, through the API: announced (in the journal, on disk), and with its files",
            self.what
        ));
        let [mut cut, mut made, mut live, mut gone] = [(); 4].map(|()| Sample::default());
        for _ in 0..rounds {
            let (names, took, all) = self.fork_and_wait(1, Some("base"))?;
            cut.push(took);
            made.push(all);
            gone.push(self.remove(&names)?);
        }
        for _ in 0..rounds.div_ceil(3) {
            // Written by a process that runs on, so that the fork has to take a cut of its own.
            self.ops += 1;
            let op = format!("w{}", self.ops);
            let script = format!("echo {op} > tree/live; echo; exec sleep 1000");
            let name = SANDBOX;
            let path = format!("/v1/sandboxes/{name}/ops/{op}");
            let _view: protocol::api::OpView =
                self.api
                    .call(Method::PUT, &path, Some(&command(&["sh", "-c", &script])))?;
            let out = format!("{path}/output/stdout?follow=true");
            wait_for_output(self.world, &out)?;
            let (names, _, all) = self.fork_and_wait(1, None)?;
            live.push(all);
            let mut fork = self.world.connect()?;
            let read = fork.exec(
                names[0].as_str(),
                "r",
                &command(&["cat", "tree/live"]),
                |_| {},
            )?;
            if read.stdout != format!("{op}\n").as_bytes() {
                return Err(Failure::wrong(
                    "a live fork misses what was written before it",
                ));
            }
            self.remove(&names)?;
            let _view: protocol::api::OpView =
                self.api
                    .call(Method::POST, &format!("{path}/cancel"), None::<&()>)?;
        }
        group.line("durable, of a checkpoint, announced", Unit::Millis, &cut);
        group.line("durable, of a checkpoint, made", Unit::Millis, &made);
        group.line("durable, of the running sandbox, made", Unit::Millis, &live);
        group.line("durable, removing a fork", Unit::Millis, &gone);
        let mut copies = Sample::default();
        let copy = self.world.dir().join("copy");
        for _ in 0..3 {
            let begun = Instant::now();
            succeed(Command::new("cp").arg("-a").arg(tree).arg(&copy))?;
            copies.push(millis(begun.elapsed()));
            std::fs::remove_dir_all(&copy).map_err(Failure::cannot("remove a copy"))?;
        }
        group.peer("cp -a, not synced", Unit::Millis, &copies);
        let medians = (
            group.median(0).unwrap_or(0.0),
            group.median(2).unwrap_or(0.0),
        );
        group.at_most("fork of a checkpoint: at most 5 ms", medians.0, 5.0);
        group.at_most("fork of a running sandbox: at most 50 ms", medians.1, 50.0);
        Ok(group)
    }

    fn many_forks(&mut self, rounds: usize, count: usize) -> Result<Group, Failure> {
        let mut group = Group::new(format!("{count} forks at once, all of them"));
        let (mut sample, mut made) = (Sample::default(), Sample::default());
        for _ in 0..rounds {
            let (names, took, all) = self.fork_and_wait(count, Some("base"))?;
            sample.push(took);
            made.push(all);
            self.remove(&names)?;
        }
        group.line("durable, announced", Unit::Millis, &sample);
        group.line("durable, made", Unit::Millis, &made);
        Ok(group)
    }

    fn differences(&mut self, rounds: usize, tree: &Path) -> Result<Group, Failure> {
        let mut group = Group::new(format!("diff, {EDITED} files changed of {}", self.what));
        let mut sample = Sample::default();
        self.edit(SANDBOX)?;
        for _ in 0..rounds {
            let begun = Instant::now();
            let changes: Vec<ChangeView> = self.api.get("/v1/diff?a=big@base&b=big")?;
            sample.push(millis(begun.elapsed()));
            let found = changes
                .iter()
                .filter(|c| c.path.starts_with("workspace/tree/e"));
            if found.count() != EDITED {
                return Err(Failure::wrong(format!(
                    "{} changes were found",
                    changes.len()
                )));
            }
        }
        group.line("durable", Unit::Millis, &sample);
        let other = self.world.dir().join("other");
        succeed(Command::new("cp").arg("-a").arg(tree).arg(&other))?;
        for nth in 0..EDITED {
            let path = other.join(format!("e{nth}"));
            std::fs::write(&path, "new\n").map_err(Failure::cannot("change a copy"))?;
        }
        for (who, program, args) in [
            ("diff -rq", "diff", &["-rq", "--no-dereference"][..]),
            (
                "git diff --no-index",
                "git",
                &["diff", "--no-index", "--name-only"][..],
            ),
        ] {
            let mut peer = Sample::default();
            for _ in 0..3 {
                let begun = Instant::now();
                let ran = Command::new(program)
                    .args(args)
                    .arg(tree)
                    .arg(&other)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status();
                let ran = ran.map_err(Failure::cannot(format!("run {who}")))?;
                if ran.code() != Some(1) {
                    return Err(Failure::wrong(format!("{who} found no difference")));
                }
                peer.push(millis(begun.elapsed()));
            }
            group.peer(who, Unit::Millis, &peer);
        }
        std::fs::remove_dir_all(&other).map_err(Failure::cannot("remove a copy"))?;
        Ok(group)
    }

    fn rewinds(&mut self, rounds: usize) -> Result<Group, Failure> {
        let mut group = Group::new("rewind, the sandbox stopped or running");
        let (mut stopped, mut running) = (Sample::default(), Sample::default());
        for round in 0..rounds * 2 {
            self.edit(SANDBOX)?;
            let is_running = round % 2 == 1;
            if !is_running {
                let path = format!("/v1/sandboxes/{SANDBOX}/stop?grace_ms=0");
                let _view: SandboxView = self.api.call(Method::POST, &path, None::<&()>)?;
            }
            let ask = RewindSandbox {
                to: "base".to_owned(),
            };
            let path = format!("/v1/sandboxes/{SANDBOX}/rewind?grace_ms=0");
            let begun = Instant::now();
            let _view: SandboxView = self.api.call(Method::POST, &path, Some(&ask))?;
            let took = millis(begun.elapsed());
            if is_running {
                &mut running
            } else {
                &mut stopped
            }
            .push(took);
            self.sh(SANDBOX, "test ! -e tree/e1")?;
        }
        group.line("durable, stopped", Unit::Millis, &stopped);
        group.line("durable, running, processes ended", Unit::Millis, &running);
        Ok(group)
    }

    /// The first hundred against the last hundred of many checkpoints and forks, all kept.
    fn growth(&mut self, count: usize) -> Result<Group, Failure> {
        let mut group = Group::new(format!(
            "from 1 to {count}: checkpoints, then forks of one, all kept"
        ));
        let tenth = (count / 10).max(1);
        let (mut first, mut last) = (Sample::default(), Sample::default());
        for nth in 0..count {
            self.sh(SANDBOX, &format!("echo {nth} > tree/grow"))?;
            let label = format!("g{nth}");
            let begun = Instant::now();
            self.checkpoint(Some(&label))?;
            let took = millis(begun.elapsed());
            if nth < tenth {
                first.push(took);
            } else if nth >= count - tenth {
                last.push(took);
            }
        }
        group.line(
            format!("checkpoint, the first {tenth}"),
            Unit::Millis,
            &first,
        );
        group.line(format!("checkpoint, the last {tenth}"), Unit::Millis, &last);
        let (mut first, mut last) = (Sample::default(), Sample::default());
        let mut all = Vec::new();
        for nth in 0..count {
            let (names, _, took) = self.fork_and_wait(1, Some("base"))?;
            all.extend(names);
            if nth < tenth {
                first.push(took);
            } else if nth >= count - tenth {
                last.push(took);
            }
        }
        group.line(format!("fork, the first {tenth}"), Unit::Millis, &first);
        group.line(format!("fork, the last {tenth}"), Unit::Millis, &last);
        // Every one of them is a whole workspace.
        for name in [all.first(), all.last()].into_iter().flatten() {
            self.sh(name.as_str(), "test -d tree && test ! -e tree/grow")?;
        }
        let took = self.remove(&all)?;
        let mut gone = Sample::default();
        gone.push(took / all.len().max(1) as f64);
        group.line("removing one of them", Unit::Millis, &gone);
        Ok(group)
    }

    /// Push and pull, of everything and of what changed, against two other ways of keeping a copy of the same tree.
    fn stores(&mut self, rounds: usize, tree: &Path) -> Result<Vec<Group>, Failure> {
        let dir = self.world.dir().to_owned();
        let restic = |args: &[&str]| {
            let mut command = Command::new("restic");
            command
                .args(["--quiet", "--no-cache"])
                .args(args)
                .env("RESTIC_REPOSITORY", dir.join("restic"))
                .env("RESTIC_PASSWORD", "x");
            command
        };
        let tar = |to: &Path| {
            let script = "tar -C \"$0\" -cf - . | zstd -q -1 -T0 -o \"$1\"";
            let mut command = Command::new("sh");
            command.args(["-c", script]).arg(tree).arg(to);
            command
        };
        let text = tree.display().to_string();
        succeed(&mut restic(&["init"]))?;
        let mut cold = Group::new(format!("push of {}, everything", self.what));
        let timed = |command: &mut Command| {
            let begun = Instant::now();
            succeed(command)?;
            Ok::<f64, Failure>(millis(begun.elapsed()))
        };
        let one = |group: &mut Group, who: &str, took: f64| {
            let mut sample = Sample::default();
            sample.push(took);
            match who {
                "durable" => group.line(who, Unit::Millis, &sample),
                peer => group.peer(peer, Unit::Millis, &sample),
            }
        };
        one(&mut cold, "durable", self.push(&dir)?);
        one(&mut cold, "restic", timed(&mut restic(&["backup", &text]))?);
        one(
            &mut cold,
            "tar | zstd -1",
            timed(&mut tar(&dir.join("0.tar.zst")))?,
        );

        let mut after = Group::new(format!("push, {EDITED} files changed of {}", self.what));
        let (mut ours, mut theirs, mut tars) =
            (Sample::default(), Sample::default(), Sample::default());
        for round in 0..rounds {
            self.edit(SANDBOX)?;
            for nth in 0..EDITED {
                std::fs::write(tree.join(format!("e{nth}")), format!("{round}\n"))
                    .map_err(Failure::cannot("change the tree"))?;
            }
            ours.push(self.push(&dir)?);
            theirs.push(timed(&mut restic(&["backup", &text]))?);
            tars.push(timed(
                &mut tar(&dir.join(format!("{}.tar.zst", round + 1))),
            )?);
        }
        after.line("durable", Unit::Millis, &ours);
        after.peer("restic", Unit::Millis, &theirs);
        after.peer("tar | zstd -1", Unit::Millis, &tars);
        let ratio = after.median(0).unwrap_or(0.0) / after.median(1).unwrap_or(1.0);
        after.at_most("at most a fifth of restic", ratio, 0.2);

        let mut back = Group::new(format!("pull of {}, everything", self.what));
        let ask = serde_json::json!({
            "store": { "url": dir.join("store") }, "from": SANDBOX, "name": "pulled",
        });
        let begun = Instant::now();
        let _view: SandboxView = self.api.call(Method::POST, "/v1/pull", Some(&ask))?;
        one(&mut back, "durable", millis(begun.elapsed()));
        self.sh("pulled", "test -d tree && test -e tree/e1")?;
        self.api.remove("pulled")?;
        let (restored, untarred) = (dir.join("restored"), dir.join("untarred"));
        let target = restored.display().to_string();
        one(
            &mut back,
            "restic",
            timed(&mut restic(&["restore", "latest", "--target", &target]))?,
        );
        std::fs::create_dir(&untarred).map_err(Failure::cannot("make a directory"))?;
        let script = "zstd -qdc \"$0\" | tar -C \"$1\" -xf -";
        let mut untar = Command::new("sh");
        untar
            .args(["-c", script])
            .arg(dir.join("0.tar.zst"))
            .arg(&untarred);
        one(&mut back, "zstd -d | tar -x", timed(&mut untar)?);
        for gone in [restored, untarred] {
            std::fs::remove_dir_all(&gone).map_err(Failure::cannot("remove a copy"))?;
        }
        Ok(vec![cold, after, back])
    }

    fn push(&mut self, dir: &Path) -> Result<f64, Failure> {
        let ask = serde_json::json!({ "store": { "url": dir.join("store") } });
        let path = format!("/v1/sandboxes/{SANDBOX}/push");
        let begun = Instant::now();
        let _view: PushView = self.api.call(Method::POST, &path, Some(&ask))?;
        Ok(millis(begun.elapsed()))
    }

    fn space(&mut self, count: usize) -> Result<Group, Failure> {
        let used = |world: &World| -> Result<f64, Failure> {
            let mut sum = 0_u64;
            for name in ["pool.btrfs", "journal"] {
                let path = world.data().join(name);
                let Ok(found) = std::fs::symlink_metadata(&path) else {
                    continue;
                };
                use std::os::unix::fs::MetadataExt as _;
                sum += found.blocks() * 512;
            }
            Ok(sum as f64 / f64::from(1 << 20))
        };
        let before = used(self.world)?;
        let (names, ..) = self.fork_and_wait(count, Some("base"))?;
        let after = used(self.world)?;
        self.remove(&names)?;
        let mut group = Group::new(format!("space of a fork, of {count} forks together"));
        let mut sample = Sample::default();
        sample.push((after - before).max(0.0) / count as f64);
        group.line("durable", Unit::Mebibytes, &sample);
        Ok(group)
    }
}

/// Waits until an operation has printed something.
fn wait_for_output(world: &World, path: &str) -> Result<(), Failure> {
    let path = path.replace("follow=true", "follow=false");
    let mut api = world.connect()?;
    while api.bytes(&path)?.is_empty() {
        std::thread::yield_now();
    }
    Ok(())
}

/// The same build in a sandbox and on the bare disk: 120 files of C, all processors.
fn build(world: &World, rounds: usize) -> Result<Group, Failure> {
    let dir = world.dir().join("build");
    std::fs::create_dir(&dir).map_err(Failure::cannot("make a directory"))?;
    let mut makefile = "CFLAGS=-O1\nall: ".to_owned();
    for nth in 0..120 {
        let body = format!(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f{nth}(int x) {{ char b[64]; snprintf(b, sizeof b, \"%d\", x); return atoi(b) + (int)strlen(b); }}\n"
        );
        let path = dir.join(format!("f{nth}.c"));
        std::fs::write(&path, body).map_err(Failure::cannot("write a source"))?;
        makefile.push_str(&format!("f{nth}.o "));
    }
    makefile.push('\n');
    std::fs::write(dir.join("Makefile"), makefile).map_err(Failure::cannot("write a Makefile"))?;
    let mut api = world.connect()?;
    api.create("build", Image::Host)?;
    succeed(&mut world.durable(&["cp", &dir.display().to_string(), "build:/workspace/build"]))?;
    let make = "cd build && rm -f *.o; make -s -j2";
    let (mut inside, mut outside) = (Sample::default(), Sample::default());
    for round in 0..rounds {
        let begun = Instant::now();
        let ran = api.exec(
            "build",
            &format!("m{round}"),
            &command(&["sh", "-c", make]),
            |_| {},
        )?;
        inside.push(millis(begun.elapsed()));
        if ran.view.exit_code != Some(0) {
            return Err(Failure::wrong("the build failed inside"));
        }
        let begun = Instant::now();
        succeed(
            Command::new("sh")
                .arg("-c")
                .arg(make)
                .current_dir(world.dir()),
        )?;
        outside.push(millis(begun.elapsed()));
    }
    let mut group = Group::new("a build of 120 files of C, its checkpoint included");
    group.line("durable", Unit::Millis, &inside);
    group.peer("on the bare disk", Unit::Millis, &outside);
    let ratio = group.median(0).unwrap_or(0.0) / group.median(1).unwrap_or(1.0);
    group.at_most("at most 1.05 × the bare disk", ratio, 1.05);
    Ok(group)
}

/// Plants the tree: package sources and build results of this machine, until there are enough of both.
fn plant(tree: &Path, files: usize) -> Result<(usize, u64), Failure> {
    std::fs::create_dir_all(tree).map_err(Failure::cannot("make the tree"))?;
    let bytes = BYTES * files as u64 / FILES as u64;
    let home = std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    let sources = [
        home.join("registry/src"),
        "/usr/include".into(),
        "/usr/share".into(),
    ];
    let (mut count, mut size) = (0, 0);
    for turn in 0..50 {
        for (nth, source) in sources.iter().enumerate() {
            let into = tree.join(format!("t{turn}s{nth}"));
            copy(source, &into, files, &mut count, &mut size)?;
        }
        if count >= files || count == 0 {
            break;
        }
    }
    // The rest of the bytes: what compilers make, large and not to be compressed.
    let mut nth = 0;
    while size < bytes {
        let chunk: Vec<u8> = (0..(1 << 20) / 8)
            .flat_map(|_| rand::random::<u64>().to_le_bytes())
            .collect();
        let path = tree.join(format!("lib{nth}.rlib"));
        std::fs::write(&path, chunk).map_err(Failure::cannot("write a file"))?;
        (nth, size, count) = (nth + 1, size + (1 << 20), count + 1);
    }
    Ok((count, size))
}

fn copy(
    from: &Path,
    to: &Path,
    files: usize,
    count: &mut usize,
    size: &mut u64,
) -> Result<(), Failure> {
    let Ok(entries) = std::fs::read_dir(from) else {
        return Ok(());
    };
    std::fs::create_dir_all(to).map_err(Failure::cannot(format!("make {}", to.display())))?;
    for entry in entries.flatten() {
        if *count >= files {
            return Ok(());
        }
        let (path, into) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy(&path, &into, files, count, size)?,
            Ok(kind) if kind.is_file() => {
                if let Ok(bytes) = std::fs::copy(&path, &into) {
                    *count += 1;
                    *size += bytes;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn succeed(command: &mut Command) -> Result<(), Failure> {
    let what = format!("run {}", command.get_program().to_string_lossy());
    let done = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(Failure::cannot(what.clone()))?;
    if done.status.success() {
        return Ok(());
    }
    Err(Failure::wrong(format!(
        "{what}: {} {}",
        done.status,
        String::from_utf8_lossy(&done.stderr).trim()
    )))
}
