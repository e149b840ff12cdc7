//! Sandboxes pushed to a blob store and pulled elsewhere, as a user does it, and with processes killed on the way.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use system_tests::{Res, World, journal, process, trouble};

use crate::support::{op, world};

/// Files of every kind that a workspace may hold, made in an operation.
pub(crate) const ODD_FILES: &str = r#"
    mkdir -p deep/er && echo text > f && ln f deep/hard && ln -s ../nowhere deep/link && mkfifo pipe
    printf 'a\0b' > "$(printf 'n\303\244me\nline \377')" && truncate -s 5M sparse && printf end >> sparse
    chmod 4750 f && chown 12:34 deep && touch -h -d '2001-02-03 04:05:06.789' deep/link && touch -d '1999-01-01 00:00:00.5' deep/er
    setfattr -n user.note -v hello f 2>/dev/null || true
    rm -f /usr/bin/whoami; mkdir -p /root/.agent && head -c 300000 /dev/urandom > /root/.agent/memory
"#;
/// Everything of these files that can be told, in one text.
pub(crate) const TOLD: &str = r#"
    for tree in /workspace /root; do cd $tree
        find . -mindepth 1 -printf '%P %y %m %U %G %n %s %T@ %l\0' | sort -z | tr '\0' '\n'
        find . -type f -print0 | sort -z | xargs -0 sha256sum -z | tr '\0' '\n'
    done
    stat -c '%i' /workspace/f /workspace/deep/hard | uniq | wc -l
    test $(stat -c %b /workspace/sparse) -lt 100 && echo sparse
    getfattr -d -m - --absolute-names /workspace/f 2>/dev/null
    ls /usr/bin/whoami 2>&1
"#;

fn store(world: &World) -> String {
    world.root().join("store").display().to_string()
}

fn push(world: &World, store: &str) -> Res<serde_json::Value> {
    world.json(&["push", "ada", "--store", store, "--json"])
}

/// The journal as it is stored, without what pushing and pulling add.
fn events(world: &World) -> Res<Vec<(u64, String)>> {
    let rows = journal::read(world.data(), "ada")?;
    journal::verify(&rows)?;
    Ok(rows
        .iter()
        .map(|row| (row.seq, row.payload.clone()))
        .collect())
}

