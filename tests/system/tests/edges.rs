//! Failures that are told with what to do, and what they leave.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use system_tests::{Res, World, process, run, trouble};

use crate::support::{until, world};

#[test]
fn a_copy_that_finds_no_room_leaves_no_half_and_says_why() -> Res<()> {
    let world = world("edge-room")?;
    world
        .sh(
            "ada",
            "mkdir d && echo small > d/a && head -c 3000000 /dev/urandom > d/b",
        )?
        .ok()?;
    let out = world.root().join("out");
    std::fs::create_dir(&out)?;
    std::fs::write(out.join("b"), "the old one")?;
    // A file may not grow over 1 MiB: what a full disk says, without one.
    let copy = |to: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 1024; exec \"$0\" cp ada:/workspace/d {to}");
        let mut command = std::process::Command::new("bash");
        let durable = world.command(["ps"]);
        command.arg("-c").arg(script).arg(durable.get_program());
        command.env_clear().current_dir(world.root());
        for (name, value) in durable.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        run::run(command)
    };
    let done = copy("out")?;
    assert_eq!(done.code, Some(125), "{}", done.err());
    for word in ["out/b", "too large"] {
        assert!(done.err().contains(word), "{}", done.err());
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&out)? {
        names.push(entry?.file_name());
    }
    // Which of the two comes first is not said.
    names.retain(|name| name != "a");
    assert_eq!(names, ["b"], "nothing half");
    assert_eq!(std::fs::read_to_string(out.join("b"))?, "the old one");
    world.end_clean()
}

#[test]
fn what_goes_wrong_is_told_with_a_remedy() -> Res<()> {
    let world = world("edge-words")?;
    world.sh("ada", "printf 12345 > five; : > empty")?.ok()?;
    let root = world.root().to_owned();
    std::fs::write(root.join("file"), "")?;
    for (args, what, remedy) in [
        (
            &["ls", "ada", "nowhere"][..],
            "nowhere",
            "durable ls NAME DIRECTORY",
        ),
        (
            &["cat", "ada", "nowhere"],
            "nowhere",
            "durable ls NAME DIRECTORY",
        ),
        (
            &["watch", "ada", "nowhere"],
            "nowhere",
            "durable ls NAME DIRECTORY",
        ),
        (
            &["cat", "ada", "five", "--range", "7-9"],
            "5 bytes",
            "from 0 to 4",
        ),
        (
            &["cat", "ada", "empty", "--range", "0-9"],
            "0 bytes",
            "it is empty",
        ),
        (&["fork", "ada", "--count", "0"], "--count 0", "1 or more"),
        (
            &["fork", "ada", "--count", "100000"],
            "more than 1000 forks",
            "1000 at most",
        ),
        (
            &["store", "ls", "--store", "file"],
            "is no directory",
            "give a directory",
        ),
        (
            &["push", "ada", "--store", "file"],
            "is no directory",
            "give a directory",
        ),
        (
            &["store", "keygen", "no/where"],
            "no/where",
            "make its directory first",
        ),
        (&["store", "keygen", "file"], "file", "never written over"),
        (
            &["store", "ls", "--store", ""],
            "is empty",
            "give a directory",
        ),
    ] {
        let done = world.run(args)?;
        let said = done.err();
        assert_eq!(done.code, Some(125), "{args:?}: {said}");
        let hint = said.split_once("(hint: ").map(|(_, hint)| hint.to_owned());
        let helps = hint.is_some_and(|hint| hint.contains(remedy));
        assert!(said.contains(what) && helps, "{args:?}: {said}");
    }
    for (command, words) in [
        ("create", "oci:REF"),
        ("create", "docker-archive:FILE"),
        ("cp", "are made"),
    ] {
        let help = world.must(&[command, "--help"])?.out();
        assert!(help.contains(words), "{command} --help lacks {words}");
    }
    world.end_clean()
}

#[test]
fn what_can_be_removed_is_and_the_rest_is_told() -> Res<()> {
    let world = world("edge-rm")?;
    for name in ["bob", "kim"] {
        world.create(name, &[])?;
    }
    world.must(&["exec", "bob", "-d", "--", "sleep", "600"])?;
    let done = world.run(&["rm", "ada", "Ghost", "bob", "gone", "kim"])?;
    assert_eq!(done.code, Some(125));
    let said = done.err();
    let errors: Vec<&str> = said.lines().filter(|l| l.starts_with("error[")).collect();
    assert_eq!(errors.len(), 3, "{said}");
    for (error, word) in errors
        .iter()
        .zip(["Ghost", "operations run in sandbox `bob`", "gone"])
    {
        assert!(error.contains(word), "{said}");
    }
    let left = world.json(&["ps", "--json"])?;
    assert_eq!(left["name"], "bob");
    world.must(&["rm", "--force", "bob"])?;
    world.end_clean()
}

