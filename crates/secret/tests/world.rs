//! A directory of its own for each test: the clients on its PATH, what they answer, and the store.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use secret::{Env, Result, Secrets, Source, Value};
use tempfile::TempDir;

pub(crate) struct World {
    dir: TempDir,
    env: Vec<(String, String)>,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).expect("it is new");
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        for name in ["op", "vault", "secret-tool"] {
            symlink(programs.join(name), bin.join(name)).expect("it is new");
        }
        let mut world = Self {
            dir,
            env: Vec::new(),
        };
        world.set("PATH", &format!("{}:/usr/bin:/bin", bin.display()));
        world
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.env.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file that only its owner can read.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().expect("it is below the world")).expect("it can be made");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = file.open(&path).expect("it can be written");
        file.write_all(bytes.as_ref()).expect("it can be written");
        path
    }

    pub(crate) fn secrets(&self) -> Secrets {
        Secrets::open(&self.at("data"), self.env()).expect("it opens")
    }

    /// For what never answers.
    pub(crate) fn hasty(&self, patience: Duration) -> Secrets {
        Secrets::open_with(&self.at("data"), self.env(), patience).expect("it opens")
    }

    fn env(&self) -> Env {
        Env::of(self.env.iter().cloned())
    }

    /// Returns how the clients were called.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.at("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }
}

pub(crate) fn source(text: &str) -> Source {
    text.parse().expect("it is a reference")
}

/// Resolves a reference, as text.
pub(crate) async fn got(secrets: &Secrets, text: &str) -> Result<String> {
    let value = secrets.resolve(&source(text)).await?;
    Ok(value.text().expect("it is text").to_owned())
}

pub(crate) fn value(text: &str) -> Value {
    Value::new(text)
}