#[test]
fn a_pulled_sandbox_is_the_one_that_was_pushed_and_goes_on() -> Res<()> {
    let here = world("push")?;
    let store = store(&here);
    here.must(&[
        "exec",
        "ada",
        "--op",
        "one",
        "--",
        "sh",
        "-c",
        "seq 20000; echo oops >&2; echo 1 > gone",
    ])?;
    here.must(&["checkpoint", "ada", "--label", "early"])?;
    here.must(&[
        "exec",
        "ada",
        "--op",
        "left",
        "--",
        "sh",
        "-c",
        "echo on the left branch; echo 2 > gone",
    ])?;
    here.must(&["rewind", "ada", "--to", "early"])?;
    here.must(&["exec", "ada", "--op", "odd", "--", "sh", "-c", ODD_FILES])?;
    let told = here.sh("ada", TOLD)?.out();
    assert!(
        told.contains("sparse\n") && told.contains("memory"),
        "{told}"
    );
    let first = push(&here, &store)?;
    assert_eq!(
        first["checkpoints"], 2,
        "the last one and the labeled one: {first}"
    );
    let again = push(&here, &store)?;
    assert!(
        again["new_bytes"].as_u64() < Some(20_000),
        "no file changed: {again}"
    );
    let held = here.must(&["checkpoint", "ls", "ada"])?.out();
    assert!(held.contains("replicated"), "{held}");

    let there = World::new("pull")?;
    there.must(&["pull", "ada", "--store", &store])?;
    let (ours, theirs) = (events(&here)?, events(&there)?);
    assert_eq!(
        ours[..ours.len()],
        theirs[..ours.len()],
        "the same journal up to the push"
    );
    assert!(
        theirs[ours.len()].1.contains(r#""kind":"pulled""#),
        "{:?}",
        theirs[ours.len()]
    );
    assert_eq!(there.sh("ada", TOLD)?.out(), told);
    for (id, stream) in [("one", "stdout"), ("one", "stderr"), ("left", "stdout")] {
        let read = |world: &World| world.must(&["read", "ada", id, "--stream", stream]);
        assert_eq!(read(&here)?.out(), read(&there)?.out(), "{id} {stream}");
    }
    assert_eq!(op(&there, "one")?["exit_code"], 0);
    // The same id is the same operation, and is not run again.
    let same = there.must(&[
        "exec",
        "ada",
        "--op",
        "one",
        "--",
        "sh",
        "-c",
        "seq 20000; echo oops >&2; echo 1 > gone",
    ])?;
    assert_eq!(same.out().lines().count(), 20_000);
    there.must(&["rewind", "ada", "--to", "early"])?;
    assert_eq!(
        there
            .sh("ada", "cat gone; ls f 2>&1 | grep -c cannot")?
            .out(),
        "1\n1\n"
    );

    // Both went on from one push: the second to push is told.
    push(&there, &store)?;
    here.sh("ada", "echo here > f2")?;
    let refused = here.run(&["push", "ada", "--store", &store])?;
    assert_eq!(refused.code, Some(125));
    assert!(
        refused
            .err()
            .contains("is not an earlier state of this sandbox"),
        "{}",
        refused.err()
    );
    here.must(&["push", "ada", "--store", &store, "--as", "ada-here"])?;
    let listed = here.must(&["store", "ls", "--store", &store])?.out();
    assert!(
        listed.contains("ada  at") && listed.contains("ada-here  at"),
        "{listed}"
    );
    let taken = there.run(&["pull", "ada", "--store", &store])?;
    assert!(
        taken.err().contains("`ada` exists already"),
        "{}",
        taken.err()
    );
    there.must(&["pull", "ada", "--store", &store, "--name", "ada-2"])?;
    there.end_clean()?;
    here.end_clean()
}

#[test]
fn what_was_running_is_lost_where_it_is_pulled_and_is_not_run_again() -> Res<()> {
    let here = world("push-running")?;
    let store = store(&here);
    let running = here.start(&[
        "exec",
        "ada",
        "--op",
        "long",
        "--",
        "sh",
        "-c",
        "echo x >> f; sleep 600",
    ])?;
    crate::support::until("it runs", || {
        here.sh("ada", "cat f")
            .is_ok_and(|done| done.out() == "x\n")
    })?;
    push(&here, &store)?;
    let there = World::new("pull-running")?;
    there.must(&["pull", "ada", "--store", &store])?;
    assert_eq!(op(&there, "long")?["outcome"], "lost");
    let again = there.run(&[
        "exec",
        "ada",
        "--op",
        "long",
        "--",
        "sh",
        "-c",
        "echo x >> f; sleep 600",
    ])?;
    assert_eq!(again.code, Some(123), "{}", again.err());
    assert_eq!(there.sh("ada", "cat f")?.out(), "x\n");
    there.end_clean()?;
    drop(running);
    here.end_clean()
}

#[test]
fn a_daemon_killed_in_a_push_or_a_pull_leaves_it_done_or_not_done() -> Res<()> {
    for point in ["before_push_commit", "after_push_commit", "after_push_ref"] {
        let here = World::new(point)?.with_points()?;
        here.create("ada", &[])?;
        let store = store(&here);
        here.sh(
            "ada",
            "head -c 3000000 /dev/urandom > big; sha256sum big > sum; echo 1 > f",
        )?;
        let hit = here.points()?.arm(&[point], 0);
        let pushing = here.start(&["push", "ada", "--store", &store])?;
        let at = hit.recv_timeout(Duration::from_secs(30))?;
        process::kill(here.daemon().ok_or_else(|| trouble("no daemon"))?);
        here.points()?.disarm();
        drop(at);
        assert_ne!(pushing.finish()?.code, Some(0));
        let after = push(&here, &store)?;
        if point == "after_push_commit" {
            assert!(
                after["new_bytes"].as_u64() < Some(100_000),
                "what was pushed is found: {after}"
            );
        }
        let there = World::new("pull-after-kill")?;
        there.must(&["pull", "ada", "--store", &store])?;
        assert_eq!(
            there.sh("ada", "sha256sum -c sum; cat f")?.out(),
            "big: OK\n1\n"
        );
        there.end_clean()?;
        here.end_clean()?;
    }
    let here = world("to-pull")?;
    let store = store(&here);
    here.sh("ada", "echo 1 > f")?;
    push(&here, &store)?;
    for point in ["mid_pull", "before_pulled"] {
        let there = World::new(point)?.with_points()?;
        there.create("other", &[])?;
        let hit = there.points()?.arm(&[point], 0);
        let pulling = there.start(&["pull", "ada", "--store", &store])?;
        let at = hit.recv_timeout(Duration::from_secs(30))?;
        process::kill(there.daemon().ok_or_else(|| trouble("no daemon"))?);
        there.points()?.disarm();
        drop(at);
        assert_ne!(pulling.finish()?.code, Some(0));
        let listed = there.must(&["ps"])?.out();
        assert!(!listed.contains("ada"), "{point}: {listed}");
        there.must(&["pull", "ada", "--store", &store])?;
        assert_eq!(there.sh("ada", "cat f")?.out(), "1\n");
        there.end_clean()?;
    }
    here.end_clean()
}

#[test]
fn damage_in_a_store_is_named_and_nothing_is_half_pulled() -> Res<()> {
    let here = world("damage")?;
    let store = store(&here);
    here.sh("ada", "head -c 200000 /dev/urandom > precious")?;
    push(&here, &store)?;
    let whole = here.must(&["store", "verify", "--store", &store])?;
    assert!(whole.out().contains(" 0 damaged"), "{}", whole.out());
    let pack = biggest(&Path::new(&store).join("packs"))?;
    let mut bytes = fs::read(&pack)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&pack, bytes)?;
    let told = here.run(&["store", "verify", "--store", &store])?;
    assert_eq!(told.code, Some(1));
    assert!(told.out().contains("precious"), "{}", told.out());
    // Damage in one sandbox hides no other, and nothing is taken away beside a snapshot that is gone.
    here.create("bob", &[])?;
    here.sh("bob", "echo b > f")?;
    here.must(&["push", "bob", "--store", &store])?;
    let there = World::new("damaged-pull")?;
    let refused = there.run(&["pull", "ada", "--store", &store])?;
    assert_eq!(refused.code, Some(125));
    assert!(
        refused.err().contains("precious") && refused.err().contains("chunk"),
        "{}",
        refused.err()
    );
    assert!(!there.must(&["ps"])?.out().contains("ada"));
    // What is damaged is forgotten, and written anew from where it lives.
    let repaired = here.run(&["store", "verify", "--repair", "--store", &store])?;
    assert_eq!(repaired.code, Some(1));
    push(&here, &store)?;
    here.must(&["push", "bob", "--store", &store])?;
    let whole = here.must(&["store", "verify", "--store", &store])?;
    assert!(whole.out().contains(" 0 damaged"), "{}", whole.out());
    there.must(&["pull", "ada", "--store", &store])?;
    assert_eq!(there.sh("ada", "wc -c < precious")?.out(), "200000\n");
    fs::write(newest(&Path::new(&store).join("refs/s.ada"))?, "garbage")?;
    let listed = here.run(&["store", "ls", "--store", &store])?;
    assert_eq!(listed.code, Some(125));
    assert!(listed.out().contains("bob"), "{}", listed.out());
    here.must(&["store", "rm", "ada", "--store", &store])?;
    here.must(&["store", "ls", "--store", &store])?;
    push(&here, &store)?;
    fs::remove_file(newest(&Path::new(&store).join("snapshots"))?)?;
    let kept = here.run(&["store", "gc", "--grace", "0", "--store", &store])?;
    assert!(
        kept.err().contains("ref s.ada points to it"),
        "{}",
        kept.err()
    );
    push(&here, &store)?;
    here.must(&["store", "gc", "--grace", "0", "--store", &store])?;
    there.must(&["pull", "ada", "--store", &store, "--name", "again"])?;
    there.end_clean()?;
    here.end_clean()
}

