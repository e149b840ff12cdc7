//! Very many operations in one sandbox: every output is there, and nothing grows but the journal.

use serde_json::{Value, json};
use system_tests::api::Api;
use system_tests::{Res, World, process, trouble};

/// Runs one command to its settlement with one request; returns its stdout.
fn one(api: &mut Api, op: &str, argv: &Value) -> Res<Vec<u8>> {
    let body = serde_json::to_vec(&json!({ "argv": argv }))?;
    let path = format!("/v1/sandboxes/a/ops/{op}?frames=true");
    let answer = api.send("PUT", &path, &body)?;
    if answer.status != 200 {
        return Err(trouble(String::from_utf8_lossy(&answer.body).into_owned()));
    }
    let mut frames = bytes::BytesMut::from(&answer.body[..]);
    let mut out = Vec::new();
    while let Some((kind, offset, content)) = protocol::api::frames::take(&mut frames)? {
        use protocol::api::frames::Kind;
        match kind {
            Kind::Stdout if offset == out.len() as u64 => out.extend_from_slice(&content),
            Kind::Known => {}
            Kind::Settled => {
                let view: Value = serde_json::from_slice(&content)?;
                if view["outcome"] == "exited" && view["exit_code"] == 0 {
                    return Ok(out);
                }
                return Err(trouble(format!("{op}: {view}")));
            }
            _ => return Err(trouble(format!("{op}: a frame of kind {kind:?}"))),
        }
    }
    Err(trouble(format!("{op}: no settlement")))
}

/// What could leak: anonymous memory and descriptors of the daemon and the supervisor.
fn usage(world: &World) -> Res<[(u64, usize); 2]> {
    let pids = [world.daemon(), world.supervisor("a")];
    let mut usage = [(0, 0); 2];
    for (usage, pid) in usage.iter_mut().zip(pids) {
        let pid = pid.ok_or_else(|| trouble("a process is gone"))?;
        *usage = (process::anonymous_memory(pid), process::descriptors(pid));
    }
    Ok(usage)
}

/// Runs `true` over one connection that is kept, and `echo` over another at the same time.
fn series(world: &World, numbers: std::ops::Range<usize>) -> Res<()> {
    let (mut quiet, mut loud) = (world.api()?, world.api()?);
    std::thread::scope(|scope| {
        let trues = scope.spawn({
            let numbers = numbers.clone();
            move || -> Res<()> {
                for i in numbers {
                    let out = one(&mut quiet, &format!("true-{i}"), &json!(["true"]))?;
                    assert_eq!(out, b"");
                }
                Ok(())
            }
        });
        for i in numbers {
            let text = i.to_string();
            let out = one(&mut loud, &format!("echo-{i}"), &json!(["echo", text]))?;
            assert_eq!(out, format!("{i}\n").as_bytes());
        }
        trues
            .join()
            .map_err(|_| trouble("the thread of `true` panicked"))?
    })
}

#[test]
fn ten_thousand_of_true_and_of_echo_and_sixty_four_at_once() -> Res<()> {
    const EACH: usize = 10_000;
    let world = World::new("many")?;
    world.create("a", &[])?;
    let begun = std::time::Instant::now();
    series(&world, 0..EACH / 10)?;
    let early = usage(&world)?;
    series(&world, EACH / 10..EACH)?;
    let took = begun.elapsed();
    let late = usage(&world)?;
    for ((early, late), who) in early.iter().zip(&late).zip(["daemon", "supervisor"]) {
        let grown = late.0.saturating_sub(early.0);
        // A settled operation is remembered by its id and its end: a kilobyte each, no more.
        let allowed = (EACH as u64 * 2 * 9 / 10) * 1024;
        assert!(grown < allowed, "the {who} grew by {grown} bytes");
        assert!(
            late.1 <= early.1 + 2,
            "the {who} has {} descriptors, it had {}",
            late.1,
            early.1
        );
    }
    eprintln!(
        "{} operations in {took:?}; daemon, supervisor: {early:?} then {late:?}",
        2 * EACH
    );

    let at_once: Res<Vec<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..64)
            .map(|i| {
                let world = &world;
                scope.spawn(move || {
                    let mut api = world.api()?;
                    for round in 0..4 {
                        let text = format!("{i}-{round}");
                        let script = format!("echo {text}; echo {text} >> f{i}");
                        let argv = json!(["bash", "-c", script]);
                        let out = one(&mut api, &format!("at-once-{text}"), &argv)?;
                        assert_eq!(out, format!("{text}\n").as_bytes());
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    at_once?;
    // Outputs of the first and the last are there, after the daemon's death too.
    process::kill(world.daemon().unwrap());
    for i in [0, 1, EACH / 2, EACH - 1] {
        let read = world.must(&["read", "a", &format!("echo-{i}")])?;
        assert_eq!(read.out(), format!("{i}\n"));
    }
    let ops = world.must(&["ps", "a", "--json"])?.out();
    assert_eq!(ops.lines().count(), 2 * EACH + 256);
    assert!(
        ops.lines()
            .all(|line| line.contains(r#""outcome":"exited""#))
    );
    let rows = system_tests::journal::read(world.data(), "a")?;
    system_tests::journal::verify(&rows)?;
    world.end_clean()
}
