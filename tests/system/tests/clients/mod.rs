//! Clients as people have them, inside, through TLS that a rule looks into: none of them is told anything by its user.

mod broken;
mod denials;
mod programs;
mod repositories;
mod streams;

use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use system_tests::servers::{NAME, Servers};
use system_tests::tools::{INSIDE, Tools};
use system_tests::{Client, Done, Res, World, trouble};

use crate::egress::{daemon, put_policy, said};

/// For what a client downloads and builds on a machine that has other things to do.
const LONG: Duration = Duration::from_secs(600);
/// Clients that run at once.
const AT_ONCE: usize = 3;

/// What a client is called by in scripts: T is where they lie, U the servers' address, P its port, G gRPC's address.
/// Debian's own programs come first, for Python's packages are for its Python.
const NAMES: &str = "export PATH=/usr/bin:$PATH PYTHONPATH=$T/py NODE_PATH=$T/npm/node_modules
BUN=$NODE_PATH/@oven/bun-linux-x64/bin/bun DENO=$NODE_PATH/@deno/linux-x64-glibc/deno UV=$T/py/bin/uv
YARN=\"node $NODE_PATH/yarn/bin/yarn.js\" BERRY=\"node $NODE_PATH/@yarnpkg/cli-dist/bin/yarn.js\"
PNPM=\"node $NODE_PATH/pnpm/bin/pnpm.cjs\" GO=$T/py/go/bin/go
";
/// Projects that need a package of a registry, each in the format of its kind.
const NPM_PROJECT: &str = "echo '{\"name\":\"x\",\"version\":\"1.0.0\",\"dependencies\":{\"greeter\":\"1.0.0\"}}' > package.json
echo \"registry=$U/npm/\" > .npmrc
echo 'console.log(require(\"greeter\"))' > x.cjs
export YARN_NPM_REGISTRY_SERVER=$U/npm YARN_ENABLE_TELEMETRY=0 YARN_NODE_LINKER=node-modules
";
const CARGO_PROJECT: &str = "mkdir -p src .cargo
printf '[package]\\nname = \"x\"\\nversion = \"1.0.0\"\\nedition = \"2021\"\\n[dependencies]\\ngreeter = { version = \"1\", registry = \"test\" }\\n' > Cargo.toml
printf '[registries.test]\\nindex = \"sparse+%s/cargo/\"\\n' $U > .cargo/config.toml
echo 'fn main() { println!(\"{}\", greeter::WORDS); }' > src/main.rs
export PATH=$T/rust/bin:$PATH
";
const GO_PROJECT: &str = "printf 'module x\\n\\ngo 1.19\\n\\nrequire example.test/greeter v1.0.0\\n' > go.mod
printf 'package main\\n\\nimport \"example.test/greeter\"\\n\\nfunc main() { println(greeter.Words) }\\n' > x.go
export GOPROXY=$U/go GONOSUMDB=* GOTOOLCHAIN=local GOFLAGS=-mod=mod
";

/// A sandbox `a` with clients, and the servers that it may reach.
struct Lab {
    world: World,
    servers: Servers,
    _daemon: Client,
}

/// One client: a name, what it runs, and what is in what it says then.
struct Case {
    name: &'static str,
    script: String,
    says: &'static str,
}

impl Lab {
    /// Makes one whose policy is a rule for the servers, with this in it.
    fn new(label: &str, rule: &str) -> Res<Self> {
        let tools = Tools::installed(Path::new(env!("CARGO_TARGET_TMPDIR")))?;
        let world = World::new(label)?;
        tools.link(&world)?;
        let servers = Servers::start(&tools)?;
        let daemon = daemon(&world)?;
        world.create("a", &[])?;
        let lab = Self {
            world,
            servers,
            _daemon: daemon,
        };
        let servers = &lab.servers;
        let policy = format!(
            "[[rule]]\nname = \"servers\"\naction = \"allow\"\nhosts = [\"{NAME}\"]\nports = [{}, {}]\n\
             addresses = [\"127.0.0.1\"]\nroots = '''\n{}'''\n{rule}\n",
            servers.port, servers.grpc_port, servers.root
        );
        put_policy(&lab.world, &policy)?;
        Ok(lab)
    }

    /// With registries that have something.
    fn with_goods(self) -> Res<Self> {
        self.servers.fill()?;
        Ok(self)
    }

    /// Runs a script inside, in a directory of its own; see [`NAMES`].
    fn run(&self, name: &str, script: &str) -> Res<Done> {
        self.start(name, script)?.finish_within(LONG)
    }

    fn start(&self, name: &str, script: &str) -> Res<Client> {
        let (url, grpc) = (self.servers.url(), self.servers.grpc_port);
        let script = format!(
            "set -eu; export T={INSIDE} U={url} P={} G={NAME}:{grpc}\n{NAMES}mkdir -p /workspace/{name}; cd /workspace/{name}\n{script}",
            self.servers.port
        );
        self.world
            .start(&["exec", "a", "--op", name, "--", "bash", "-c", &script])
    }

    /// Runs clients, some at once, and tells of all that did not do what they should.
    fn all(&self, cases: Vec<Case>) -> Res<()> {
        let (left, failed) = (Mutex::new(cases), Mutex::new(String::new()));
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    while let Some(case) = left.lock().ok().and_then(|mut left| left.pop()) {
                        let done = self.run(case.name, &case.script);
                        let words = match &done {
                            Ok(done) => said(done),
                            Err(error) => error.to_string(),
                        };
                        let well = done.is_ok_and(|done| done.code == Some(0));
                        if (!well || !words.contains(case.says))
                            && let Ok(mut failed) = failed.lock()
                        {
                            *failed += &format!("--- {}: {words}\n", case.name);
                        }
                    }
                });
            }
        });
        let failed = failed.into_inner().unwrap_or_default();
        if failed.is_empty() {
            return Ok(());
        }
        Err(trouble(format!("clients failed:\n{failed}")))
    }

    fn end(self) -> Res<()> {
        let Self {
            world,
            servers,
            _daemon,
        } = self;
        world.end_clean()?;
        drop(servers);
        Ok(())
    }
}

fn case(name: &'static str, says: &'static str, script: impl Into<String>) -> Case {
    Case {
        name,
        script: script.into(),
        says,
    }
}
