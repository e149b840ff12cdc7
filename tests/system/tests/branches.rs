//! Checkpoints, forks, rewinds, differences and composing, as a user does them.

use std::process::Command;
use std::time::Duration;

use system_tests::{Res, World, process, trouble};

use crate::support::{SOON, op, settled, until, world};

/// Writes a file in `ada` in an operation of its own.
fn write(world: &World, id: &str, text: &str) -> Res<()> {
    let script = format!("echo {text} > f; echo out-{text}");
    world
        .must(&["exec", "ada", "--op", id, "--", "sh", "-c", &script])
        .map(drop)
}

fn read(world: &World, name: &str) -> Res<String> {
    Ok(world.must(&["exec", name, "--", "cat", "f"])?.out())
}

fn kinds(world: &World, name: &str) -> Res<Vec<String>> {
    let log = world.must(&["log", name, "--json"])?.out();
    let kind = |line: &str| -> Res<String> {
        let event: serde_json::Value = serde_json::from_str(line)?;
        Ok(event["kind"].as_str().unwrap_or_default().to_owned())
    };
    log.lines().map(kind).collect()
}

#[test]
fn a_fork_is_a_clone_with_a_journal_of_its_own_and_outlives_its_source() -> Res<()> {
    let world = world("fork")?;
    write(&world, "one", "1")?;
    let gate = world.effects().gate("fork")?;
    let script = format!(
        "echo half > g; echo go; read -r x < {}; echo done",
        gate.inside()
    );
    let running = world.start(&["exec", "ada", "--op", "runs", "--", "bash", "-c", &script])?;
    assert!(running.wait_out(3, Duration::from_secs(30)));
    let names = world
        .must(&["fork", "ada", "--count", "2", "--name", "try"])?
        .out();
    assert_eq!(names, "try-1\ntry-2\n");
    // What the source did not settle yet is in the clone too, and the source goes on.
    assert_eq!(
        world.must(&["exec", "try-1", "--", "cat", "g"])?.out(),
        "half\n"
    );
    gate.open()?;
    assert_eq!(running.finish()?.code, Some(0));
    world.must(&["exec", "try-1", "--", "sh", "-c", "echo 2 > f"])?;
    world.must(&["exec", "try-2", "--", "sh", "-c", "rm f; hostname > f"])?;
    assert_eq!(read(&world, "ada")?, "1\n");
    assert_eq!(read(&world, "try-1")?, "2\n");
    assert_eq!(read(&world, "try-2")?, "try-2\n");
    assert_eq!(kinds(&world, "try-1")?[0], "forked");
    let identity = |name| world.must(&["exec", name, "--", "cat", "/etc/machine-id"]);
    let (ada, fork) = (identity("ada")?.out(), identity("try-1")?.out());
    assert_eq!(ada.len(), 33, "{ada:?}");
    assert_ne!(ada, fork, "the files are the same, the machine is another");
    assert_eq!(identity("try-1")?.out(), fork);
    world.must(&["rm", "ada"])?;
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    world.must(&["rewind", "try-1", "--to", "start"])?;
    assert_eq!(read(&world, "try-1")?, "1\n");
    world.end_clean()
}

#[test]
fn a_fork_that_a_daemon_was_killed_over_is_whole_afterwards() -> Res<()> {
    for point in ["after_forked", "mid_fork"] {
        let world = World::new(point)?.with_points()?;
        world.create("ada", &[])?;
        write(&world, "one", "1")?;
        let hit = world.points()?.arm(&[point], 0);
        let fork = world.start(&["fork", "ada", "--name", "try"])?;
        let at = hit.recv_timeout(Duration::from_secs(30))?;
        process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
        world.points()?.disarm();
        drop(at);
        let told = fork.finish()?;
        // In the middle of the making it had been announced already.
        if point == "after_forked" {
            let told = told.err();
            let helps = told.contains("`durable ps` tells whether it was made");
            assert!(helps && !told.contains("--op"), "{told}");
        }
        // It needs nothing of its source any more, and differs from it in nothing.
        assert_eq!(world.must(&["diff", "ada", "try"])?.out(), "", "{point}");
        world.must(&["rm", "ada"])?;
        assert_eq!(read(&world, "try")?, "1\n", "{point}");
        world.must(&["exec", "try", "--", "sh", "-c", "echo 2 > f"])?;
        world.must(&["rewind", "try", "--to", "start"])?;
        assert_eq!(read(&world, "try")?, "1\n", "{point}");
        world.end_clean()?;
    }
    Ok(())
}

