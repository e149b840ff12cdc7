//! Commands that change something outside and lose their machine: whatever they sent arrives once, or they are told as lost.

use std::time::Duration;

use serde_json::Value;
use system_tests::origin::Origin;
use system_tests::{Client, Gate, Res, Rng, World, process, trouble};

use crate::egress::{daemon, lines, put_policy, rule};
use crate::support::until;

/// How long a command may take to come somewhere.
const REACH: Duration = Duration::from_secs(60);
/// The exit code that tells of an unknown outcome.
const LOST: Option<i32> = Some(123);

/// A sandbox that may ask an origin for anything.
struct Scene {
    world: World,
    origin: Origin,
    daemon: Option<Client>,
}

impl Scene {
    fn new(label: &str) -> Res<Self> {
        Self::of(World::new(label)?)
    }

    fn of(world: World) -> Res<Self> {
        let origin = Origin::http()?;
        let daemon = Some(daemon(&world)?);
        world.create("a", &[])?;
        put_policy(&world, &rule("plain", "allow", "allowed.test", &origin, ""))?;
        world.sh("a", "echo base > f")?.ok()?;
        Ok(Self {
            world,
            origin,
            daemon,
        })
    }

    /// A line of a script that posts something.
    fn post(&self, path: &str, body: &str) -> String {
        let port = self.origin.port;
        format!("curl -sS --max-time 30 -d '{body}' http://allowed.test:{port}{path}")
    }

    /// The same; where it fails, the script goes no further.
    fn post_or_wait(&self, path: &str, body: &str, never: &Gate) -> String {
        format!(
            "{} || read -r go < {}",
            self.post(path, body),
            never.inside()
        )
    }

    /// A line of a script that says where it is, and waits there.
    fn stop(&self, word: &str, gate: &Gate) -> String {
        let told = self.world.effects().inside();
        format!("echo '{word}' > {told}; read -r go < {}", gate.inside())
    }

    fn start(&self, op: &str, script: &[String]) -> Res<Client> {
        let script = script.join("\n");
        self.world.start(&[
            "exec", "a", "--op", op, "--replay", "rollback", "--", "bash", "-c", &script,
        ])
    }

    fn wait(&self, word: &str, client: &Client) -> Res<()> {
        if self.world.effects().wait(word, 1, REACH) {
            return Ok(());
        }
        Err(trouble(format!(
            "{word}: it did not come there: {}",
            client.words()
        )))
    }

    fn kill_supervisor(&self) -> Res<()> {
        let supervisor = self.world.supervisor("a");
        process::kill(supervisor.ok_or_else(|| trouble("no supervisor"))?);
        Ok(())
    }

    /// Kills the daemon. Clients went before: they would start one that does not know the names.
    fn kill_daemon(&mut self) -> Res<()> {
        let pid = self.world.daemon();
        let pid = pid.ok_or_else(|| trouble("no daemon lives"))?;
        process::kill(pid);
        until("the daemon is gone", || !process::is_alive(pid))?;
        self.daemon = None;
        Ok(())
    }

    fn next_daemon(&mut self) -> Res<()> {
        self.daemon = Some(daemon(&self.world)?);
        Ok(())
    }

    /// What reached the origin: paths with bodies.
    fn seen(&self) -> Vec<String> {
        let seen = self.origin.seen();
        let seen = seen.iter().map(|one| {
            let path = one.line.split(' ').nth(1).unwrap_or_default();
            format!("{path} {}", String::from_utf8_lossy(&one.body))
        });
        seen.collect()
    }

    fn settled(&self, op: &str) -> Res<Value> {
        self.world.json(&["op", "a", op, "--wait", "--json"])
    }

    fn effects(&self, state: &str) -> Res<usize> {
        let all = lines(&self.world, &["effects", "a", "--json"])?;
        Ok(all.iter().filter(|one| one["state"] == state).count())
    }

    fn end(self) -> Res<()> {
        self.world.end_clean()?;
        drop(self.daemon);
        Ok(())
    }
}