fn newest(dir: &Path) -> Res<PathBuf> {
    let all = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let newest = all.max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok());
    newest.ok_or_else(|| trouble(format!("{} is empty", dir.display())))
}

fn biggest(dir: &Path) -> Res<PathBuf> {
    let mut all = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
            } else {
                all.push((entry.metadata()?.len(), entry.path()));
            }
        }
    }
    let last = all.into_iter().max().ok_or_else(|| trouble("no packs"))?;
    Ok(last.1)
}

#[test]
fn an_encrypted_store_tells_nobody_anything_without_its_key() -> Res<()> {
    let here = world("encrypted")?;
    let store = store(&here);
    let (key, other) = (here.root().join("key"), here.root().join("other"));
    let (key, other) = (key.display().to_string(), other.display().to_string());
    for file in [&key, &other] {
        here.must(&["store", "keygen", file])?;
    }
    assert_ne!(
        here.run(&["store", "keygen", &key])?.code,
        Some(0),
        "a key is never written over"
    );
    here.sh("ada", "echo very-secret-plan > very-secret-name")?;
    here.must(&["push", "ada", "--store", &store, "--key", &key])?;
    let mut dirs = vec![PathBuf::from(&store)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
                continue;
            }
            let bytes = fs::read(entry.path())?;
            let found = bytes.windows(11).any(|window| window == b"very-secret");
            assert!(!found, "{} tells", entry.path().display());
        }
    }
    let there = World::new("decrypted")?;
    let device = there.run(&["pull", "ada", "--store", &store, "--key", "/dev/zero"])?;
    assert!(
        device.err().contains("is no small file"),
        "{}",
        device.err()
    );
    for (more, told) in [
        (vec![], "no key was given"),
        (vec!["--key", &*other], "does not open"),
    ] {
        let args = [vec!["pull", "ada", "--store", &*store], more].concat();
        let refused = there.run(&args)?;
        assert_eq!(refused.code, Some(125));
        assert!(refused.err().contains(told), "{}", refused.err());
    }
    there.must(&["pull", "ada", "--store", &store, "--key", &key])?;
    assert_eq!(
        there.sh("ada", "cat very-secret-name")?.out(),
        "very-secret-plan\n"
    );
    there.end_clean()?;
    here.end_clean()
}

