//! What README shows under "Using it" works as written there.

use std::os::unix::fs::symlink;

use system_tests::{Res, World, trouble, world};

/// The commands, without the comments behind them.
fn commands() -> Res<Vec<String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let text = std::fs::read_to_string(path)?;
    let (_, rest) = text
        .split_once("## Using it\n")
        .ok_or_else(|| trouble("README has no section `Using it`"))?;
    let section = rest.split("\n## ").next().unwrap_or_default();
    let lines = section.lines().filter_map(|line| line.strip_prefix("    "));
    Ok(lines
        .filter(|line| line.starts_with("durable "))
        .map(|line| {
            line.split(" # ")
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned()
        })
        .collect())
}

#[test]
fn its_commands_work_as_written() -> Res<()> {
    let world = World::new("readme")?;
    let bin = world.root().join("bin");
    let here = world.root().join("here");
    for dir in [&bin, &here] {
        std::fs::create_dir(dir)?;
    }
    symlink(world::binary()?, bin.join("durable"))?;
    std::fs::write(
        here.join("Makefile"),
        "all:\n\techo built >> log\ntest:\n\techo tested >> log\n",
    )?;
    std::fs::write(here.join("token.txt"), "ghp_of_a_test\n")?;
    std::fs::write(
        here.join("policy.toml"),
        "[[rule]]\nname = \"app\"\naction = \"allow\"\nhosts = [\"github.com\"]\npaths = [\"/acme/**\"]\n",
    )?;
    std::fs::create_dir(here.join("fixes"))?;
    std::fs::write(here.join("fixes/one.sh"), "#!/bin/sh\necho fixed > fix\n")?;
    let shell = |line: &str| -> Res<String> {
        let mut command = world.command(["ps"]);
        let mut sh = std::process::Command::new("bash");
        let path = format!("{}:/usr/bin:/bin", bin.display());
        sh.args(["-ec", line]).env_clear().current_dir(&here);
        for (name, value) in command.env("PATH", path).get_envs() {
            if let Some(value) = value {
                sh.env(name, value);
            }
        }
        let done = system_tests::run::run(sh)?.ok();
        Ok(done.map_err(|e| trouble(format!("{line}: {e}")))?.out())
    };
    let commands = commands()?;
    let (mut ran, mut left_out) = (0, Vec::new());
    for line in &commands {
        let needs_network = [
            "durable harness ",
            "durable run ",
            "durable fork ada --flush ",
            "durable create bob --image oci:",
            "durable create eve --replicate s3:",
        ];
        if needs_network.iter().any(|start| line.starts_with(start)) {
            left_out.push(line);
            continue;
        }
        // A watch goes on until it is interrupted.
        let line = match line.starts_with("durable watch ") {
            true => format!("timeout 2 {line} || test $? = 124"),
            false => line.clone(),
        };
        shell(&line)?;
        ran += 1;
        if line.starts_with("durable create ada") {
            shell("durable cp Makefile ada:/workspace/")?;
        }
    }
    assert!(ran >= 7, "{commands:?}");
    assert_eq!(left_out.len(), 5, "{left_out:?} need a key or the network");
    // The second exec with the same id ran nothing; the files came out.
    assert_eq!(
        std::fs::read_to_string(here.join("result/log"))?,
        "built\ntested\n"
    );
    let doctor = shell("durable doctor --json")?;
    assert!(
        doctor
            .lines()
            .all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()),
        "{doctor}"
    );
    world.end_clean()
}