#[test]
fn a_cut_of_running_writers_shows_one_instant() -> Res<()> {
    let world = world("instant")?;
    let gate = world.effects().gate("instant")?;
    // Each line is in `a` before it is in `b`; lines longer than a page are easily torn.
    let script = format!(
        "pad=$(head -c 6000 /dev/zero | tr '\\0' x); echo go; i=0
         while :; do i=$((i+1)); echo \"$i $pad\" >> a; echo \"$i $pad\" >> b; done & read -r x < {}; kill $!",
        gate.inside()
    );
    let running = world.start(&["exec", "ada", "--op", "runs", "--", "bash", "-c", &script])?;
    assert!(running.wait_out(3, Duration::from_secs(30)));
    let mut still = 0;
    for nth in 0..12 {
        let fork = format!("try-{nth}");
        let cut = world.json(&["checkpoint", "ada", "--json"])?;
        let at = cut["id"].as_str().unwrap_or_default();
        world.must(&["fork", "ada", "--at", at, "--name", &fork])?;
        let look = "for f in a b; do tr -d '\\0' < $f | wc -c; wc -c < $f; tail -n 1 $f | cut -d' ' -f1; done";
        let seen = world.must(&["exec", &fork, "--", "sh", "-c", look])?.out();
        let seen: Vec<u64> = seen.lines().map(|n| n.parse().unwrap_or(0)).collect();
        let [a_text, a_size, a_last, b_text, b_size, b_last] = seen[..] else {
            return Err(trouble(format!("cannot read {seen:?}")));
        };
        // A machine that is busy with its disk may not stop them in time, and says so.
        if cut["still"] == true {
            still += 1;
            assert_eq!((a_text, b_text), (a_size, b_size), "no holes: {seen:?}");
            assert!(a_last == b_last || a_last == b_last + 1, "{seen:?}");
        }
        world.must(&["rm", &fork])?;
    }
    assert!(still > 0, "they were never stopped");
    gate.open()?;
    assert_eq!(running.finish()?.code, Some(0));
    world.end_clean()
}

#[test]
fn what_a_killed_daemon_had_stopped_goes_on_without_it() -> Res<()> {
    let world = World::new("frozen")?.with_points()?;
    world.create("ada", &[])?;
    let script = format!(
        "while :; do echo tick > {}; echo tick >> f; sleep 0.01; done",
        world.effects().inside()
    );
    world.must(&["exec", "ada", "-d", "--", "bash", "-c", &script])?;
    assert!(world.effects().wait("tick", 3, SOON));
    let hit = world.points()?.arm(&["frozen"], 0);
    let mut checkpoint = world.start(&["checkpoint", "ada"])?;
    let at = hit.recv_timeout(Duration::from_secs(30))?;
    let ticks = world.effects().lines("tick")?.len();
    // Clients that find no daemon start one.
    checkpoint.kill();
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    let goes_on = world.effects().wait("tick", ticks + 3, SOON);
    assert!(goes_on, "nobody let the operation go on");
    assert!(world.daemon().is_none(), "nobody started another daemon");
    world.points()?.disarm();
    drop(at);
    world.must(&["checkpoint", "ada"])?;
    world.must(&["stop", "ada", "--grace", "0"])?;
    world.end_clean()
}