#[test]
fn settings_that_an_existing_sandbox_does_not_have_are_refused() -> Res<()> {
    let world = World::new("edge-settings")?;
    world.create("ada", &["--memory", "256M", "--sandbox-env", "A=1"])?;
    let run = |more: &[&str]| {
        let mut args = vec!["run", "--name", "ada"];
        args.extend(more);
        args.extend(["--", "sh", "-c", "echo ran"]);
        world.run(&args)
    };
    for more in [
        &[][..],
        &["--memory", "256M"],
        &["--memory", "262144k", "--image", "host", "--pids", "4096"],
        &["--sandbox-env", "A=1", "--on-crash", "keep"],
    ] {
        let done = run(more)?;
        assert_eq!(done.out(), "ran\n", "{more:?}: {}", done.err());
    }
    let told = run(&["--dir", "."])?;
    assert!(
        told.err().contains("not copied into it again"),
        "{}",
        told.err()
    );
    let before = world.must(&["ps", "ada", "--json"])?.out();
    for (more, words) in [
        (&["--memory", "1G"][..], "--memory is 256M, not 1G"),
        (&["--cpus", "1.5"], "--cpus is none, not 1.5"),
        (&["--image", "dir:/usr"], "--image is host, not dir:/usr"),
        (
            &["--on-crash", "rollback"],
            "--on-crash is keep, not rollback",
        ),
        (&["--replicate", "store"], "--replicate is none, not /"),
        (&["--sandbox-env", "A=2"], "--sandbox-env A is another"),
        (
            &["--pids", "100", "--spool", "1G"],
            "--pids is 4096, not 100; --spool is 16G, not 1G",
        ),
    ] {
        let done = run(more)?;
        assert_eq!(done.code, Some(125), "{more:?}: {}", done.out());
        assert!(done.err().contains(words), "{more:?}: {}", done.err());
    }
    assert_eq!(
        world.must(&["ps", "ada", "--json"])?.out(),
        before,
        "nothing ran"
    );
    world.end_clean()
}

/// Once a client whose daemon was killed while it started failed, and others waited for a time.
#[test]
fn a_daemon_that_is_killed_while_it_starts_costs_its_clients_nothing() -> Res<()> {
    let world = World::new("edge-start")?.with_points()?;
    let hit = world.points()?.arm(&["before_serving"], 0);
    let one = world.start(&["create", "one"])?;
    let at = hit.recv_timeout(Duration::from_secs(30))?;
    let others = [world.start(&["create", "two"])?, world.start(&["ps"])?];
    until("they wait for the first daemon", || {
        let pids = world.marks().processes().into_iter();
        let serving = pids.filter(|pid| {
            String::from_utf8_lossy(&process::file(*pid, "cmdline")).contains("--announce")
        });
        serving.count() == 3
    })?;
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    drop(at);
    for client in std::iter::once(one).chain(others) {
        client.finish()?.ok()?;
    }
    for name in ["one", "two"] {
        assert_eq!(world.sh(name, "echo runs")?.ok()?.out(), "runs\n");
    }
    world.end_clean()
}

#[test]
fn a_key_file_holds_one_key_that_nobody_else_can_read() -> Res<()> {
    let world = world("edge-key")?;
    world.sh("ada", "echo 1 > f")?.ok()?;
    let path = |name: &str| world.root().join(name);
    for name in ["one", "two"] {
        world.must(&["store", "keygen", name])?;
    }
    let both = std::fs::read_to_string(path("one"))? + &std::fs::read_to_string(path("two"))?;
    std::fs::write(path("both"), both)?;
    std::fs::set_permissions(path("both"), std::fs::Permissions::from_mode(0o600))?;
    std::fs::copy(path("one"), path("open"))?;
    std::fs::set_permissions(path("open"), std::fs::Permissions::from_mode(0o644))?;
    for (key, why, remedy) in [
        ("both", "it holds 2 lines", "an age identity"),
        (
            "open",
            "open to other users of this machine (mode 0644)",
            "chmod 600",
        ),
    ] {
        let done = world.run(&["push", "ada", "--store", "store", "--key", key])?;
        assert_eq!(done.code, Some(125));
        assert!(
            done.err().contains(why) && done.err().contains(remedy),
            "{}",
            done.err()
        );
        assert!(
            !path("store").join("config").exists(),
            "nothing was made with it"
        );
    }
    world.must(&["push", "ada", "--store", "store", "--key", "one"])?;
    // An empty variable is as none.
    let mut command = world.command(["push", "ada", "--store", "plain"]);
    command.env("DURABLE_STORE_KEY", "");
    run::run(command)?.ok()?;
    world.must(&["store", "verify", "--store", "plain"])?;
    world.end_clean()
}

