//! What the attacks share: a fake internet, a daemon in it, and two sandboxes with one policy.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use system_tests::internet::Internet;
use system_tests::origin::{Origin, Seen};
use system_tests::{Client, Done, Res, World, process, trouble};

use crate::support::until;

/// Values that no sandbox may ever hold.
pub(crate) const TOKEN: &str = "sk-real-0c8e4f1b7a2d9e6f";
pub(crate) const SECOND: &str = "ghp_4Kq8vZt2Lm6Wx0Rb3Yc7";
pub(crate) const AWS: &str =
    "AKIA5REALREALREAL07X:kQ8vZt2Lm6Wx0Rb3Yc7Pd1Hf5Jg9Ns4Ua6Ev2Ti:FwoGZXIvYXdzEHsaDRealSession83hf";

/// What the daemon has in its environment, and nobody else.
pub(crate) const HOST_ONLY: &str = "only-of-the-host-7f3a9c51";

/// Servers: of all names that may be reached, and of one whose certificate nobody vouches for.
const SERVER: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 1);
const UNKNOWN: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 2);
/// Somebody who has an address of our own choosing in the names.
const EVIL: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 66);

const NAMES: [&str; 18] = [
    "cdn.test",
    "api.test",
    "shown.test",
    "other.test",
    "a.wild.test",
    "registry.test",
    "git.test",
    "budget.test",
    "ask.test",
    "two.test",
    "strict.test",
    "aws.test",
    "tunnel.test",
    "rebind.test",
    "mixed.test",
    "plain.test",
    "data-c16.wild.test",
    "query.test",
];

/// What the sandboxes may do: one rule for each way of allowing something.
const RULES: &str = r#"
[[rule]]
name = "cdn"
action = "allow"
hosts = ["cdn.test"]
methods = ["GET", "POST"]
ROOTS

[[rule]]
name = "api"
action = "allow"
hosts = ["api.test"]
methods = ["GET", "POST"]
inject = [{ secret = "token", bearer = true }]
ROOTS

[[rule]]
name = "shown"
action = "allow"
hosts = ["shown.test"]
inject = [{ secret = "shown", placeholder = ["header:x-api-key", "header:authorization"] }]
ROOTS

[[rule]]
name = "other"
action = "allow"
hosts = ["other.test"]
inject = [{ secret = "second", placeholder = ["header:x-api-key"] }]
ROOTS

[[rule]]
name = "wild"
action = "allow"
hosts = ["*.wild.test"]
methods = ["GET"]
ROOTS

[[rule]]
name = "registry"
action = "allow"
hosts = ["registry.test"]
methods = ["GET", "HEAD"]
ROOTS

[[rule]]
name = "git"
action = "allow"
hosts = ["git.test"]
git = { fetch = ["acme/*"], push = ["acme/app"], refs = ["refs/heads/agent/*"] }
inject = [{ secret = "token", basic = "x-access-token" }]
ROOTS

[[rule]]
name = "budget"
action = "allow"
hosts = ["budget.test"]
limits = { upload = "1KiB", requests_per_minute = 3 }
ROOTS

[[rule]]
name = "ask"
action = "ask"
hosts = ["ask.test"]
timeout = "60s"
ROOTS

[[rule]]
name = "one"
action = "allow"
hosts = ["two.test"]
paths = ["/one/**"]
inject = [{ secret = "token", bearer = true }]
ROOTS

[[rule]]
name = "two"
action = "allow"
hosts = ["two.test"]
paths = ["/two/**"]
inject = [{ secret = "bare", bearer = true }]
ROOTS

[[rule]]
name = "query"
action = "allow"
hosts = ["query.test"]
inject = [{ secret = "token", query = "key" }]
ROOTS

[[rule]]
name = "strict"
action = "allow"
hosts = ["strict.test"]
inject = [{ secret = "strict", bearer = true }]
ROOTS

[[rule]]
name = "aws"
action = "allow"
hosts = ["aws.test"]
inject = [{ secret = "aws", sigv4 = { service = "s3", region = "eu-central-1" } }]
ROOTS

[[rule]]
name = "tunnel"
action = "passthrough"
hosts = ["tunnel.test"]

[[rule]]
name = "resolved"
action = "allow"
hosts = ["rebind.test", "mixed.test", "lan.test", "metadata.test", "loopback.test", "cgnat.test"]
methods = ["GET"]
ROOTS

[[rule]]
name = "unknown"
action = "allow"
hosts = ["unknown.test"]
inject = [{ secret = "token", bearer = true }]

[[rule]]
name = "plain"
action = "allow"
hosts = ["plain.test"]
plain = true

[[rule]]
name = "net"
action = "allow"
hosts = ["intranet.test"]
methods = ["GET"]
addresses = ["10.0.0.0/8"]

[[secret]]
name = "token"
from = "age:token"

[[secret]]
name = "shown"
from = "age:token"
placeholder = { env = "SHOWN_KEY" }