#[test]
fn what_a_lost_run_had_sent_leaves_once_wherever_it_was_killed() -> Res<()> {
    if !crate::is_root("what_a_lost_run_had_sent_leaves_once_wherever_it_was_killed") {
        return Ok(());
    }
    let scene = Scene::new("once")?;
    for place in 0..=3 {
        let op = format!("op{place}");
        let gate = scene.world.effects().gate(&op)?;
        let mut script = vec!["echo x >> f".to_owned()];
        for number in 0..3 {
            if number == place {
                script.push(scene.stop(&op, &gate));
            }
            // One address: there the order counts.
            script.push(scene.post(&format!("/{op}"), &format!("n={number}")));
        }
        if place == 3 {
            script.push(scene.stop(&op, &gate));
        }
        script.push("cat f".to_owned());
        let before = scene.seen().len();
        let client = scene.start(&op, &script)?;
        scene.wait(&op, &client)?;
        scene.kill_supervisor()?;
        gate.open()?;
        let done = client.finish()?;
        assert_eq!(done.code, Some(0), "{op}: {}", done.err());
        let kept = scene.world.must(&["read", "a", &op])?.out();
        let answers = format!("ok /{op}\n").repeat(3);
        let files = "x\n".repeat(place + 1);
        assert_eq!(kept, format!("{answers}base\n{files}"), "{op}");
        let sent: Vec<String> = (0..3).map(|n| format!("/{op} n={n}")).collect();
        assert_eq!(scene.seen()[before..], sent, "{op}");
        let view = scene.settled(&op)?;
        assert_eq!(
            (&view["attempt"], &view["error"]),
            (&2.into(), &Value::Null)
        );
    }
    assert_eq!(scene.effects("replayed")?, 1 + 2 + 3);
    assert_eq!(scene.effects("done")?, 4 * 3);
    let shown = scene.world.must(&["effects", "a", "--op", "op3"])?.out();
    assert_eq!(shown.matches("did not leave").count(), 3, "{shown}");
    scene.end()
}

#[test]
fn an_answer_that_nobody_waited_for_is_given_to_the_next_run() -> Res<()> {
    if !crate::is_root("an_answer_that_nobody_waited_for_is_given_to_the_next_run") {
        return Ok(());
    }
    let scene = Scene::new("held")?;
    let script = [scene.post("/take", "first"), scene.post("/held", "second")];
    let client = scene.start("held", &script)?;
    assert!(scene.origin.wait(2, REACH));
    scene.kill_supervisor()?;
    until("the command is gone", || {
        scene.world.processes_of("held").is_empty()
    })?;
    scene.origin.release();
    let done = client.finish()?;
    assert_eq!(done.code, Some(0), "{}", done.err());
    let kept = scene.world.must(&["read", "a", "held"])?.out();
    assert_eq!(kept, "ok /take\nok /held\n");
    assert_eq!(scene.seen(), ["/take first", "/held second"]);
    scene.end()
}

#[test]
fn what_nobody_knows_the_answer_of_is_told_as_lost_with_the_list() -> Res<()> {
    if !crate::is_root("what_nobody_knows_the_answer_of_is_told_as_lost_with_the_list") {
        return Ok(());
    }
    let mut scene = Scene::new("unknown")?;
    let never = scene.world.effects().gate("never")?;
    let script = [
        "echo x >> f".to_owned(),
        scene.post("/take", "first"),
        // Without its daemon it fails, and must not have settled before the supervisor is killed.
        scene.post_or_wait("/held", "second", &never),
    ];
    let client = scene.start("unknown", &script)?;
    assert!(scene.origin.wait(2, REACH));
    drop(client);
    scene.kill_daemon()?;
    scene.kill_supervisor()?;
    scene.origin.release();
    scene.next_daemon()?;
    let view = scene.settled("unknown")?;
    assert_eq!(view["outcome"], "lost", "{view}");
    let why = view["error"].as_str().unwrap_or_default();
    assert!(why.contains("/take (answered)"), "{why}");
    assert!(why.contains("/held (nobody knows"), "{why}");
    assert_eq!(scene.seen(), ["/take first", "/held second"]);
    // Nothing was put back.
    assert_eq!(scene.world.sh("a", "cat f")?.out(), "base\nx\n");
    scene.end()
}

