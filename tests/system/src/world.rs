//! One data directory with its own daemon, and everything that a test does to it from outside.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::api::Api;
use crate::litter::{Litter, Marks};
use crate::{Client, Done, Effects, Points, Res, journal, process, run, trouble};

/// Variable that the processes of a world's sandboxes carry.
const MARK: &str = "DURABLE_TEST_WORLD";
/// Becomes another user, with a `/proc` that one may look into: some machines close theirs to all but root.
const AS_USER: &str = r#"mount -t proc proc /proc && g=$1 && shift &&
    exec setpriv --reuid "$0" --regid "$g" --clear-groups --inh-caps=-all -- "$@""#;
/// How long the last processes of an ended world may take to go.
const GOING: Duration = Duration::from_secs(10);

/// Returns the binary under test: DURABLE_BIN, else what `cargo build --release -p durable` makes.
///
/// # Errors
/// It is not there.
pub fn binary() -> Res<PathBuf> {
    let path = std::env::var_os("DURABLE_BIN").map_or_else(
        || {
            let built = "../../target/x86_64-unknown-linux-gnu/release/durable";
            Path::new(env!("CARGO_MANIFEST_DIR")).join(built)
        },
        PathBuf::from,
    );
    path.canonicalize().map_err(|_| {
        trouble(format!(
            "{} is not there: `cargo build --release -p durable -p model-server`, or name it in DURABLE_BIN",
            path.display()
        ))
    })
}

/// Returns a program that was built into the same directory.
///
/// # Errors
/// It is not there.
pub fn beside_binary(name: &str) -> Res<PathBuf> {
    let path = binary()?.with_file_name(name);
    if path.exists() {
        return Ok(path);
    }
    Err(trouble(format!(
        "{} is not there: `cargo build --release -p {name}`",
        path.display()
    )))
}

/// Returns a path in the temporary directory that nobody else uses.
#[must_use]
pub fn fresh_path(label: &str) -> PathBuf {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let name = format!("durable-system-{}-{serial}-{label}", std::process::id());
    std::env::temp_dir().join(name)
}

/// A data directory, its daemon, and what belongs to both. Dropped, all of it is killed and removed.
pub struct World {
    root: PathBuf,
    marks: Marks,
    binary: PathBuf,
    environment: BTreeMap<String, String>,
    user: Option<(u32, u32)>,
    effects: Effects,
    points: Option<Points>,
}

impl World {
    /// Makes an empty one; its first command starts the daemon.
    ///
    /// # Errors
    /// The binary is not there, or the temporary directory cannot be used.
    pub fn new(label: &str) -> Res<Self> {
        Self::make(label, None)
    }

    /// Makes one whose commands run as another user. Needs root.
    ///
    /// # Errors
    /// As [`Self::new`], or we are not root.
    pub fn of_user(label: &str, uid: u32, gid: u32) -> Res<Self> {
        Self::make(label, Some((uid, gid)))
    }