[[secret]]
name = "second"
from = "age:second"
placeholder = { env = "SECOND_KEY" }

[[secret]]
name = "bare"
from = "age:second"

[[secret]]
name = "strict"
from = "age:token"
require = true

[[secret]]
name = "aws"
from = "age:aws"
"#;

/// All of it.
pub(crate) struct Fake {
    pub(crate) world: World,
    pub(crate) net: Internet,
    /// Where every allowed name leads: behind TLS, and without.
    pub(crate) server: Origin,
    pub(crate) plain: Origin,
    pub(crate) unknown: Origin,
    daemon: Option<Client>,
}

/// Returns the one that most attacks use; none where we are not root, which is told.
pub(crate) fn shared(test: &str) -> Res<Option<&'static Fake>> {
    static FAKE: OnceLock<Result<Fake, String>> = OnceLock::new();
    if !crate::is_root(test) {
        return Ok(None);
    }
    let fake = FAKE.get_or_init(|| Fake::new("boundary").map_err(|e| e.to_string()));
    fake.as_ref().map(Some).map_err(|e| trouble(e.clone()))
}

impl Fake {
    /// Makes one with the sandboxes `a` and `b`. Needs root.
    pub(crate) fn new(label: &str) -> Res<Self> {
        let world = World::new(label)?.with_env("HOST_ONLY", HOST_ONLY);
        let zone = NAMES
            .iter()
            .map(|name| ((*name).to_owned(), vec![vec![SERVER]]));
        let mut zone: HashMap<_, _> = zone.collect();
        for (name, answers) in [
            ("rebind.test", vec![vec![SERVER], vec![Ipv4Addr::LOCALHOST]]),
            (
                "mixed.test",
                vec![vec![Ipv4Addr::LOCALHOST, Ipv4Addr::new(169, 254, 169, 254)]],
            ),
            ("loopback.test", vec![vec![Ipv4Addr::LOCALHOST]]),
            ("lan.test", vec![vec![Ipv4Addr::new(10, 0, 0, 1)]]),
            (
                "metadata.test",
                vec![vec![Ipv4Addr::new(169, 254, 169, 254)]],
            ),
            ("cgnat.test", vec![vec![Ipv4Addr::new(100, 64, 0, 1)]]),
            ("unknown.test", vec![vec![UNKNOWN]]),
            ("evil.test", vec![vec![EVIL]]),
        ] {
            zone.insert(name.to_owned(), answers);
        }
        let net = Internet::new(
            world.root(),
            &world.command(["ps"]),
            &[SERVER, UNKNOWN],
            zone,
        )?;
        let mut fake = Self {
            server: net.https(SERVER, &NAMES)?,
            plain: net.http(SERVER)?,
            unknown: net.https(UNKNOWN, &["unknown.test"])?,
            world,
            net,
            daemon: None,
        };
        fake.serve()?;
        for (name, value) in [("token", TOKEN), ("second", SECOND), ("aws", AWS)] {
            fake.put_secret(name, value)?;
        }
        for name in ["a", "b"] {
            fake.create(name, &fake.rules())?;
        }
        Ok(fake)
    }