#[test]
fn an_answer_that_is_too_long_to_be_recorded_is_why_a_command_is_lost() -> Res<()> {
    if !crate::is_root("an_answer_that_is_too_long_to_be_recorded_is_why_a_command_is_lost") {
        return Ok(());
    }
    let scene = Scene::new("long")?;
    let body = |bytes: usize| "y".repeat(bytes);
    scene.origin.says("/most", "201 Created", &body(256 << 10));
    scene
        .origin
        .says("/more", "201 Created", &body((256 << 10) + 1));
    for (path, code) in [("/most", Some(0)), ("/more", LOST)] {
        let gate = scene.world.effects().gate(&path[1..])?;
        let script = [
            format!(
                "{} -w '%{{http_code}}' | tee r | tail -c 3; wc -c < r",
                scene.post(path, "x")
            ),
            scene.stop(path, &gate),
        ];
        let client = scene.start(&path[1..], &script)?;
        scene.wait(path, &client)?;
        scene.kill_supervisor()?;
        gate.open()?;
        let done = client.finish()?;
        assert_eq!(done.code, code, "{path}: {}", done.err());
        if code == LOST {
            assert!(
                done.err().contains("longer than 262144 bytes"),
                "{}",
                done.err()
            );
        } else {
            let kept = scene.world.must(&["read", "a", &path[1..]])?.out();
            assert_eq!(kept, format!("201{}\n", (256 << 10) + 3));
        }
    }
    assert_eq!(scene.seen(), ["/most x", "/more x"]);
    scene.end()
}

#[test]
fn a_run_that_does_something_else_is_stopped_from_it_and_told_as_lost() -> Res<()> {
    if !crate::is_root("a_run_that_does_something_else_is_stopped_from_it_and_told_as_lost") {
        return Ok(());
    }
    let scene = Scene::new("diverged")?;
    let gate = scene.world.effects().gate("diverged")?;
    let which = scene.world.effects().dir().join("which");
    std::fs::write(&which, "one")?;
    let file = scene.world.effects().inside_file("which");
    let script = [
        scene.post("/take", &format!("x=1' -d @{file} -d 'y=2")),
        scene.stop("diverged", &gate),
        scene.post("/more", "new"),
    ];
    let client = scene.start("diverged", &script)?;
    scene.wait("diverged", &client)?;
    std::fs::write(&which, "two")?;
    scene.kill_supervisor()?;
    gate.open()?;
    let done = client.finish()?;
    assert_eq!(done.code, LOST, "{}", done.err());
    assert!(done.err().contains("another body"), "{}", done.err());
    assert!(done.err().contains("/take (answered)"), "{}", done.err());
    assert_eq!(scene.seen(), ["/take x=1&one&y=2"]);
    // Told inside as well, and what comes after it does not leave either.
    let kept = scene.world.must(&["read", "a", "diverged"])?.out();
    assert_eq!(kept.matches("\"diverged\"").count(), 2, "{kept}");
    let denials = lines(&scene.world, &["policy", "log", "a", "--json"])?;
    assert!(
        denials.iter().any(|denial| denial["reason"] == "diverged"),
        "{denials:?}"
    );
    // What others send is their own business.
    scene.world.sh("a", &scene.post("/other", "z"))?.ok()?;
    assert_eq!(scene.seen().len(), 2);
    scene.end()
}