#[test]
fn a_daemon_killed_over_a_removal_leaves_its_forks_and_no_half() -> Res<()> {
    let world = World::new("removed")?.with_points()?;
    world.create("ada", &[])?;
    for point in ["before_removed", "after_removed"] {
        let name = format!("of-{point}").replace('_', "-");
        world.create(&name, &[])?;
        world.must(&["exec", &name, "--", "sh", "-c", "echo kept > f"])?;
        let forks = format!("{name}-fork");
        world.must(&["fork", &name, "--count", "2", "--name", &forks])?;
        let hit = world.points()?.arm(&[point], 0);
        let removal = world.start(&["rm", &name])?;
        let at = hit.recv_timeout(Duration::from_secs(30))?;
        process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
        world.points()?.disarm();
        drop(at);
        drop(removal.finish()?);
        for nth in ["1", "2"] {
            assert_eq!(
                read(&world, &format!("{forks}-{nth}"))?,
                "kept\n",
                "{point}"
            );
        }
        // It is there as it was, or gone.
        if world.run(&["log", &name])?.code == Some(0) {
            assert_eq!(point, "before_removed");
            assert_eq!(read(&world, &name)?, "kept\n");
        } else {
            assert_eq!(point, "after_removed");
        }
    }
    world.end_clean()
}

#[test]
fn forks_are_all_made_or_none() -> Res<()> {
    let world = world("all-forks")?;
    write(&world, "one", "1")?;
    world.create("try-2", &[])?;
    let done = world.run(&["fork", "ada", "--count", "3", "--name", "try"])?;
    assert_eq!(done.code, Some(125));
    assert!(
        done.err().contains("`try-2` exists already"),
        "{}",
        done.err()
    );
    let all = world.must(&["ps"])?.out();
    assert!(!all.contains("try-1") && !all.contains("try-3"), "{all}");
    let bad = world.run(&["fork", "ada", "--at", "nowhere"])?;
    assert!(
        bad.err().contains("no checkpoint \"nowhere\""),
        "{}",
        bad.err()
    );
    world.end_clean()
}

#[test]
fn a_rewind_moves_files_and_journal_together_and_can_be_taken_back() -> Res<()> {
    let world = world("rewind")?;
    write(&world, "one", "1")?;
    world.must(&["checkpoint", "ada", "--label", "first"])?;
    write(&world, "two", "2")?;
    let later = world.must(&["checkpoint", "ada"])?.out();
    world.must(&["exec", "ada", "--op", "bg", "-d", "--", "sleep", "1000"])?;
    world.must(&["rewind", "ada", "--to", "first", "--grace", "0"])?;
    assert_eq!(read(&world, "ada")?, "1\n");
    assert_eq!(op(&world, "one")?["outcome"], "exited");
    assert!(world.processes_of("bg").is_empty());
    // The branch that was left can be read, and its ids used again.
    assert_eq!(world.must(&["read", "ada", "two"])?.out(), "out-2\n");
    write(&world, "two", "3")?;
    assert_eq!(world.must(&["read", "ada", "two"])?.out(), "out-3\n");
    assert_eq!(read(&world, "ada")?, "3\n");
    // And back to the branch that was left, with what is known there.
    world.must(&["rewind", "ada", "--to", later.trim()])?;
    assert_eq!(read(&world, "ada")?, "2\n");
    assert_eq!(world.must(&["read", "ada", "two"])?.out(), "out-2\n");
    let again = world.run(&[
        "exec",
        "ada",
        "--op",
        "two",
        "--",
        "sh",
        "-c",
        "echo 2 > f; echo out-2",
    ])?;
    assert_eq!(again.out(), "out-2\n", "attached, not run");
    assert_eq!(
        kinds(&world, "ada")?
            .iter()
            .filter(|k| *k == "rewound")
            .count(),
        2
    );
    world.end_clean()
}