    fn make(label: &str, user: Option<(u32, u32)>) -> Res<Self> {
        let root = fresh_path(label);
        let data = root.join("data");
        let harnesses = data.join("harness");
        let home = root.join("home");
        for dir in [&harnesses, &home] {
            std::fs::create_dir_all(dir)?;
        }
        let effects = Effects::new(&harnesses)?;
        let mut binary = binary()?;
        if let Some((uid, gid)) = user {
            // The built one may lie where only its builder gets.
            let copy = root.join("durable");
            std::fs::copy(&binary, &copy)?;
            binary = copy;
            for dir in [&root, &data, &home, &harnesses] {
                std::os::unix::fs::chown(dir, Some(uid), Some(gid))?;
            }
        }
        let environment = [
            (
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            ),
            ("HOME", home.to_string_lossy().into_owned()),
            ("DURABLE_DATA", data.to_string_lossy().into_owned()),
            // Handed on to every process of the system: by this its processes are found.
            (
                "DURABLE_FAILPOINT_SOCKET",
                root.join("nobody.sock").to_string_lossy().into_owned(),
            ),
            ("RUST_BACKTRACE", "1".to_owned()),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value));
        Ok(Self {
            marks: Marks {
                root: root.clone(),
                data,
            },
            root,
            binary,
            environment: environment.into(),
            user,
            effects,
            points: None,
        })
    }

    /// Makes its processes stop where the test says. Before the first command.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn with_points(mut self) -> Res<Self> {
        let points = Points::new(&self.root)?;
        if self.user.is_some() {
            let socket = self.root.join("points.sock");
            std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o777))?;
        }
        for (name, value) in points.environment() {
            self.environment.insert(name.to_owned(), value);
        }
        self.points = Some(points);
        Ok(self)
    }

    /// Adds to the environment of its commands.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Its own directory, for the test's files.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.marks.data
    }

    /// How its processes are found.
    #[must_use]
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The counter of effects.
    #[must_use]
    pub fn effects(&self) -> &Effects {
        &self.effects
    }

    /// The failpoints.
    ///
    /// # Errors
    /// It was made without.
    pub fn points(&self) -> Res<&Points> {
        self.points
            .as_ref()
            .ok_or_else(|| trouble("this world has no points"))
    }

    /// Makes a command: the binary with these arguments, on this data directory.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = match self.user {
            None => Command::new(&self.binary),
            Some((uid, gid)) => {
                let mut command = Command::new("unshare");
                command
                    .args([
                        "--mount",
                        "--propagation",
                        "slave",
                        "--",
                        "sh",
                        "-c",
                        AS_USER,
                    ])
                    .args([uid.to_string(), gid.to_string()])
                    .arg(&self.binary);
                command
            }
        };
        command
            .args(args)
            .env_clear()
            .envs(&self.environment)
            .current_dir(&self.root);
        command
    }

    /// Runs the binary to its end.
    ///
    /// # Errors
    /// It cannot be started, or hangs.
    pub fn run(&self, args: &[&str]) -> Res<Done> {
        run::run(self.command(args))
    }

    /// Runs the binary to its end, which must be 0.
    ///
    /// # Errors
    /// As [`Self::run`], or another end.
    pub fn must(&self, args: &[&str]) -> Res<Done> {
        let words = args.join(" ");
        let words: String = words.chars().take(200).collect();
        self.run(args)?
            .ok()
            .map_err(|e| trouble(format!("durable {words}: {e}")))
    }

    /// Runs the binary and reads its answer as JSON.
    ///
    /// # Errors
    /// As [`Self::must`], or no JSON.
    pub fn json(&self, args: &[&str]) -> Res<Value> {
        self.must(args)?.json()
    }

    /// Starts the binary; stdin is empty.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, args: &[&str]) -> Res<Client> {
        let mut command = self.command(args);
        command.stdin(std::process::Stdio::null());
        Client::start(command)
    }

    /// Creates a sandbox whose processes can be found.
    ///
    /// # Errors
    /// The system refuses.
    pub fn create(&self, name: &str, more: &[&str]) -> Res<()> {
        let mark = format!("{MARK}={}", self.root.display());
        let mut args = vec!["create", name, "--sandbox-env", &mark];
        args.extend(more);
        self.must(&args)?;
        Ok(())
    }

    /// Runs a script in a sandbox to its end.
    ///
    /// # Errors
    /// The client cannot be started, or hangs.
    pub fn sh(&self, name: &str, script: &str) -> Res<Done> {
        self.run(&["exec", name, "--", "bash", "-c", script])
    }

    /// Opens a connection to the daemon; starts one where there is none.
    ///
    /// # Errors
    /// There is none and none starts.
    pub fn api(&self) -> Res<Api> {
        let socket = self.data().join("api.sock");
        if let Ok(api) = Api::unix(&socket) {
            return Ok(api);
        }
        self.must(&["ps"])?;
        Api::unix(&socket)
    }

    /// The daemon's process, if one lives.
    #[must_use]
    pub fn daemon(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.data().join("daemon.lock")).ok()?;
        let pid: i32 = text.trim().parse().ok()?;
        let data = format!("DURABLE_DATA={}", self.data().display());
        let is_ours = process::has_entry(pid, &data);
        (is_ours && process::is_alive(pid)).then_some(pid)
    }

    /// The process that holds the connections to models, if one lives.
    #[must_use]
    pub fn relay(&self) -> Option<i32> {
        let pids = self.marks.processes().into_iter();
        pids.into_iter()
            .find(|pid| process::command(*pid).contains("__relay"))
    }

    /// The state directory of a sandbox on the host.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub fn state_dir(&self, name: &str) -> Res<PathBuf> {
        let id = journal::id_of(self.data(), name)?
            .ok_or_else(|| trouble(format!("the journal knows no sandbox {name}")))?;
        Ok(self.data().join("sandboxes").join(id.to_string()))
    }

    /// Process 1 of a sandbox, if it lives.
    #[must_use]
    pub fn supervisor(&self, name: &str) -> Option<i32> {
        let note = std::fs::read(self.state_dir(name).ok()?.join("running.json")).ok()?;
        let note: Value = serde_json::from_slice(&note).ok()?;
        let pid = i32::try_from(note["pid"].as_i64()?).ok()?;
        let same = process::stat(pid)?.start == note["start_time"].as_u64()?;
        (same && process::is_alive(pid)).then_some(pid)
    }

    /// The processes of an operation, as far as they kept their environment.
    #[must_use]
    pub fn processes_of(&self, op: &str) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.root.display());
        let of_op = process::with_entry(&format!("DURABLE_OP={op}"));
        of_op
            .into_iter()
            .filter(|pid| process::has_entry(*pid, &mark))
            .collect()
    }

    /// Returns a path of the host as the daemon sees it: its pool is mounted for itself only.
    ///
    /// # Errors
    /// No daemon lives.
    pub fn as_daemon_sees(&self, path: &Path) -> Res<PathBuf> {
        let daemon = self.daemon().ok_or_else(|| trouble("no daemon lives"))?;
        let path = path.strip_prefix("/").unwrap_or(path);
        Ok(PathBuf::from(format!("/proc/{daemon}/root")).join(path))
    }

    /// The end of the daemon's log, for people.
    #[must_use]
    pub fn daemon_log(&self) -> String {
        let log = std::fs::read_to_string(self.data().join("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Removes every sandbox, ends the daemon in order and returns what is left then.
    ///
    /// # Errors
    /// Something cannot be removed or ended.
    pub fn end(self) -> Res<Litter> {
        let mut api = self.api()?;
        let list = api.get("/v1/sandboxes")?;
        for sandbox in list.as_array().into_iter().flatten() {
            let name = sandbox["name"].as_str().unwrap_or_default();
            let done = api.send("DELETE", &format!("/v1/sandboxes/{name}"), b"")?;
            done.json()
                .map_err(|e| trouble(format!("sandbox {name} cannot be removed: {e}")))?;
        }
        drop(api);
        if let Some(daemon) = self.daemon()
            && !process::terminate(daemon, Duration::from_secs(30))
        {
            return Err(trouble("the daemon does not end"));
        }
        let until = Instant::now() + GOING;
        loop {
            let litter = self.marks.look();
            if litter.is_clean() || Instant::now() > until {
                return Ok(litter);
            }
            // The last processes are on their way; nobody tells when they are gone.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it in order; anything left is an error.
    ///
    /// # Errors
    /// See [`Self::end`].
    pub fn end_clean(self) -> Res<()> {
        let litter = self.end()?;
        if litter.is_clean() {
            return Ok(());
        }
        Err(trouble(format!("left behind: {}", litter.words())))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.marks.remove();
        if std::env::var_os("DURABLE_TEST_KEEP").is_none() {
            // What a failed test left mounted goes with its last process; the directory may take a second try.
            let _removed = std::fs::remove_dir_all(&self.root);
        }
    }
}