#[test]
fn a_run_that_is_lost_again_adds_to_what_is_recorded() -> Res<()> {
    if !crate::is_root("a_run_that_is_lost_again_adds_to_what_is_recorded") {
        return Ok(());
    }
    let mut scene = Scene::new("again")?;
    let [first, second, between] = ["first", "second", "between"].map(|name| {
        let gate = scene.world.effects().gate(name);
        gate.map(|gate| (scene.stop(name, &gate), gate))
    });
    let (first, second, between) = (first?, second?, between?);
    let flag = scene.world.effects().inside_file("flag");
    let script = [
        "echo x >> f".to_owned(),
        scene.post("/take", "1"),
        first.0,
        format!("[ ! -e {flag} ] || {{ {}; }}", between.0),
        scene.post("/take", "2"),
        second.0,
        scene.post("/take", "3"),
        "cat f".to_owned(),
    ];
    let client = scene.start("again", &script)?;
    scene.wait("first", &client)?;
    scene.kill_supervisor()?;
    first.1.open()?;
    // The second run got the first answer, and sent something new.
    scene.wait("second", &client)?;
    std::fs::write(scene.world.effects().dir().join("flag"), "")?;
    scene.kill_supervisor()?;
    // The third one got one answer of two when the daemon is killed; the next daemon knows that.
    scene.wait("between", &client)?;
    drop(client);
    scene.kill_daemon()?;
    between.1.open()?;
    second.1.open()?;
    scene.next_daemon()?;
    let view = scene.settled("again")?;
    assert_eq!(
        (&view["exit_code"], &view["attempt"]),
        (&0.into(), &3.into()),
        "{view}"
    );
    let kept = scene.world.must(&["read", "a", "again"])?.out();
    assert_eq!(kept, "ok /take\nok /take\nok /take\nbase\nx\n");
    assert_eq!(scene.seen(), ["/take 1", "/take 2", "/take 3"]);
    assert_eq!(scene.effects("replayed")?, 3);
    scene.end()
}

#[test]
fn a_lost_run_beside_another_says_that_this_is_why_and_what_it_sent() -> Res<()> {
    if !crate::is_root("a_lost_run_beside_another_says_that_this_is_why_and_what_it_sent") {
        return Ok(());
    }
    let scene = Scene::new("beside")?;
    let gate = scene.world.effects().gate("beside")?;
    let start = |op: &str| {
        let script = [scene.post(&format!("/{op}"), "x"), scene.stop(op, &gate)];
        scene.start(op, &script)
    };
    let (one, two) = (start("one")?, start("two")?);
    scene.wait("one", &one)?;
    scene.wait("two", &two)?;
    scene.kill_supervisor()?;
    gate.open()?;
    for (client, own, other) in [(one, "one", "two"), (two, "two", "one")] {
        let done = client.finish()?;
        assert_eq!(done.code, LOST, "{}", done.err());
        let listed = format!("/{own} (answered)");
        for words in ["put back together", &format!("`{other}`"), &listed] {
            assert!(done.err().contains(words), "{words}: {}", done.err());
        }
    }
    scene.end()
}

#[test]
fn what_was_answered_on_a_branch_that_was_left_is_not_given_on_the_next() -> Res<()> {
    if !crate::is_root("what_was_answered_on_a_branch_that_was_left_is_not_given_on_the_next") {
        return Ok(());
    }
    let scene = Scene::new("branch")?;
    let label = scene.world.must(&["checkpoint", "a", "--label", "before"]);
    label?;
    let gate = scene.world.effects().gate("branch")?;
    let script = [scene.post("/take", "1"), scene.stop("branch", &gate)];
    let client = scene.start("op", &script)?;
    scene.wait("branch", &client)?;
    drop(client);
    scene.world.must(&["rewind", "a", "--to", "before"])?;
    let client = scene.start("op", &script)?;
    assert!(scene.world.effects().wait("branch", 2, REACH));
    assert_eq!(scene.seen(), ["/take 1", "/take 1"]);
    // Lost there, it gets what it was answered there.
    scene.kill_supervisor()?;
    gate.open()?;
    assert_eq!(client.finish()?.code, Some(0));
    assert_eq!(scene.seen().len(), 2);
    assert_eq!(scene.effects("replayed")?, 1);
    scene.end()
}