#[test]
fn a_daemon_killed_around_a_rewind_leaves_it_done_or_not_done() -> Res<()> {
    for (point, text) in [("before_rewound", "2\n"), ("after_rewound", "1\n")] {
        let world = World::new(point)?.with_points()?;
        world.create("ada", &[])?;
        write(&world, "one", "1")?;
        world.must(&["checkpoint", "ada", "--label", "first"])?;
        write(&world, "two", "2")?;
        let hit = world.points()?.arm(&[point], 0);
        let rewind = world.start(&["rewind", "ada", "--to", "first"])?;
        let at = hit.recv_timeout(Duration::from_secs(30))?;
        process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
        world.points()?.disarm();
        drop(at);
        drop(rewind.finish()?);
        assert_eq!(read(&world, "ada")?, text, "{point}");
        let two = world.run(&["op", "ada", "two", "--json"])?;
        assert_eq!(two.code, Some(0), "{}", two.err());
        write(&world, "three", "3")?;
        assert_eq!(settled(&world, "three")?["outcome"], "exited");
        world.end_clean()?;
    }
    Ok(())
}

#[test]
fn a_labeled_checkpoint_is_kept_and_its_label_is_its_own() -> Res<()> {
    let world = world("labels")?;
    let empty = world.run(&["checkpoint", "ada"])?;
    assert!(
        empty.err().contains("no files of its own"),
        "{}",
        empty.err()
    );
    write(&world, "one", "1")?;
    let id = world.must(&["checkpoint", "ada", "--label", "keep"])?.out();
    let taken = world.run(&["checkpoint", "ada", "--label", "keep"])?;
    assert!(
        taken.err().contains("belongs to checkpoint"),
        "{}",
        taken.err()
    );
    let other = world.run(&["checkpoint", "ada", "--label", "other"])?;
    assert!(
        other.err().contains("labeled `keep`"),
        "a name is not lost without a word: {}",
        other.err()
    );
    for bad in [
        "12",
        "+12",
        "c12-beef",
        id.trim(),
        "start",
        "a b",
        "a@b",
        "",
    ] {
        let refused = world.run(&["checkpoint", "ada", "--label", bad])?;
        assert_eq!(refused.code, Some(125), "{bad:?} was accepted");
        assert!(refused.err().contains("(hint: "), "{}", refused.err());
    }
    let list = world.must(&["checkpoint", "ls", "ada", "--json"])?.out();
    let first: serde_json::Value = serde_json::from_str(list.lines().next().unwrap_or_default())?;
    assert_eq!(first["id"], id.trim());
    assert_eq!(
        (&first["label"], &first["holds"]),
        (&"keep".into(), &"files".into())
    );
    world.must(&["checkpoint", "unlabel", "ada", "keep"])?;
    let gone = world.run(&["rewind", "ada", "--to", "keep"])?;
    assert!(
        gone.err().contains("no checkpoint \"keep\""),
        "{}",
        gone.err()
    );
    world.end_clean()
}

#[test]
fn a_diff_is_what_git_would_say_and_git_takes_it() -> Res<()> {
    let world = world("diff")?;
    let make = "mkdir -p d; seq 1 40 > d/n; echo old > gone; printf 'no end' > e; chmod 755 e";
    world.sh("ada", make)?.ok()?;
    world.must(&["checkpoint", "ada", "--label", "a"])?;
    world
        .sh(
            "ada",
            "sed -i s/20/twenty/ d/n; rm gone; echo more >> e; ln -s d/n l; mv d/n d/m",
        )?
        .ok()?;
    let list = world.must(&["diff", "ada@a", "ada"])?.out();
    for line in [
        "R  workspace/d/n -> workspace/d/m",
        "D  workspace/gone",
        "A  workspace/l",
        "M  workspace/e",
    ] {
        assert!(list.contains(line), "{line}: {list}");
    }
    let patch = world.must(&["diff", "ada@a", "ada", "--patch"])?;
    let dir = world.root().join("git");
    std::fs::create_dir(&dir)?;
    world.must(&["fork", "ada", "--at", "a", "--name", "then"])?;
    let copy = |name: &str, to: &str| -> Res<()> {
        let to = dir.join(to).display().to_string();
        world
            .must(&["cp", &format!("{name}:/workspace"), &to])
            .map(drop)
    };
    copy("then", "workspace")?;
    copy("ada", "after")?;
    std::fs::write(dir.join("p"), &patch.stdout)?;
    let apply = Command::new("git")
        .args(["apply", "--whitespace=nowarn", "p"])
        .current_dir(&dir)
        .output()?;
    assert!(
        apply.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&apply.stderr),
        patch.out()
    );
    let same = Command::new("diff")
        .args(["-r", "--no-dereference", "workspace", "after"])
        .current_dir(&dir)
        .output()?;
    assert!(
        same.status.success(),
        "{}",
        String::from_utf8_lossy(&same.stdout)
    );
    // Two names that look alike as text, one of which is no UTF-8.
    world.sh("then", r"touch '\xff' $(printf '\377')")?.ok()?;
    let odd = world.must(&["diff", "then", "--json"])?.out();
    let odd: Vec<serde_json::Value> = odd
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    assert_eq!(odd.len(), 2, "{odd:?}");
    assert!(
        odd.iter().all(|c| c["path"] == "workspace/\\xff"),
        "{odd:?}"
    );
    let mut bytes: Vec<_> = odd.iter().map(|c| c["path_base64"].as_str()).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, [None, Some("d29ya3NwYWNlL/8=")]);
    world.end_clean()
}