    /// Starts a daemon in the fake internet.
    pub(crate) fn serve(&mut self) -> Res<()> {
        let serve = self.world.command(["serve"]);
        let mut logging = std::process::Command::new("sh");
        logging
            .args(["-c", "ulimit -c unlimited; exec \"$@\" 2>>\"$0\""])
            .arg(self.world.data().join("daemon.log"))
            .arg(serve.get_program())
            .args(serve.get_args())
            .envs(
                serve
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env("DURABLE_LOG", "debug");
        let command = self.net.command(&logging);
        self.daemon = Some(Client::start(command)?);
        until("the daemon serves", || {
            system_tests::api::Api::unix(&self.world.data().join("api.sock")).is_ok()
        })
    }

    /// Kills the daemon and waits until it is gone.
    pub(crate) fn kill_daemon(&mut self) -> Res<()> {
        let pid = self
            .world
            .daemon()
            .ok_or_else(|| trouble("no daemon lives"))?;
        process::kill(pid);
        until("the daemon is gone", || !process::is_alive(pid))?;
        self.daemon = None;
        Ok(())
    }

    /// The policy of the sandboxes.
    pub(crate) fn rules(&self) -> String {
        RULES.replace("ROOTS", &format!("roots = '''\n{}'''", self.server.root))
    }

    /// Makes another sandbox, with a policy and the tools of the attacks.
    pub(crate) fn create(&self, name: &str, policy: &str) -> Res<()> {
        let file = self.write_policy(name, policy)?;
        self.world.create(name, &["--policy", &file])?;
        let tools = self.world.root().join("attack.py");
        std::fs::write(&tools, include_str!("attack.py"))?;
        self.world.must(&[
            "cp",
            &tools.to_string_lossy(),
            &format!("{name}:/workspace/"),
        ])?;
        Ok(())
    }

    /// Puts another policy in force.
    pub(crate) fn set_policy(&self, name: &str, policy: &str) -> Res<Done> {
        let file = self.write_policy(name, policy)?;
        self.world.run(&["policy", "set", name, &file])
    }

    fn write_policy(&self, name: &str, policy: &str) -> Res<String> {
        let file = self.world.root().join(format!("policy-{name}.toml"));
        std::fs::write(&file, policy)?;
        Ok(file.to_string_lossy().into_owned())
    }

    pub(crate) fn put_secret(&self, name: &str, value: &str) -> Res<()> {
        let mut command = self.world.command(["secret", "set", name]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().ok_or_else(|| trouble("no stdin"))?;
        writeln!(stdin, "{value}")?;
        drop(stdin);
        match child.wait()?.success() {
            true => Ok(()),
            false => Err(trouble("the secret was not set")),
        }
    }

    /// Runs an attack in sandbox `a` to its end, as the operation `op`, and returns the lines that it printed.
    pub(crate) fn attack(&self, op: &str, script: &str) -> Res<Vec<String>> {
        self.attack_in("a", op, script)
    }

    pub(crate) fn attack_in(&self, name: &str, op: &str, script: &str) -> Res<Vec<String>> {
        let script = with_tools(script);
        let done = self.world.run(&[
            "exec",
            name,
            "--op",
            op,
            "--",
            "/usr/bin/python3",
            "-c",
            &script,
        ])?;
        if done.code != Some(0) {
            return Err(trouble(format!(
                "{op}: {:?}\n{}\n{}",
                done.code,
                done.out(),
                done.err()
            )));
        }
        for value in [TOKEN, SECOND].into_iter().chain(AWS.split(':')) {
            assert!(
                !done.out().contains(value),
                "{op}: the sandbox was told a secret"
            );
        }
        Ok(done.out().lines().map(str::to_owned).collect())
    }

    /// Waits for a refusal of this operation for this reason in the journal, and returns it.
    pub(crate) fn denied(&self, op: &str, reason: &str) -> Res<Value> {
        self.denied_in("a", op, reason)
    }

    pub(crate) fn denied_in(&self, name: &str, op: &str, reason: &str) -> Res<Value> {
        let mut found = Value::Null;
        until(
            &format!("the journal has a refusal `{reason}` of {op}"),
            || {
                let events =
                    lines(&self.world, &["policy", "log", name, "--json"]).unwrap_or_default();
                let mut events = events.into_iter();
                match events.find(|event| event["op"] == op && event["reason"] == reason) {
                    Some(event) => {
                        found = event;
                        true
                    }
                    None => false,
                }
            },
        )?;
        assert!(
            found["message"]
                .as_str()
                .is_some_and(|words| words.len() > 10),
            "{found}"
        );
        Ok(found)
    }

    /// The effects of an operation of `a`.
    pub(crate) fn effects(&self, op: &str) -> Res<Vec<Value>> {
        lines(&self.world, &["effects", "a", "--op", op, "--json"])
    }

    /// What servers got whose path or headers hold this.
    pub(crate) fn got(&self, mark: &str) -> Vec<Seen> {
        let all = [&self.server, &self.plain, &self.unknown];
        let seen = all.into_iter().flat_map(Origin::seen);
        seen.filter(|seen| format!("{seen:?}").contains(mark))
            .collect()
    }

    /// Nobody of the fake internet saw anything that was not theirs.
    pub(crate) fn nothing_leaked(&self) {
        let leaks = self.net.leaks();
        assert!(leaks.is_empty(), "the canary saw\n{leaks}");
        let asked = self.net.names.asked();
        let known = |name: &String| {
            NAMES.contains(&name.as_str())
                || [
                    "lan.test",
                    "metadata.test",
                    "loopback.test",
                    "cgnat.test",
                    "unknown.test",
                    "intranet.test",
                ]
                .contains(&name.as_str())
                || (name.ends_with(".wild.test") && !name.contains("exfil"))
        };
        let told: Vec<&String> = asked.iter().filter(|name| !known(name)).collect();
        assert!(told.is_empty(), "the name server was asked for {told:?}");
    }

    /// Ends it in order; anything left is an error.
    pub(crate) fn end_clean(mut self) -> Res<()> {
        self.net.let_go();
        let Self { world, daemon, .. } = self;
        world.end_clean()?;
        if let Some(daemon) = daemon {
            daemon.finish_within(Duration::from_secs(30))?;
        }
        Ok(())
    }
}

pub(crate) fn lines(world: &World, args: &[&str]) -> Res<Vec<Value>> {
    let out = world.must(args)?.out();
    out.lines()
        .map(|line| serde_json::from_str(line).map_err(|e| trouble(e.to_string())))
        .collect()
}

/// An attack's script, with what attacks have in common.
pub(crate) fn with_tools(script: &str) -> String {
    format!("import sys\nsys.path.insert(0, '/workspace')\nfrom attack import *\n{script}")
}