#[test]
fn with_its_daemon_gone_too_it_is_known_what_was_durable() -> Res<()> {
    if !crate::is_root("with_its_daemon_gone_too_it_is_known_what_was_durable") {
        return Ok(());
    }
    let mut scene = Scene::of(World::new("daemon")?.with_points()?)?;
    // What has reached the origin by then, and whether the answer is known of all of it.
    for (point, came, is_known) in [
        ("before_effect_begun", 1, true),
        ("after_effect_begun", 1, false),
        ("before_effect_settled", 2, false),
        ("after_effect_settled", 2, true),
    ] {
        let hits = scene.world.points()?.arm(&[point], 1);
        let sent: Vec<String> = (0..3).map(|n| format!("/{point} n={n}")).collect();
        let mut script = vec!["echo x >> f".to_owned()];
        let posts = (0..3).map(|n| scene.post(&format!("/{point}"), &format!("n={n}")));
        script.extend(posts);
        let before = scene.seen().len();
        let client = scene.start(point, &script)?;
        let hit = hits.recv_timeout(REACH);
        let hit = hit.map_err(|e| trouble(format!("{point}: {e}: {}", client.words())))?;
        drop(client);
        scene.kill_daemon()?;
        scene.kill_supervisor()?;
        drop(hit);
        assert_eq!(scene.seen()[before..], sent[..came], "{point}");
        scene.next_daemon()?;
        let view = scene.settled(point)?;
        if is_known {
            assert_eq!(view["exit_code"], 0, "{point}: {view}");
            assert_eq!(scene.seen()[before..], sent, "{point}");
        } else {
            assert_eq!(view["outcome"], "lost", "{point}: {view}");
            let why = view["error"].as_str().unwrap_or_default();
            assert!(why.contains("nobody knows whether"), "{point}: {why}");
            assert_eq!(scene.seen()[before..], sent[..came], "{point}");
        }
    }

    // The second run is lost as well, when it was just given an answer.
    let gate = scene.world.effects().gate("twice")?;
    let never = scene.world.effects().gate("never")?;
    let script = [
        scene.post_or_wait("/twice", "1", &never),
        scene.stop("twice", &gate),
    ];
    let before = scene.seen().len();
    let client = scene.start("twice", &script)?;
    scene.wait("twice", &client)?;
    drop(client);
    let hits = scene.world.points()?.arm(&["after_effect_replayed"], 0);
    scene.kill_supervisor()?;
    gate.open()?;
    let hit = hits.recv_timeout(REACH);
    let hit = hit.map_err(|e| trouble(e.to_string()))?;
    scene.kill_daemon()?;
    scene.kill_supervisor()?;
    drop(hit);
    scene.next_daemon()?;
    let view = scene.settled("twice")?;
    assert_eq!(
        (&view["exit_code"], &view["attempt"]),
        (&0.into(), &3.into()),
        "{view}"
    );
    assert_eq!(scene.seen()[before..], ["/twice 1"]);
    scene.end()
}

#[test]
fn killed_anywhere_each_request_arrives_once_or_it_is_told() -> Res<()> {
    if !crate::is_root("killed_anywhere_each_request_arrives_once_or_it_is_told") {
        return Ok(());
    }
    let scene = Scene::new("anywhere")?;
    for seed in 0..12 {
        let mut rng = Rng::named(seed, "rollback");
        let op = format!("op{seed}");
        let mut script = vec!["echo x >> f".to_owned()];
        script.extend((0..3).map(|n| scene.post(&format!("/{op}/{n}"), "body")));
        script.push("tail -1 f".to_owned());
        let before = scene.seen().len();
        let client = scene.start(&op, &script)?;
        let place = before + 1 + rng.index(3);
        assert!(scene.origin.wait(place, REACH));
        // Around the answer, its record and what comes after it.
        std::thread::sleep(Duration::from_micros(rng.below(12_000)));
        scene.kill_supervisor()?;
        let done = client.finish()?;
        let came = scene.seen().split_off(before);
        let sent: Vec<String> = (0..3).map(|n| format!("/{op}/{n} body")).collect();
        match done.code {
            Some(0) => assert_eq!(came, sent, "seed {seed}"),
            LOST => {
                assert!(sent.starts_with(&came), "seed {seed}: {came:?}");
                for one in &came {
                    let path = one.trim_end_matches(" body");
                    assert!(done.err().contains(path), "seed {seed}: {}", done.err());
                }
            }
            _ => panic!("seed {seed}: {:?} {}", done.code, done.err()),
        }
    }
    scene.end()
}
