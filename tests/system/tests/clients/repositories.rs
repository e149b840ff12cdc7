//! git, with a repository of some size: 20 MiB, and 500 MiB where DURABLE_TEST_LARGE says so (`make test-boundary`).

use std::process::Command;

use system_tests::{Res, process, run, trouble};

use super::Lab;
use crate::egress::said;

const SMALL: u64 = 20 << 20;
const LARGE: u64 = 500 << 20;
/// What the daemon may take at most, whatever passes through it.
const MEMORY: u64 = 200 << 20;

#[test]
fn a_repository_is_cloned_and_pushed_whole() -> Res<()> {
    if !crate::is_root("a_repository_is_cloned_and_pushed_whole") {
        return Ok(());
    }
    let large = std::env::var_os("DURABLE_TEST_LARGE").is_some();
    let bytes = if large { LARGE } else { SMALL };
    let git = "git = { fetch = [\"git/acme/*\"], push = [\"git/acme/app\", \"git/acme/copy\"], refs = [\"refs/heads/agent/*\"] }";
    let lab = Lab::new("repositories", git)?;
    let commit = lab.servers.repository("acme/app", bytes)?;
    lab.servers.repository("acme/copy", 1)?;
    let daemon = lab
        .world
        .daemon()
        .ok_or_else(|| trouble("no daemon lives"))?;

    let script = "git clone --quiet $U/git/acme/app . && git fsck --strict && git rev-parse HEAD";
    let done = lab.run("clone", script)?;
    assert_eq!(done.out().trim(), commit, "{}", said(&done));

    // All of it, to where nothing of it is; then a commit to where it came from.
    let script = "cd ../clone; git push $U/git/acme/copy HEAD:refs/heads/agent/all
echo more > more; git add more; git -c user.name=a -c user.email=a@a.test commit -qm more
git push --quiet origin HEAD:refs/heads/agent/x; git rev-parse HEAD";
    let done = lab.run("push", script)?;
    assert_eq!(done.code, Some(0), "{}", said(&done));
    let head = done.out().trim().to_owned();
    let outside = |repository: &str, args: &[&str]| -> Res<String> {
        let mut command = Command::new("git");
        let at = lab.servers.served().join("git/acme").join(repository);
        command.arg("-C").arg(at).args(args);
        Ok(run::run(command)?.ok()?.out().trim().to_owned())
    };
    assert_eq!(outside("copy", &["rev-parse", "agent/all"])?, commit);
    assert_eq!(outside("app", &["rev-parse", "agent/x"])?, head);
    for repository in ["app", "copy"] {
        outside(repository, &["fsck", "--strict"])?;
    }
    // What is not allowed is not there.
    let done = lab.run(
        "forbidden",
        "cd ../clone; git push origin HEAD:refs/heads/main",
    )?;
    assert_ne!(done.code, Some(0), "{}", said(&done));
    assert!(done.err().contains("is not allowed"), "{}", said(&done));
    assert_eq!(outside("app", &["rev-parse", "main"])?, commit);

    let peak = process::peak_memory(daemon);
    println!("{bytes} bytes were cloned and pushed, and the daemon took {peak} at most");
    assert!(peak > 0 && peak < MEMORY, "the daemon took {peak} bytes");
    lab.end()
}
