//! A data directory of its own with sandboxes in it; gone on drop, also after a panic.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use isolation::container::Container;
use isolation::{Error, Level, Running, StartSpec};
use protocol::{Image, Limits, SandboxId};
use serde_json::{Value, json};

pub(crate) struct World {
    pub(crate) level: Container,
    pub(crate) home: tempfile::TempDir,
    next: AtomicU64,
}

pub(crate) struct Sandbox<'w> {
    world: &'w World,
    pub(crate) spec: StartSpec,
    pub(crate) running: Running,
}

#[derive(Debug)]
#[expect(dead_code, reason = "`err` is for the messages of failed tests")]
pub(crate) struct Done {
    pub(crate) code: Option<i64>,
    pub(crate) signal: Option<i64>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The supervisor of the tests, built by cargo beside them.
pub(crate) fn supervisor() -> PathBuf {
    if let Some(path) = std::env::var_os("ISOLATION_TEST_SUPERVISOR") {
        return path.into();
    }
    let exe = std::env::current_exe().unwrap();
    let path = exe
        .parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("examples/mini_supervisor");
    assert!(
        path.exists(),
        "{} is missing: run `cargo test` without `--test`",
        path.display()
    );
    path
}

impl World {
    pub(crate) fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests need root: run them with `sudo -E cargo test`"
        );
        Self::in_directory(
            tempfile::Builder::new()
                .prefix("isolation-")
                .tempdir()
                .unwrap(),
        )
    }

    pub(crate) fn in_directory(home: tempfile::TempDir) -> Self {
        Self {
            level: Container::new(home.path()).unwrap(),
            home,
            next: AtomicU64::new(1),
        }
    }

    pub(crate) fn spec(&self) -> StartSpec {
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        let own = self.home.path().join(nth.to_string());
        for dir in ["upper", "work", "state"] {
            std::fs::create_dir_all(own.join(dir)).unwrap();
        }
        StartSpec {
            // Tests run at the same time, in several processes; their ranges of ids must not meet.
            sandbox: SandboxId(u64::from(std::process::id()) * 16 + nth),
            hostname: "ada".to_owned(),
            image: Image::Host,
            binary: supervisor(),
            exe_args: vec![],
            harness_dir: None,
            upper: own.join("upper"),
            work: own.join("work"),
            state: own.join("state"),
            limits: Limits::default(),
            doors: None,
            ca: None,
        }
    }

    pub(crate) fn start(&self) -> Sandbox<'_> {
        self.start_with(self.spec()).unwrap()
    }

    pub(crate) fn start_with(&self, spec: StartSpec) -> Result<Sandbox<'_>, Error> {
        let running = self.level.start(&spec)?;
        Ok(Sandbox {
            world: self,
            spec,
            running,
        })
    }

    pub(crate) fn start_image(&self, image: &Path) -> Result<Sandbox<'_>, Error> {
        self.start_with(StartSpec {
            image: Image::Dir(image.to_owned()),
            ..self.spec()
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Ends what a panic left behind.
        self.level.sweep(&[]).unwrap();
    }
}

impl Sandbox<'_> {
    pub(crate) fn run(&self, argv: &[&str]) -> Done {
        ask(&self.spec.state, &json!({ "argv": argv }))
    }

    pub(crate) fn sh(&self, script: &str) -> Done {
        self.run(&["sh", "-c", script])
    }

    pub(crate) fn sh_as(&self, uid: u32, script: &str) -> Done {
        ask(
            &self.spec.state,
            &json!({ "argv": ["sh", "-c", script], "uid": uid }),
        )
    }

    /// The output of a script that must succeed, without the last line end.
    pub(crate) fn says(&self, script: &str) -> String {
        let done = self.sh(script);
        assert_eq!(done.code, Some(0), "{script}: {done:?}");
        done.out.trim_end().to_owned()
    }

    /// The error number that a system call of perl's is answered with; 0 where it succeeds.
    pub(crate) fn errno(&self, syscall: i64, args: &str) -> i32 {
        let script = format!("$! = 0; my $r = syscall({syscall}{args}); print $r == -1 ? $!+0 : 0");
        let done = self.run(&["perl", "-e", &script]);
        assert_eq!(done.code, Some(0), "perl is needed: {done:?}");
        done.out.parse().unwrap()
    }

    /// The bundled program, which needs nothing of the image.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let done = self.run(&[protocol::paths::BIN, "ls", path]);
        assert_eq!(done.code, Some(0), "{done:?}");
        done.out.lines().map(str::to_owned).collect()
    }

    pub(crate) fn kill(&self) {
        self.world.level.kill(&self.running).unwrap();
    }
}

impl Drop for Sandbox<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends one request to the supervisor of a state directory.
pub(crate) fn ask(state: &Path, request: &Value) -> Done {
    let mut socket = UnixStream::connect(state.join(protocol::paths::state::CONTROL)).unwrap();
    writeln!(socket, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).unwrap();
    let answer: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    let text = |key: &str| answer[key].as_str().unwrap_or_default().to_owned();
    Done {
        code: answer["code"].as_i64(),
        signal: answer["signal"].as_i64(),
        out: text("out"),
        err: text("err"),
    }
}