#[test]
fn a_listing_goes_on_past_what_it_may_not_see() -> Res<()> {
    let world = world("edge-ls")?;
    world
        .sh("ada", "mkdir -p t/a/hidden t/b t/c/hidden && touch t/b/x t/d && chmod 700 t/a/hidden t/c/hidden")?
        .ok()?;
    let done = world.run(&["ls", "ada", "t", "-R", "--user", "65534", "--json"])?;
    assert_eq!(done.code, Some(1), "{}", done.err());
    for name in ["a/hidden", "b/x", "c/hidden", "\"d\""] {
        assert!(done.out().contains(name), "no {name} in {}", done.out());
    }
    let said = done.err();
    for word in ["t/a/hidden", "(and 1 more like it)", "permission denied"] {
        assert!(said.contains(word), "{said}");
    }
    // All of a whole machine, with processes that come and go.
    let all = world.run(&["ls", "ada", "/", "-R"])?;
    assert!(
        matches!(all.code, Some(0 | 1)),
        "{:?}: {}",
        all.code,
        all.err()
    );
    assert!(
        all.out().contains(" workspace/t/b/x"),
        "it stopped early: {}",
        all.err()
    );
    world.end_clean()
}

#[test]
fn what_a_killed_write_left_goes_with_the_next_one() -> Res<()> {
    let world = world("edge-stale")?;
    let mut api = world.api()?;
    let url = "/v1/sandboxes/ada/files?path=/workspace/kept/file&parents=true";
    api.send("PUT", url, b"one")?.json()?;
    // A process that is gone, and one that lives.
    let made = world.sh("ada", "cd kept; sh -c 'echo $$' > /tmp/gone; touch .file.durable-$(cat /tmp/gone) .other.durable-1 .mine")?;
    made.ok()?;
    api.send("PUT", url, b"two")?.json()?;
    let left = world.sh("ada", "ls -A kept; cat kept/file")?.ok()?.out();
    assert_eq!(left, ".mine\n.other.durable-1\nfile\ntwo");
    drop(api);
    world.end_clean()
}

#[test]
fn a_sandbox_that_went_on_elsewhere_is_looked_at_and_forked_but_not_changed() -> Res<()> {
    let here = World::new("edge-here")?;
    let store = here.root().join("store").display().to_string();
    here.create("ada", &["--replicate", &store])?;
    here.sh("ada", "echo here > f; mkdir d")?.ok()?;
    let running = here.start(&[
        "exec",
        "ada",
        "--op",
        "runs",
        "--",
        "sh",
        "-c",
        "echo begun; sleep 600",
    ])?;
    assert!(running.wait_out(6, Duration::from_secs(30)));
    let there = World::new("edge-there")?;
    there.must(&["pull", "ada", "--store", &store])?;
    there.sh("ada", "echo there >> f")?.ok()?;
    there.must(&["push", "ada", "--store", &store])?;
    let fenced = here.run(&["exec", "ada", "--", "touch", "g"])?;
    assert_ne!(fenced.code, Some(0), "{}", fenced.out());

    assert_eq!(here.must(&["cat", "ada", "f"])?.out(), "here\n");
    assert!(
        here.must(&["ls", "ada", "/workspace"])?
            .out()
            .contains(" d\n")
    );
    let changed = here.must(&["diff", "ada@start", "ada"])?.out();
    assert!(changed.contains("workspace/f"), "{changed}");
    here.must(&["fork", "ada", "--name", "saved"])?;
    assert_eq!(
        here.sh("saved", "cat f; touch g; ls")?.ok()?.out(),
        "here\nd\nf\ng\n"
    );
    for args in [
        &["exec", "ada", "--", "true"][..],
        &["checkpoint", "ada"],
        &["checkpoint", "ada", "--label", "x"],
        &["compose", "saved", "ada"],
        &["rewind", "ada", "--to", "start"],
    ] {
        let done = here.run(args)?;
        assert_eq!(done.code, Some(125), "{args:?}: {}", done.out());
        assert!(
            done.err().contains("is not an earlier state"),
            "{args:?}: {}",
            done.err()
        );
    }
    let kept = here.run(&["rm", "ada"])?;
    assert_eq!(kept.code, Some(125));
    for word in [
        "is not an earlier state",
        "have no known end",
        "--as OTHER",
        "--force",
    ] {
        assert!(kept.err().contains(word), "{}", kept.err());
    }
    here.must(&["rm", "ada", "--force"])?;
    drop(running);
    there.end_clean()?;
    here.end_clean()
}

/// One whose client has gone away goes on beside the next one, and is not somebody else's.
#[test]
fn pushes_of_one_sandbox_side_by_side_all_come_to_their_end() -> Res<()> {
    let world = world("edge-push")?;
    let store = world.root().join("store").display().to_string();
    for round in 0..5 {
        world.sh("ada", &format!("echo {round} > f"))?.ok()?;
        let push = || world.start(&["push", "ada", "--store", &store]);
        let pushes = [push()?, push()?, push()?];
        for push in pushes {
            let done = push.finish()?;
            assert_eq!(done.code, Some(0), "round {round}: {}", done.err());
        }
    }
    let whole = world.must(&["store", "verify", "--store", &store])?;
    assert!(whole.out().contains(" 0 damaged"), "{}", whole.out());
    world.end_clean()
}
