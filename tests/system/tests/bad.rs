//! Bad input: one line that names the thing, exit code 125, and nothing half made.

use std::process::Command;

use serde_json::Value;
use system_tests::{Done, Res, World, run, trouble};

use crate::is_root;

/// Checks the one line of an error, and that JSON says the same.
fn refused(world: &World, args: &[&str], names: &str, code: &str) -> Res<()> {
    let done = world.run(args)?;
    let said = one_line(&done, args)?;
    if !said.contains(names) {
        return Err(trouble(format!("{args:?}: `{names}` is not named: {said}")));
    }
    let mut with_json = vec!["--json"];
    with_json.extend(args);
    let done = world.run(&with_json)?;
    let line = one_line(&done, &with_json)?;
    let error: Value = serde_json::from_str(&line)
        .map_err(|e| trouble(format!("{with_json:?}: no JSON ({e}): {line}")))?;
    let error = &error["error"];
    let whole = error["message"].as_str().is_some_and(|m| m.contains(names));
    if error["code"] != code || !whole {
        return Err(trouble(format!(
            "{with_json:?}: wanted {code}, {names}: {line}"
        )));
    }
    Ok(())
}

fn one_line(done: &Done, args: &[&str]) -> Res<String> {
    let said = done.err();
    if done.code != Some(125) || said.lines().count() != 1 || !done.stdout.is_empty() {
        return Err(trouble(format!(
            "{args:?}: ended with {:?}, stdout {:?}, stderr: {said}",
            done.code,
            done.out()
        )));
    }
    Ok(said)
}

/// Everything that a refused request could have left.
fn traces(world: &World) -> Res<(String, usize, usize)> {
    let list = world.must(&["ps"])?.out();
    let rows = system_tests::journal::read(world.data(), "a")?.len();
    let states = std::fs::read_dir(world.data().join("sandboxes"))?.count();
    Ok((list, rows, states))
}