#[test]
fn a_replicated_operation_is_in_the_store_when_it_is_told() -> Res<()> {
    let here = World::new("replicate")?;
    let store = store(&here);
    here.must(&["create", "ada", "--replicate", &store])?;
    let there = World::new("replica")?;
    for round in 1..=3 {
        let id = format!("op{round}");
        let script = format!("echo {round} >> f; echo out-{round}");
        here.must(&["exec", "ada", "--op", &id, "--", "sh", "-c", &script])?;
        // The machine could be lost now.
        let name = format!("r{round}");
        there.must(&["pull", "ada", "--store", &store, "--name", &name])?;
        let lines = there.must(&["exec", &name, "--", "wc", "-l", "f"])?.out();
        assert_eq!(lines, format!("{round} f\n"));
        let op = there.json(&["op", &name, &id, "--json"])?;
        assert_eq!(op["outcome"], "exited");
        let printed = there
            .must(&["read", &name, &id, "--stream", "stdout"])?
            .out();
        assert_eq!(printed, format!("out-{round}\n"));
    }
    // An operation that runs is known there too: nobody takes it for one that never was.
    let running = here.start(&[
        "exec",
        "ada",
        "--op",
        "long",
        "--",
        "sh",
        "-c",
        "echo begun; sleep 600",
    ])?;
    assert!(running.wait_out(6, Duration::from_secs(30)));
    there.must(&["pull", "ada", "--store", &store])?;
    assert_eq!(op(&there, "long")?["outcome"], "lost");
    // It goes on there. Here nothing is told any more.
    there.sh("ada", "echo there >> f")?;
    there.must(&["push", "ada", "--store", &store])?;
    let fenced = here.run(&["exec", "ada", "--op", "late", "--", "true"])?;
    assert_ne!(fenced.code, Some(0));
    let view = here.must(&["ps", "--json"])?.out();
    assert!(
        view.contains("is not an earlier state of this sandbox"),
        "{view}"
    );
    // What is here is not lost: it can be saved under another name.
    here.must(&["push", "ada", "--store", &store, "--as", "overtaken"])?;
    assert_eq!(there.sh("ada", "tail -1 f")?.out(), "there\n");
    drop(running);
    there.end_clean()?;
    here.end_clean()
}

#[test]
fn a_collection_gives_back_what_was_taken_out_and_nothing_else() -> Res<()> {
    let here = world("collect")?;
    let store = store(&here);
    here.create("bob", &[])?;
    here.sh("ada", "head -c 5000000 /dev/urandom > a; echo kept > f")?;
    here.sh("bob", "head -c 4000000 /dev/urandom > b")?;
    push(&here, &store)?;
    here.must(&["push", "bob", "--store", &store])?;
    here.must(&["store", "rm", "bob", "--store", &store])?;
    let young = here.json(&["store", "gc", "--store", &store, "--json"])?;
    assert_eq!(young["freed_bytes"], 0, "a push may need it: {young}");
    let freed = here.json(&["store", "gc", "--store", &store, "--grace", "0", "--json"])?;
    assert!(freed["freed_bytes"].as_u64() > Some(3_900_000), "{freed}");
    let whole = here.must(&["store", "verify", "--store", &store])?;
    assert!(whole.out().contains(" 0 damaged"), "{}", whole.out());
    here.sh("ada", "echo more >> f")?;
    push(&here, &store)?;
    let there = World::new("collected")?;
    there.must(&["pull", "ada", "--store", &store])?;
    assert_eq!(
        there.sh("ada", "cat f; wc -c < a")?.out(),
        "kept\nmore\n5000000\n"
    );
    let gone = there.run(&["pull", "bob", "--store", &store])?;
    assert!(
        gone.err().contains("the store has no sandbox `bob`"),
        "{}",
        gone.err()
    );
    let empty = there.root().join("empty");
    fs::create_dir(&empty)?;
    let path = empty.display().to_string();
    let nothing = there.run(&["pull", "ada", "--name", "x", "--store", &path])?;
    assert!(
        nothing.err().contains("there is no blob store"),
        "{}",
        nothing.err()
    );
    assert_eq!(fs::read_dir(&empty)?.count(), 0, "looking makes no store");
    let none = there.run(&["store", "ls", "--store", "/nowhere/at/all"])?;
    assert!(
        none.err().contains("there is no blob store"),
        "{}",
        none.err()
    );
    there.end_clean()?;
    here.end_clean()
}
