//! Stores in a bucket of a real S3 server: what other stores promise holds there too.

use std::path::Path;
use std::time::Duration;

use system_tests::s3::Server;
use system_tests::{Res, World, process, trouble};

use crate::stores::{ODD_FILES, TOLD};

fn server() -> Res<Server> {
    Server::start(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

#[test]
fn a_daemon_killed_in_a_push_to_a_bucket_pushes_again_and_another_pulls_the_same() -> Res<()> {
    let server = server()?;
    for point in ["before_push_commit", "after_push_commit", "after_push_ref"] {
        let here = server.known_to(World::new(&format!("s3-{point}"))?.with_points()?);
        let there = server.known_to(World::new("s3-there")?);
        let store = server.store(point);
        let key = here.root().join("key").display().to_string();
        here.must(&["store", "keygen", &key])?;
        let to = ["--store", &store, "--key", &key];
        here.create("ada", &[])?;
        here.must(&["exec", "ada", "--", "sh", "-c", ODD_FILES])?;
        here.sh("ada", "head -c 3000000 /dev/urandom > big")?;
        let told = here.sh("ada", TOLD)?.out();
        let hit = here.points()?.arm(&[point], 0);
        let pushing = here.start(&[&["push", "ada"], &to[..]].concat())?;
        let at = hit.recv_timeout(Duration::from_secs(60))?;
        process::kill(here.daemon().ok_or_else(|| trouble("no daemon"))?);
        here.points()?.disarm();
        drop(at);
        assert_ne!(pushing.finish()?.code, Some(0));
        let again = here.json(&[&["push", "ada", "--json"], &to[..]].concat())?;
        if point != "before_push_commit" {
            assert!(
                again["new_bytes"].as_u64() < Some(100_000),
                "what was pushed is found: {again}"
            );
        }
        there.must(&[&["pull", "ada"], &to[..]].concat())?;
        assert_eq!(there.sh("ada", TOLD)?.out(), told, "{point}");
        let whole = there.must(&[&["store", "verify"], &to[..]].concat())?;
        assert!(whole.out().contains(" 0 damaged"), "{}", whole.out());
        // It goes on there: here it must not, over the same ref.
        there.sh("ada", "echo there > f2")?;
        there.must(&[&["push", "ada"], &to[..]].concat())?;
        here.sh("ada", "echo here > f2")?;
        let refused = here.run(&[&["push", "ada"], &to[..]].concat())?;
        assert!(
            refused
                .err()
                .contains("is not an earlier state of this sandbox"),
            "{}",
            refused.err()
        );
        there.end_clean()?;
        here.end_clean()?;
    }
    Ok(())
}

#[test]
fn two_that_push_to_one_name_in_a_bucket_at_once_do_not_both_win() -> Res<()> {
    let server = server()?;
    let (here, there) = (
        server.known_to(World::new("s3-one")?),
        server.known_to(World::new("s3-two")?),
    );
    let store = server.store("race");
    here.create("ada", &[])?;
    here.sh("ada", "echo 0 > f")?;
    here.must(&["push", "ada", "--store", &store])?;
    there.must(&["pull", "ada", "--store", &store])?;
    here.sh("ada", "echo here > f")?;
    there.sh("ada", "echo there > f")?;
    let push = ["push", "ada", "--store", &store];
    let (one, two) = (here.start(&push)?, there.start(&push)?);
    let (one, two) = (one.finish()?, two.finish()?);
    let won = match (one.code, two.code) {
        (Some(0), Some(125)) => "here\n",
        (Some(125), Some(0)) => "there\n",
        _ => {
            return Err(trouble(format!(
                "one must win: {:?} {} / {:?} {}",
                one.code,
                one.err(),
                two.code,
                two.err()
            )));
        }
    };
    let third = server.known_to(World::new("s3-three")?);
    third.must(&["pull", "ada", "--store", &store])?;
    assert_eq!(third.sh("ada", "cat f")?.out(), won);
    for world in [third, there, here] {
        world.end_clean()?;
    }
    Ok(())
}

#[test]
fn a_sandbox_replicated_to_a_bucket_is_there_when_it_is_told_and_rubbish_goes() -> Res<()> {
    let server = server()?;
    let here = server.known_to(World::new("s3-replicate")?);
    let store = server.store("replica");
    here.create("ada", &["--replicate", &store])?;
    here.must(&[
        "exec",
        "ada",
        "--",
        "sh",
        "-c",
        "head -c 900000 /dev/urandom > f",
    ])?;
    here.must(&["exec", "ada", "--", "sh", "-c", "echo 1 > f; sha256sum f"])?;
    let there = server.known_to(World::new("s3-replica")?);
    there.must(&["pull", "ada", "--store", &store])?;
    assert_eq!(there.sh("ada", "cat f")?.out(), "1\n");
    there.must(&["rm", "ada"])?;
    here.must(&["rm", "ada"])?;
    there.must(&["store", "rm", "ada", "--store", &store])?;
    let freed = there.json(&["store", "gc", "--grace", "0", "--store", &store, "--json"])?;
    assert!(freed["freed_bytes"].as_u64() > Some(900_000), "{freed}");
    there.end_clean()?;
    here.end_clean()
}
