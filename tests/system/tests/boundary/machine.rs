//! Section I of the list, as far as the host's own commands take part: what they touch of a sandbox's files leads them nowhere.

use std::path::Path;
use std::process::Command;

use system_tests::{Res, World, trouble};

use crate::support::{SOON, until};

const MARKER: &str = "only on the host 5d1f7a3e";

/// Swaps a directory for a link to a place of the host, as fast as it can, until it is cancelled.
const SWAP: &str = r#"
import ctypes, os, sys
os.mkdir("/workspace/d")
with open("/workspace/d/f", "w") as f:
    f.write("inside\n")
os.symlink(sys.argv[1], "/workspace/l")
libc = ctypes.CDLL(None, use_errno=True)
HERE, EXCHANGE = -100, 2
print("swapping", flush=True)
while libc.renameat2(HERE, b"/workspace/d", HERE, b"/workspace/l", EXCHANGE) == 0:
    pass
sys.exit(os.strerror(ctypes.get_errno()))
"#;

/// Files below a directory, without following links, that hold the marker.
fn holders(dir: &Path) -> Res<String> {
    let found = Command::new("grep")
        .args(["-r", "-l", "-F", MARKER])
        .arg(dir)
        .output()?;
    Ok(String::from_utf8_lossy(&found.stdout).into_owned())
}

#[test]
fn i01_a_directory_that_is_swapped_for_a_link_leads_the_host_nowhere() -> Res<()> {
    let world = World::new("swap")?;
    let outside = world.root().join("outside");
    std::fs::create_dir(&outside)?;
    std::fs::write(outside.join("f"), MARKER)?;
    let outside_text = outside.to_string_lossy().into_owned();
    world.create("a", &[])?;
    let client = world.start(&[
        "exec",
        "a",
        "--op",
        "swap",
        "--",
        "/usr/bin/python3",
        "-c",
        SWAP,
        &outside_text,
    ])?;
    assert!(client.wait_out(9, SOON), "{}", client.words());
    let given = world.root().join("given");
    std::fs::write(&given, "given\n")?;
    let given = given.to_string_lossy().into_owned();
    let taken = world.root().join("taken");
    std::fs::create_dir(&taken)?;
    let store = world.root().join("store").to_string_lossy().into_owned();
    for round in 0..8 {
        let into = taken
            .join(format!("{round}"))
            .to_string_lossy()
            .into_owned();
        // Each finds the directory or the link; whatever it says of that is right.
        let said = world.run(&["cat", "a", "/workspace/d/f"])?;
        assert!(!said.out().contains(MARKER) && !said.err().contains(MARKER));
        for args in [
            &["cp", "a:/workspace/d", &into][..],
            &["cp", &given, "a:/workspace/d/f"],
            &["cp", &given, "a:/workspace/d/g"],
            &["ls", "a", "/workspace/d", "-R"],
            &["checkpoint", "a"],
            &["push", "a", "--store", &store],
        ] {
            let said = world.run(args)?;
            assert!(!said.out().contains(MARKER), "{args:?}");
        }
    }
    // It was a race: either is seen, sooner or later.
    let seen = |as_what: &str, directory: bool| {
        until(as_what, || {
            let said = world.run(&["cat", "a", "/workspace/d/f"]);
            said.is_ok_and(|said| {
                (said.out() == "inside\n" || said.out() == "given\n") == directory
            })
        })
    };
    seen("the directory is seen", true)?;
    seen("the link is seen", false)?;
    world.must(&["op", "a", "swap", "--cancel"])?;
    drop(client);
    assert_eq!(holders(&taken)?, "");
    assert_eq!(std::fs::read_to_string(outside.join("f"))?, MARKER);
    assert_eq!(
        std::fs::read_dir(&outside)?.count(),
        1,
        "something was written on the host"
    );
    world.end_clean()
}