#[test]
fn a_compose_brings_changes_back_or_tells_why_not() -> Res<()> {
    let world = world("compose")?;
    world
        .sh(
            "ada",
            "seq 1 30 > n; echo both > c; mkdir src; echo x > src/x; rm -f unused",
        )?
        .ok()?;
    world.must(&["fork", "ada", "--name", "try"])?;
    world
        .sh(
            "try",
            "sed -i s/25/their/ n; rm src/x; echo y > src/y; chmod 600 src/y",
        )?
        .ok()?;
    world
        .sh("ada", "sed -i s/^5$/our/ n; echo mine > only")?
        .ok()?;
    let told = world.must(&["compose", "try", "ada", "--dry-run"])?.out();
    assert!(told.contains("delete  workspace/src/x"), "{told}");
    assert_eq!(
        world.sh("ada", "cat src/x")?.out(),
        "x\n",
        "a dry run did something"
    );
    let done = world.must(&["compose", "try", "ada"])?.out();
    assert!(done.contains("applied in operation"), "{done}");
    let now = world
        .sh(
            "ada",
            "grep -c 'our\\|their' n; ls src; stat -c %a src/y; cat only",
        )?
        .out();
    assert_eq!(now, "2\ny\n600\nmine\n");
    // Both change the same line: nothing at all is applied.
    world.sh("try", "echo theirs > c; echo new > other")?.ok()?;
    world.sh("ada", "echo ours > c")?.ok()?;
    let refused = world.run(&["compose", "try", "ada"])?;
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.out().contains("conflict") && refused.out().contains("workspace/c"),
        "{}",
        refused.out()
    );
    assert_eq!(
        world
            .sh("ada", "cat c; ls other 2>&1 | grep -c 'No such'")?
            .out(),
        "ours\n1\n"
    );
    let misspelt = world.run(&["compose", "try", "ada", "--paths", "c", "cc"])?;
    assert!(
        misspelt.err().contains("no `/workspace/cc` on either side"),
        "{}",
        misspelt.err()
    );
    let theirs = world
        .must(&[
            "compose",
            "try",
            "ada",
            "--strategy",
            "theirs",
            "--paths",
            "c",
        ])?
        .out();
    assert!(theirs.contains("applied"), "{theirs}");
    assert_eq!(
        world
            .sh("ada", "cat c; ls other 2>&1 | grep -c 'No such'")?
            .out(),
        "theirs\n1\n"
    );
    // Two forks with a rewind between them parted before either was made.
    world.must(&["checkpoint", "ada", "--label", "fork-here"])?;
    world.sh("ada", "echo abandoned > c")?;
    world.must(&["fork", "ada", "--name", "early"])?;
    world.must(&["rewind", "ada", "--to", "fork-here"])?;
    world.sh("ada", "echo later > d")?;
    world.must(&["fork", "ada", "--name", "late"])?;
    let parted = world.run(&["compose", "early", "late"])?;
    assert!(
        parted.err().contains("was rewound between"),
        "{}",
        parted.err()
    );
    world.create("stranger", &[])?;
    let bad = world.run(&["compose", "stranger", "ada"])?;
    assert!(
        bad.err().contains("no checkpoint in common"),
        "{}",
        bad.err()
    );
    world.end_clean()
}

