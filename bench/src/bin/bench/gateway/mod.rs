//! What does the gateway cost a request that it looks into?
//!
//! The product's whole path: a program in a sandbox connects to a door, its TLS is opened, the policy judges the request, the
//! journal gets it, a secret goes in (and is looked for in the answer), and it leaves over TLS to an origin on loopback. Held
//! against the same program without a gateway, and against mitmproxy, which opens TLS too and does nothing else. The aims: half a
//! millisecond more in the median and 3 ms in the worst of a hundred, 250 MiB a second for each core that the daemon takes, events
//! at most 5 ms late, 64 MiB for 1,000 open streams.

mod mitmproxy;
mod origin;
mod process;
mod sizes;

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bench::Failure;
use bench::gateway::{Measured, Task, What};
use hyper::Method;
use protocol::egress::{PolicyText, PolicyView};
use protocol::paths::CA_BUNDLE;
use rustix::mount::mount_bind;

use crate::figures::Sample;
use crate::table::{Group, Unit};
use crate::world::World;

use mitmproxy::Mitmproxy;
use origin::Origin;
use process::Process;

const SANDBOX: &str = "gateway";
const CLIENT: &str = "gateway-client";
const SECRET: &str = "sk-bench-4f1b7a2d9e6f0c8e";
/// Connections to any address end at a door; this one is nobody's (RFC 5737).
const ANYWHERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Aims, in milliseconds over direct and in mebibytes.
const MEDIAN_MORE: f64 = 0.5;
const P99_MORE: f64 = 3.0;
const EVENT_LAG: f64 = 5.0;
/// Requests of one client; a round has one of each.
const BLOCK: usize = 300;

/// Makes the origin's name known to this process and those that it starts. They must have mounts of their own.
pub(crate) fn know_origin() -> Result<(), Failure> {
    let what = "make a name known";
    let file = tempfile::NamedTempFile::new().map_err(Failure::cannot(what))?;
    let text = format!("127.0.0.1 localhost {}\n", origin::NAME);
    std::fs::write(file.path(), text).map_err(Failure::cannot(what))?;
    // What is mounted stays, also when its name is gone.
    mount_bind(file.path(), "/etc/hosts").map_err(Failure::cannot(what))
}

/// Who brings a request to the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    /// Looked into, and nothing put in.
    Gateway,
    /// A secret goes in, and is looked for in what comes back.
    Secret,
    Mitmproxy,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Gateway => "durable",
            Self::Secret => "durable, with a secret",
            Self::Mitmproxy => "mitmproxy",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Gateway | Self::Secret)
    }
}

/// Ours first: the table compares the others with the first line.
const WAYS: [Way; 4] = [Way::Gateway, Way::Secret, Way::Direct, Way::Mitmproxy];

/// The versions of HTTP, by whether it is the second.
const VERSIONS: [(bool, &str); 2] = [(false, "HTTP/1.1"), (true, "HTTP/2")];

/// Everything that is measured here.
struct Course<'a> {
    world: &'a World,
    origin: Origin,
    peer: Mitmproxy,
    client: PathBuf,
    daemon: Process,
    ops: Cell<u32>,
}

pub(crate) fn run(world: &World, quick: bool) -> Result<Vec<Group>, Failure> {
    let client = client()?;
    let inside = world.root().join("bin").join(CLIENT);
    std::fs::copy(&client, &inside).map_err(Failure::cannot(format!(
        "copy {} into the image",
        client.display()
    )))?;
    let origin = Origin::start(world.dir(), SECRET)?;
    let peer = Mitmproxy::start(world.dir(), &origin)?;
    let daemon = world
        .daemon_pid()
        .ok_or_else(|| Failure::wrong("no daemon runs"))?;
    let mut api = world.connect()?;
    api.create(SANDBOX, world.image())?;
    let secret = world.dir().join("secret");
    write_private(&secret)?;
    let policy = PolicyText {
        policy: policy(&origin, &secret),
        forget: false,
    };
    let path = format!("/v1/sandboxes/{SANDBOX}/policy");
    let _in_force: PolicyView = api.call(Method::PUT, &path, Some(&policy))?;
    let course = Course {
        world,
        origin,
        peer,
        client,
        daemon: Process(daemon),
        ops: Cell::new(0),
    };
    let some = |full: usize, short: usize| if quick { short } else { full };
    // Memory before anything has used some.
    let mut groups = sizes::memory(&course, some(1000, 100))?;
    groups.extend(course.latency(some(10, 1))?);
    groups.extend(sizes::throughput(&course, some(1 << 30, 1 << 26))?);
    groups.push(course.events(some(1000, 100))?);
    api.remove(SANDBOX)?;
    Ok(groups)
}

/// Returns the client, which is built beside us.
fn client() -> Result<PathBuf, Failure> {
    let ours = std::env::current_exe().map_err(Failure::cannot("find this program"))?;
    let client = ours.with_file_name(CLIENT);
    if client.exists() {
        Ok(client)
    } else {
        Err(Failure::wrong(format!(
            "{} is not there: `cargo build --release -p bench` builds it",
            client.display()
        )))
    }
}

fn write_private(path: &Path) -> Result<(), Failure> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(SECRET.as_bytes()))
        .map_err(Failure::cannot("write a secret"))
}

/// Two rules that look into the same origin, told apart by path.
fn policy(origin: &Origin, secret: &Path) -> String {
    let rule = |name: &str, more: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\naction = \"allow\"\nhosts = [\"{}\"]\nports = [{}]\naddresses = [\"127.0.0.1\"]\n\
             methods = [\"GET\", \"POST\"]\npaths = [\"/{name}/**\"]\nroots = '''\n{}'''\n{more}\n",
            origin::NAME,
            origin.address.port(),
            origin.root
        )
    };
    let inject = "inject = [{ secret = \"api\", bearer = true }]\n";
    let from = format!(
        "[[secret]]\nname = \"api\"\nfrom = \"file:{}\"\n",
        secret.display()
    );
    rule("plain", "") + &rule("secret", inject) + &from
}

