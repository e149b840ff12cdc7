//! The same without root: an unprivileged user with a data directory of its own.

use std::time::Duration;

use system_tests::{Res, World, process, trouble};

use crate::is_root;
use crate::support::until;

/// A user that no passwd file knows.
const USER: u32 = 54_321;

#[test]
fn a_user_without_rights_gets_all_of_it_and_leaves_nothing() -> Res<()> {
    if !is_root("a_user_without_rights_gets_all_of_it_and_leaves_nothing") {
        return Ok(());
    }
    let world = World::of_user("user", USER, USER)?;
    world.create("a", &[])?;
    let done = world.sh("a", "echo mine > f; id -u; cat f; exit 3")?;
    assert_eq!(
        (done.code, done.out().as_str()),
        (Some(3), "0\nmine\n"),
        "{}",
        done.err()
    );
    let daemon = world.daemon().ok_or_else(|| trouble("no daemon"))?;
    let status = String::from_utf8_lossy(&process::file(daemon, "status")).into_owned();
    assert!(
        status.contains(&format!("Uid:\t{USER}\t{USER}")),
        "{status}"
    );

    let gate = world.effects().gate("user")?;
    let script = format!(
        "echo first; echo 'u began' > {}; read -r go < {}; echo x >> f; echo last; exit 4",
        world.effects().inside(),
        gate.inside()
    );
    let args = ["exec", "a", "--op", "u", "--", "bash", "-c", &script];
    let client = world.start(&args)?;
    if !world.effects().wait("u began", 1, Duration::from_secs(60)) {
        return Err(trouble(format!("it never began: {}", client.words())));
    }
    process::kill(daemon);
    gate.open()?;
    for done in [client.finish()?, world.run(&args)?] {
        assert_eq!(
            (done.code, done.out().as_str()),
            (Some(4), "first\nlast\n"),
            "{}",
            done.err()
        );
    }
    assert_eq!(world.effects().lines("u began")?.len(), 1);
    assert_eq!(
        world.must(&["exec", "a", "--", "cat", "f"])?.out(),
        "mine\nx\n"
    );

    // The supervisor's death is told as such, and what is left runs on.
    world.must(&["exec", "a", "--op", "v", "-d", "--", "sleep", "1000"])?;
    // One that was never started would be started later, not lost.
    until("it runs", || !world.processes_of("v").is_empty())?;
    process::kill(
        world
            .supervisor("a")
            .ok_or_else(|| trouble("no supervisor"))?,
    );
    let view = world.json(&["op", "a", "v", "--wait", "--json"])?;
    assert_eq!(view["outcome"], "lost");
    assert_eq!(
        world.must(&["exec", "a", "--", "cat", "f"])?.out(),
        "mine\nx\n"
    );
    let copy = world.root().join("home/f");
    world.must(&["cp", "a:/workspace/f", copy.to_str().unwrap()])?;
    assert_eq!(std::fs::read_to_string(copy)?, "mine\nx\n");
    world.end_clean()
}