/// What tells whether anything in the working directory of a sandbox changed.
const ALL: &str =
    "find . -printf '%p %y %m %T@ %s %l\\n' | sort; find . -type f | sort | xargs sha256sum";

/// A fork that changed, added and removed something, with more to bring than one piece of a stream.
fn changed_fork(world: &World) -> Res<String> {
    world
        .sh(
            "ada",
            "echo 1 > a; ln a b; echo x > x; mkdir d; echo y > d/y",
        )?
        .ok()?;
    world.must(&["fork", "ada", "--name", "try"])?;
    world
        .sh(
            "try",
            "echo 2 > a; rm -r x d; mkdir -p n/m; mkfifo n/pipe; head -c 4000000 /dev/urandom > n/m/z",
        )?
        .ok()?;
    Ok(world.sh("ada", ALL)?.out())
}

#[test]
fn a_compose_keeps_names_of_one_file_and_brings_pipes_and_attributes() -> Res<()> {
    let world = world("compose-links")?;
    changed_fork(&world)?;
    let set = "import os; os.setxattr('a', 'user.k', b'v\\nw'); os.setxattr('n', 'user.d', b'1')";
    let has_attributes = world
        .run(&["exec", "try", "--", "python3", "-c", set])?
        .code
        == Some(0);
    world.must(&["compose", "try", "ada"])?;
    let told = "cat a b; stat -c %h a; test -p n/pipe && echo pipe; ls; ls -A / | grep durable-";
    assert_eq!(world.sh("ada", told)?.out(), "2\n2\n2\npipe\na\nb\nn\n");
    if has_attributes {
        let get = "import os; print(os.getxattr('b', 'user.k'), os.getxattr('n', 'user.d'))";
        let told = world
            .must(&["exec", "ada", "--", "python3", "-c", get])?
            .out();
        assert_eq!(told, "b'v\\nw' b'1'\n");
    }
    assert_eq!(world.must(&["diff", "ada", "try"])?.out(), "");
    world.end_clean()
}

#[test]
fn a_daemon_killed_over_a_compose_leaves_all_as_it_was() -> Res<()> {
    let world = World::new("compose-killed")?.with_points()?;
    world.create("ada", &[])?;
    let before = changed_fork(&world)?;
    let hit = world.points()?.arm(&["mid_compose"], 0);
    let mut compose = world.start(&["compose", "try", "ada"])?;
    let at = hit.recv_timeout(Duration::from_secs(30))?;
    compose.kill();
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    world.points()?.disarm();
    drop(at);
    until("the helper has gone", || {
        world
            .sh("ada", "! test -e /.durable-compose")
            .is_ok_and(|done| done.code == Some(0))
    })?;
    assert_eq!(world.sh("ada", ALL)?.out(), before);
    // What a helper that was itself killed leaves shows nowhere, and the next one removes it.
    world.must(&[
        "exec",
        "ada",
        "--user",
        "root",
        "--",
        "mkdir",
        "-p",
        "/.durable-compose/0",
    ])?;
    let told = world.must(&["diff", "ada", "try"])?.out();
    assert!(!told.contains("durable-compose"), "{told}");
    world.must(&["compose", "try", "ada"])?;
    assert_eq!(
        world.sh("ada", "cat b; ls -A / | grep durable-")?.out(),
        "2\n"
    );
    world.end_clean()
}