#[test]
fn what_is_not_there_is_named_and_nothing_is_made() -> Res<()> {
    let world = World::new("bad")?;
    world.create("a", &[])?;
    world.must(&["exec", "a", "--op", "used", "--", "true"])?;
    let before = traces(&world)?;
    for args in [
        &["exec", "ghost", "--", "true"][..],
        &["attach", "ghost"],
        &["log", "ghost"],
        &["ps", "ghost"],
        &["stop", "ghost"],
        &["rm", "ghost"],
        &["op", "ghost", "x"],
        &["read", "ghost", "x"],
        &["cp", "ghost:/etc/passwd", "/tmp/never"],
    ] {
        refused(&world, args, "ghost", "not_found")?;
    }
    for args in [
        &["op", "a", "nope"][..],
        &["read", "a", "nope"],
        &["attach", "a", "nope"],
        &["op", "a", "nope", "--cancel"],
    ] {
        refused(&world, args, "nope", "not_found")?;
    }
    for (image, names) in [
        ("dir:/no/such/root", "/no/such/root"),
        ("dir:/etc/passwd", "/etc/passwd"),
        ("docker.io/debian", "docker.io/debian"),
        ("", "image"),
    ] {
        refused(
            &world,
            &["create", "new", "--image", image],
            names,
            "invalid",
        )?;
    }
    refused(&world, &["create", "a"], "a", "conflict")?;
    for name in ["", "A", "a b", "../x", "a/b", "é", ".a", &"x".repeat(64)] {
        let shown: String = name.chars().take(20).collect();
        refused(&world, &["create", name], &shown, "invalid")?;
        refused(&world, &["exec", name, "--", "true"], &shown, "invalid")?;
    }
    for op in ["", "a b", "a/b", "..", "a\nb", &"x".repeat(300)] {
        refused(
            &world,
            &["exec", "a", "--op", op, "--", "true"],
            "operation id",
            "invalid",
        )?;
    }
    let exec = |more: &[&str]| -> Vec<String> {
        let args = ["exec", "a"].iter().chain(more);
        args.map(|s| (*s).to_owned()).collect()
    };
    for (more, names, code) in [
        (&["--op", "used", "--", "false"][..], "used", "conflict"),
        (&["--cwd", "/no/dir", "--", "true"], "/no/dir", "invalid"),
        (&["--cwd", "relative", "--", "true"], "relative", "invalid"),
        (
            &["--user", "nosuchuser", "--", "true"],
            "nosuchuser",
            "invalid",
        ),
        (&["--", "no-such-program"], "no-such-program", "invalid"),
        (&["--", "/no/such/program"], "/no/such/program", "invalid"),
        (&["--", "/etc"], "/etc", "invalid"),
        (&["--", ""], "command", "invalid"),
    ] {
        let args = exec(more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refused(&world, &args, names, code)?;
    }
    let run = ["run", "--name", "new"];
    for (more, names) in [
        (
            &["--model-key-env", "NO_SUCH_VARIABLE", "--", "claude"][..],
            "NO_SUCH_VARIABLE",
        ),
        (&["--dir", "/no/such/dir", "--", "true"], "/no/such/dir"),
        (
            &[
                "--model-url",
                "ftp://x",
                "--model-api",
                "openai",
                "--model",
                "m",
                "--",
                "pi",
                "-p",
                "x",
            ],
            "ftp://x",
        ),
    ] {
        let args: Vec<&str> = run.iter().chain(more).copied().collect();
        refused(&world, &args, names, "invalid")?;
    }
    assert_eq!(traces(&world)?, before, "a refused request left something");
    world.end_clean()
}

#[test]
fn a_command_line_that_lacks_something_says_what_in_json_too() -> Res<()> {
    let world = World::new("line")?;
    for (args, names) in [
        (&["--json", "exec"][..], "<NAME>"),
        (&["--json", "read", "a"], "<ID>"),
        (&["--json", "frobnicate"], "frobnicate"),
        (
            &["--json", "exec", "a", "--timeout", "soon", "--", "true"],
            "soon",
        ),
    ] {
        let line = one_line(&world.run(args)?, args)?;
        let error: Value = serde_json::from_str(&line)?;
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(names), "{line}");
    }
    assert_eq!(world.daemon(), None, "it asked no daemon");
    Ok(())
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() -> Res<()> {
    let world = World::new("second")?;
    world.create("a", &[])?;
    let first = world.daemon().unwrap().to_string();
    refused(&world, &["serve"], &first, "conflict")?;
    assert_eq!(world.daemon().unwrap().to_string(), first);
    world.must(&["exec", "a", "--", "true"])?;
    world.end_clean()
}

#[test]
fn a_data_directory_that_cannot_serve_is_named_with_the_remedy() -> Res<()> {
    if !is_root("a_data_directory_that_cannot_serve_is_named_with_the_remedy") {
        return Ok(());
    }
    let world = World::new("place")?;
    let refused_at = |world: &World, dir: &str| -> Res<()> {
        for args in [&["--data", dir, "ps"][..], &["--data", dir, "serve"]] {
            refused(world, args, dir, "unavailable")?;
        }
        Ok(())
    };
    refused_at(&world, "/proc/durable")?;
    let file = world.root().join("file");
    std::fs::write(&file, "")?;
    refused_at(&world, file.to_str().unwrap())?;

    let other = World::of_user("rights", 54_321, 54_321)?;
    let closed = world.root().join("closed");
    std::fs::create_dir(&closed)?;
    std::os::unix::fs::chown(&closed, Some(0), Some(0))?;
    refused_at(&other, closed.to_str().unwrap())?;

    let full = world.root().join("full");
    std::fs::create_dir(&full)?;
    let mut mount = Command::new("mount");
    mount
        .args(["-t", "tmpfs", "-o", "size=128k", "none"])
        .arg(&full);
    run::run(mount)?.ok()?;
    let told = refused_at(&world, full.to_str().unwrap());
    let mut unmount = Command::new("umount");
    unmount.arg(&full);
    // Nothing of a daemon may hold it.
    let unmounted = run::run(unmount)?.ok();
    told?;
    unmounted?;
    let litter = world.marks().look();
    assert!(litter.is_clean(), "left behind: {}", litter.words());
    Ok(())
}
