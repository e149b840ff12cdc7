//! A daemon that is killed in the middle of a download: the connection breaks, and a client that tries again gets the rest.

use system_tests::{Res, process, trouble};

use super::Lab;
use crate::egress::{daemon, said};
use crate::support::until;

#[test]
fn a_download_that_the_daemons_death_breaks_off_is_taken_up_by_the_client() -> Res<()> {
    if !crate::is_root("a_download_that_the_daemons_death_breaks_off_is_taken_up_by_the_client") {
        return Ok(());
    }
    let mut lab = Lab::new("broken", "methods = [\"GET\", \"HEAD\"]")?;
    // curl goes on where it stopped; whoever does not try again ends with an error. wget tries by itself.
    let once = lab.start("once", "curl -sS -o half $U/long || echo ended with $?")?;
    let again = lab.start(
        "again",
        "wget -q -O all --waitretry=1 $U/long && sha256sum < all",
    )?;
    lab.servers.wait_for("GET /long", 2)?;
    for name in ["once/half", "again/all"] {
        // Less what a client has not written yet.
        until("half of it is there", || {
            let size = format!("test $(stat -c %s /workspace/{name}) -gt 400000");
            let done = lab.world.run(&["exec", "a", "--", "sh", "-c", &size]);
            done.is_ok_and(|done| done.code == Some(0))
        })?;
    }
    // The clients of the daemon go first: they would start one that does not know the names.
    drop((once, again));
    let pid = lab
        .world
        .daemon()
        .ok_or_else(|| trouble("no daemon lives"))?;
    process::kill(pid);
    until("the daemon is gone", || !process::is_alive(pid))?;
    lab._daemon = daemon(&lab.world)?;

    let world = &lab.world;
    world.json(&["op", "a", "once", "--wait", "--json"])?;
    let done = world.must(&["read", "a", "once"])?;
    assert!(done.out().starts_with("ended with "), "{}", said(&done));
    let view = world.json(&["op", "a", "again", "--wait", "--json"])?;
    assert_eq!(view["exit_code"], 0, "{view}");
    let wanted = world.sh("a", "yes 'durable sandbox' | head -c 1048576 | sha256sum")?;
    let done = world.must(&["read", "a", "again"])?;
    assert_eq!(done.out(), wanted.out(), "{}", said(&done));
    lab.end()
}