#[test]
fn what_is_written_while_a_compose_is_under_way_is_not_lost() -> Res<()> {
    let world = World::new("compose-between")?.with_points()?;
    world.create("ada", &[])?;
    changed_fork(&world)?;
    // The daemon stands still meanwhile.
    let script = format!(
        "until test -e /.durable-compose; do sleep 0.01; done; echo mine > d/new; echo wrote > {}",
        world.effects().inside()
    );
    world.must(&["exec", "ada", "-d", "--", "bash", "-c", &script])?;
    let hit = world.points()?.arm(&["mid_compose"], 0);
    let compose = world.start(&["compose", "try", "ada"])?;
    let at = hit.recv_timeout(Duration::from_secs(30))?;
    world.points()?.disarm();
    assert!(world.effects().wait("wrote", 1, SOON), "nobody wrote");
    drop(at);
    let refused = compose.finish()?;
    assert_ne!(refused.code, Some(0), "{}", refused.out());
    let told = refused.err();
    assert!(
        told.contains("/d/new changed meanwhile, and nothing was done: run compose again"),
        "{told}"
    );
    let all = "cat a b x d/y d/new; ls -A . / | grep -c 'durable-\\|^n$'";
    assert_eq!(world.sh("ada", all)?.out(), "1\n1\nx\ny\nmine\n0\n");
    // It is a conflict or none now, as any other change.
    world.must(&["compose", "try", "ada"])?;
    assert_eq!(
        world.sh("ada", "cat d/new; ls d; cat a")?.out(),
        "mine\nnew\n2\n"
    );
    world.end_clean()
}

#[test]
fn blame_names_the_command_that_changed_a_file() -> Res<()> {
    let world = world("blame")?;
    write(&world, "one", "1")?;
    world.must(&[
        "exec",
        "ada",
        "--op",
        "two",
        "--",
        "sh",
        "-c",
        "echo other > g",
    ])?;
    world.must(&["exec", "ada", "--op", "three", "--", "cat", "f"])?;
    let blame = world.json(&["blame", "ada", "f", "--json"])?;
    assert_eq!(blame["ops"][0]["id"], "one", "{blame}");
    assert_eq!(blame["ops"].as_array().map(Vec::len), Some(1));
    assert!(
        world
            .must(&["blame", "ada", "/workspace/g"])?
            .out()
            .contains("two: sh -c echo other > g")
    );
    world.must(&["fork", "ada", "--name", "try"])?;
    assert!(
        world
            .must(&["blame", "try", "f"])?
            .out()
            .contains("durable blame ada f")
    );
    let none = world.run(&["blame", "ada", "nothing"])?;
    assert!(
        none.err().contains("no checkpoint that it has"),
        "{}",
        none.err()
    );
    world.end_clean()
}