#[test]
fn i10_the_host_runs_nothing_that_a_sandbox_wrote() -> Res<()> {
    let world = World::new("obeys")?;
    let mark = world.root().join("ran");
    let touch = format!("touch {}", mark.display());
    world.create("a", &[])?;
    let script = format!(
        r#"mkdir -p .git/hooks .vscode .claude && cd .git && mkdir objects refs && echo 'ref: refs/heads/main' > HEAD
printf '[core]\n\tfsmonitor = {touch}\n\tsshCommand = {touch}\n\tpager = {touch}\n[diff]\n\texternal = {touch}\n' > config
for hook in pre-commit post-checkout post-merge; do printf '#!/bin/sh\n{touch}\n' > hooks/$hook; chmod 755 hooks/$hook; done
cd ..; echo '*.txt diff=evil filter=evil' > .gitattributes; printf '{touch}\n' > .envrc
printf 'all test:\n\t{touch}\n' > Makefile; echo 'one' > f.txt; ln -s /proc/self/exe exe"#
    );
    world.sh("a", &script)?.ok()?;
    world.must(&["fork", "a", "--name", "b"])?;
    world.sh("b", "echo two > f.txt; echo new > g.txt")?.ok()?;
    let out = world.root().join("out").to_string_lossy().into_owned();
    let store = world.root().join("store").to_string_lossy().into_owned();
    for args in [
        &["diff", "a", "b"][..],
        &["blame", "b", "/workspace/f.txt"],
        &["compose", "b", "a"],
        &["cp", "a:/workspace", &out],
        &["push", "a", "--store", &store],
        &["ls", "a", "/workspace", "-R"],
    ] {
        world
            .must(args)
            .map_err(|e| trouble(format!("{args:?}: {e}")))?;
    }
    assert_eq!(world.sh("a", "cat f.txt g.txt")?.out(), "two\nnew\n");
    assert!(
        !mark.exists(),
        "something of the sandbox was run on the host"
    );
    world.end_clean()
}

#[test]
fn i15_two_sandboxes_see_nothing_of_each_other() -> Res<()> {
    const THERE: &str = r#"
import signal, socket
tcp = socket.create_server(("0.0.0.0", 47391))
unix = socket.socket(socket.AF_UNIX)
unix.bind("\0durable-neighbour")
unix.listen()
for place in ["/dev/shm/neighbour", "/tmp/neighbour", "/workspace/neighbour", "/run/lock/neighbour"]:
    try:
        open(place, "w").close()
    except OSError:
        pass
print("there", flush=True)
signal.pause()
"#;
    const HERE: &str = r#"
import os, socket
def reach(family, address):
    try:
        socket.socket(family).connect(address)
        return "reached"
    except OSError as e:
        return type(e).__name__
print(reach(socket.AF_INET, ("127.0.0.1", 47391)), reach(socket.AF_UNIX, "\0durable-neighbour"))
print([place for place in ["/dev/shm", "/tmp", "/workspace", "/run/lock"] if "neighbour" in os.listdir(place)])
seen = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        seen.append(b"mark-of-" + b"there" in open(f"/proc/{pid}/cmdline", "rb").read())
    except OSError:
        pass
print(len(seen) >= 2, any(seen))
"#;
    let world = World::new("neighbours")?;
    for name in ["a", "b"] {
        world.create(name, &[])?;
    }
    let python = |name: &str, op: &str, script: &str| {
        world.start(&[
            "exec",
            name,
            "--op",
            op,
            "--",
            "/usr/bin/python3",
            "-c",
            script,
            &format!("mark-of-{op}"),
        ])
    };
    let neighbour = python("b", "there", THERE)?;
    assert!(neighbour.wait_out(6, SOON), "{}", neighbour.words());
    let told = python("a", "here", HERE)?.finish()?;
    assert_eq!(
        told.out(),
        "ConnectionRefusedError ConnectionRefusedError\n[]\nTrue False\n",
        "{}",
        told.err()
    );
    // In its own sandbox all of it is found.
    let told = python("b", "here", HERE)?.finish()?;
    let told = told.out();
    assert!(
        told.starts_with("reached reached\n['/dev/shm', '/tmp', '/workspace'")
            && told.ends_with("True True\n"),
        "{told}"
    );
    world.must(&["op", "b", "there", "--cancel"])?;
    drop(neighbour);
    world.end_clean()
}