impl Course<'_> {
    /// Returns what runs the client on a way.
    fn command(&self, way: Way, http2: bool, what: What) -> Result<Command, Failure> {
        let authority = self.origin.authority();
        let (roots, address) = match way {
            Way::Direct => (self.origin.root_file.clone(), self.origin.address),
            Way::Mitmproxy => (self.peer.roots.clone(), self.peer.address),
            Way::Gateway | Way::Secret => (
                CA_BUNDLE.into(),
                SocketAddr::from((ANYWHERE, self.origin.address.port())),
            ),
        };
        let prefix = if way == Way::Secret {
            "/secret"
        } else {
            "/plain"
        };
        let task = Task {
            http2,
            roots,
            address,
            proxy: way == Way::Mitmproxy,
            authority,
            prefix: prefix.to_owned(),
            what,
        };
        let task = serde_json::to_string(&task).map_err(Failure::cannot("write a task"))?;
        let mut command = if way.is_ours() {
            let op = format!("measure-{}", self.ops.replace(self.ops.get() + 1));
            let inside = format!("/bin/{CLIENT}");
            self.world
                .durable(&["exec", "--op", &op, SANDBOX, "--", &inside])
        } else {
            Command::new(&self.client)
        };
        command
            .arg(task)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        Ok(command)
    }

    /// Runs the client to its end.
    fn measure(&self, way: Way, http2: bool, what: What) -> Result<Vec<f64>, Failure> {
        let mut command = self.command(way, http2, what)?;
        let doing = format!("measure {what:?} {}", way.name());
        let done = command.output().map_err(Failure::cannot(doing.clone()))?;
        if !done.status.success() {
            return Err(Failure::wrong(format!("{doing}: {}", done.status)));
        }
        result(way, &doing, &done.stdout)
    }

    fn latency(&self, rounds: usize) -> Result<Vec<Group>, Failure> {
        let mut groups = Vec::new();
        for (http2, version) in VERSIONS {
            let mut warm: Vec<Sample> = WAYS.iter().map(|_| Sample::default()).collect();
            let mut cold = warm.clone();
            for _ in 0..rounds {
                for (nth, way) in WAYS.into_iter().enumerate() {
                    // It takes several times as long, and says the same with fewer.
                    let count = if way == Way::Mitmproxy {
                        BLOCK / 3
                    } else {
                        BLOCK
                    };
                    for took in self.measure(way, http2, What::Warm(count))? {
                        warm[nth].push(took);
                    }
                    for took in self.measure(way, http2, What::Cold(BLOCK / 30))? {
                        cold[nth].push(took);
                    }
                }
            }
            let mut group = compared(
                format!("a request of 1 KiB on a warm connection, {version}"),
                Unit::Millis,
                &warm,
            );
            aims(&mut group, version, &warm);
            groups.push(group);
            groups.push(compared(
                format!("the same on a new connection, {version}"),
                Unit::Millis,
                &cold,
            ));
        }
        Ok(groups)
    }

    fn events(&self, count: usize) -> Result<Group, Failure> {
        let mut group = Group::new("an event's way from origin to reader (SSE, 500 a second)");
        for (http2, version) in VERSIONS {
            for way in WAYS {
                let mut sample = Sample::default();
                for late in self.measure(way, http2, What::Events(count))? {
                    sample.push(late);
                }
                let who = format!("{}, {version}", way.name());
                if way.is_ours()
                    && let Some(p99) = sample.figures().and_then(|figures| figures.p99)
                {
                    let text = format!("{who}: 99 of 100 events at most 5 ms late");
                    group.at_most(text, p99, EVENT_LAG);
                }
                group.line(who, Unit::Millis, &sample);
            }
        }
        Ok(group)
    }
}

/// Understands what the client printed. Only with a secret of the policy does a request bring one.
fn result(way: Way, doing: &str, stdout: &[u8]) -> Result<Vec<f64>, Failure> {
    let measured: Measured =
        serde_json::from_slice(stdout).map_err(Failure::cannot(format!("understand: {doing}")))?;
    if measured.authorized != (way == Way::Secret) {
        return Err(Failure::wrong(format!(
            "{doing}: the origin got the secret: {}",
            measured.authorized
        )));
    }
    Ok(measured.values)
}

/// A line of each way: ours, then the others and how ours compares.
fn compared(what: String, unit: Unit, samples: &[Sample]) -> Group {
    let mut group = Group::new(what);
    for (way, sample) in WAYS.iter().zip(samples) {
        if way.is_ours() {
            group.line(way.name(), unit, sample);
        } else {
            group.peer(way.name(), unit, sample);
        }
    }
    group
}

fn aims(group: &mut Group, version: &str, samples: &[Sample]) {
    let of = |wanted: Way| {
        let at = WAYS.iter().position(|way| *way == wanted)?;
        samples.get(at)?.figures()
    };
    let Some(direct) = of(Way::Direct) else {
        return;
    };
    for way in WAYS.into_iter().filter(|way| way.is_ours()) {
        let Some(ours) = of(way) else { continue };
        let who = format!("{}, {version}", way.name());
        let more = ours.median - direct.median;
        group.at_most(
            format!("{who}: at most 0.5 ms more than direct in the median"),
            more,
            MEDIAN_MORE,
        );
        if let (Some(ours), Some(direct)) = (ours.p99, direct.p99) {
            let text = format!("{who}: at most 3 ms more than direct at p99");
            group.at_most(text, ours - direct, P99_MORE);
        }
    }
}