#[test]
fn a_checkpoint_that_the_pool_lost_is_told_and_the_others_are_there() -> Res<()> {
    let world = World::new("lost-cut")?.with_env("DURABLE_POOL", "copy");
    world.create("ada", &[])?;
    world.sh("ada", "echo 1 > f")?.ok()?;
    world.must(&["checkpoint", "ada", "--label", "one"])?;
    world.sh("ada", "echo 2 > f")?.ok()?;
    world.must(&["stop", "ada"])?;
    let problem = || -> Res<String> {
        let view = world.json(&["ps", "--json"])?;
        Ok(view["problem"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(problem()?, "");
    let view = world.json(&["ps", "--json"])?;
    let last = view["last_cut"].as_str().unwrap_or_default().to_owned();
    let daemon = world.daemon().ok_or_else(|| trouble("no daemon"))?;
    assert!(process::terminate(daemon, Duration::from_secs(20)));
    let mut found = 0;
    for workspace in std::fs::read_dir(world.data().join("pool/cuts"))? {
        let cut = workspace?.path().join(&last);
        if cut.exists() {
            std::fs::remove_dir_all(cut)?;
            found += 1;
        }
    }
    assert_eq!(found, 1, "{last}");
    let told = problem()?;
    let wanted =
        format!("lost 1 of its checkpoints, the last of them {last}: its files may be older");
    assert!(told.contains(&wanted), "{told}");
    assert!(world.must(&["ps"])?.out().contains("the pool lost"));
    let gone = world.run(&["fork", "ada", "--at", &last, "--name", "bob"])?;
    assert_eq!(gone.code, Some(125), "{}", gone.err());
    world.must(&["rewind", "ada", "--to", "one"])?;
    assert_eq!(world.sh("ada", "cat f")?.out(), "1\n");
    // What is lost stays lost, and the files are those of a checkpoint that is there.
    let told = problem()?;
    assert!(
        told.ends_with(&format!("the last of them {last}")),
        "{told}"
    );
    world.end_clean()
}

#[test]
fn a_checkpoint_that_nothing_needs_can_be_removed() -> Res<()> {
    let world = world("checkpoint-rm")?;
    let cut_of = |op: &str| -> Res<String> {
        let cut = settled(&world, op)?["cut"].as_str().map(str::to_owned);
        cut.ok_or_else(|| trouble(format!("{op} has no cut")))
    };
    for nth in ["1", "2", "3", "4"] {
        write(&world, &format!("w{nth}"), nth)?;
    }
    let [first, second, third, tip] = ["w1", "w2", "w3", "w4"].map(cut_of);
    let (first, second, third, tip) = (first?, second?, third?, tip?);
    let refused = |at: &str, why: &str| -> Res<()> {
        let refused = world.run(&["checkpoint", "rm", "ada", at])?;
        assert_eq!(refused.code, Some(125), "{at}");
        assert!(refused.err().contains(why), "{at}: {}", refused.err());
        Ok(())
    };
    refused("nowhere", "no checkpoint \"nowhere\"")?;
    refused("..", "no checkpoint \"..\"")?;
    refused(&tip, "is the one that its files go on from")?;
    world.must(&["checkpoint", "label", "ada", &second, "keep"])?;
    refused("keep", "is labeled `keep`")?;
    refused(&second, "is labeled `keep`")?;

    let has = |cut: &str| -> Res<bool> {
        let list = world.must(&["checkpoint", "ls", "ada", "--json"])?.out();
        Ok(list.contains(cut))
    };
    world.must(&["checkpoint", "rm", "ada", &first])?;
    world.must(&["checkpoint", "rm", "ada", "keep", "--force"])?;
    refused(&first, "no checkpoint")?;
    assert_eq!(
        [has(&first)?, has(&second)?, has(&third)?, has(&tip)?],
        [false, false, true, true]
    );
    let dropped = kinds(&world, "ada")?;
    let dropped = dropped.iter().filter(|kind| *kind == "cuts_dropped");
    assert_eq!(dropped.count(), 2);
    // What is gone cannot be gone back to, what is there can; also for the next daemon.
    let gone = world.run(&["rewind", "ada", "--to", &first])?;
    assert!(gone.err().contains("no checkpoint"), "{}", gone.err());
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    assert!(!has(&first)? && has(&third)?);
    assert_eq!(read(&world, "ada")?, "4\n");
    world.must(&["rewind", "ada", "--to", &third])?;
    assert_eq!(read(&world, "ada")?, "3\n");
    // The files do not go on from it any more.
    world.must(&["checkpoint", "rm", "ada", &tip])?;
    world.end_clean()
}

#[test]
fn a_checkpoint_in_use_stays() -> Res<()> {
    let world = World::new("checkpoint-use")?.with_points()?;
    world.create("ada", &[])?;
    write(&world, "one", "1")?;
    let cut = world.must(&["checkpoint", "ada"])?.out();
    write(&world, "two", "2")?;
    let hit = world.points()?.arm(&["mid_fork"], 0);
    let mut fork = world.start(&["fork", "ada", "--at", cut.trim(), "--name", "try"])?;
    let at = hit.recv_timeout(SOON)?;
    let refused = world.run(&["checkpoint", "rm", "ada", cut.trim()])?;
    assert!(refused.err().contains("is in use"), "{}", refused.err());
    drop(at);
    fork.kill();
    assert_eq!(read(&world, "try")?, "1\n");
    // The fork has a cut of its own by now, and its source's may go.
    until("the checkpoint is let go of", || {
        let removed = world.run(&["checkpoint", "rm", "ada", cut.trim()]);
        removed.is_ok_and(|removed| removed.code == Some(0))
    })?;
    assert_eq!(read(&world, "try")?, "1\n");
    world.must(&["rewind", "try", "--to", "start"])?;
    assert_eq!(read(&world, "try")?, "1\n");
    world.end_clean()
}
