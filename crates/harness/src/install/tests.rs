//! With a stand-in for npm, so that no network is needed.

use std::os::unix::fs::PermissionsExt;

use super::*;

struct World {
    dir: tempfile::TempDir,
}

impl World {
    /// An npm that does what `script` says; `$DEST` is where packages go.
    fn new(script: &str) -> Self {
        let world = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let npm = format!(
            "#!/bin/sh\nset -e\nDEST=$3/node_modules\necho $@ >> {}/calls\n{script}\n",
            world.dir.path().display()
        );
        // Written by another process: a test beside this one may be between its fork and its exec and would hold our
        // descriptor, and a file that is open for writing cannot be run.
        let made = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""])
            .arg(world.npm())
            .arg(npm)
            .status();
        assert!(made.unwrap().success());
        world
    }

    fn npm(&self) -> PathBuf {
        self.dir.path().join("npm")
    }

    fn layer(&self) -> PathBuf {
        self.dir.path().join("layer")
    }

    fn install(&self, version: &str) -> Result<Installed, Error> {
        install_with(&self.npm(), &self.layer(), "claude", version)
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.dir.path().join("calls"))
            .unwrap_or_default()
            .lines()
            .count()
    }
}

const CLAUDE: &str = r#"
PKG=$DEST/@anthropic-ai/claude-code-linux-x64; mkdir -p $PKG
printf '#!/bin/sh\necho 1.2.3 "(Claude Code)"\n' > $PKG/claude; chmod 700 $PKG/claude"#;

#[test]
fn a_version_is_fetched_once_and_open_to_all() {
    let world = World::new(CLAUDE);
    let first = world.install("1.2.3").unwrap();
    assert!(!first.already);
    let program = first.path.join("claude");
    assert_eq!(
        fs::metadata(program).unwrap().permissions().mode() & 0o777,
        0o755
    );
    assert!(!first.path.join(".home").exists());
    assert!(world.install("1.2.3").unwrap().already);
    assert_eq!(world.calls(), 1);
    let all = list(&world.layer()).unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(
        (all[0].name.as_str(), all[0].version.as_str()),
        ("claude", "1.2.3")
    );
}

#[test]
fn two_at_once_fetch_once() {
    let world = World::new(CLAUDE);
    std::thread::scope(|scope| {
        let both = [0, 1].map(|_| scope.spawn(|| world.install("1.2.3").unwrap().already));
        let mut already = both.map(|t| t.join().unwrap());
        already.sort_unstable();
        assert_eq!(already, [false, true]);
    });
    assert_eq!(world.calls(), 1);
}

#[test]
fn what_a_crash_left_is_cleared_away() {
    let world = World::new(CLAUDE);
    let left = world.layer().join("claude/.fetch/half");
    fs::create_dir_all(&left).unwrap();
    let installed = world.install("1.2.3").unwrap();
    assert!(!installed.path.join("half").exists());
    assert!(!world.layer().join("claude/.fetch").exists());
}

#[test]
fn failures_say_what_to_do_and_leave_nothing() {
    for (script, want) in [
        (
            "echo 'npm error code ETARGET' >&2; exit 1",
            "claude 1.2.3 is not published (package @anthropic-ai/claude-code-linux-x64)",
        ),
        (
            "printf 'npm error code ENOTFOUND\\nnpm error syscall getaddrinfo\\nnpm error network request to R failed\\n' >&2; exit 1",
            "the npm registry cannot be reached: request to R failed; check the network and `npm config get registry`",
        ),
        (
            "echo 'npm error disk is full' >&2; exit 1",
            "npm could not fetch claude 1.2.3: disk is full",
        ),
        (
            &CLAUDE.replace("echo 1.2.3", "echo 1.2.4"),
            "claude 1.2.3 was fetched but does not run here: it says that it is 1.2.4 (Claude Code)",
        ),
        (
            &CLAUDE.replace("echo 1.2.3", "echo no such library >&2; exit 127; echo"),
            "claude 1.2.3 was fetched but does not run here: no such library",
        ),
    ] {
        let world = World::new(script);
        assert_eq!(world.install("1.2.3").unwrap_err().to_string(), want);
        assert_eq!(list(&world.layer()).unwrap(), []);
        assert!(!world.layer().join("claude/.fetch").exists());
    }
    let world = World::new("");
    let missing = install_with(
        &world.dir.path().join("none"),
        &world.layer(),
        "pi",
        "1.0.0",
    );
    assert!(matches!(missing, Err(Error::NoNpm)));
}

#[test]
fn names_and_versions_are_checked_before_anything_is_done() {
    assert_eq!(parse("pi").unwrap(), ("pi", "1.6.0".to_owned()));
    assert_eq!(
        parse("claude@2.0.0-beta.1").unwrap(),
        ("claude", "2.0.0-beta.1".to_owned())
    );
    for text in [
        "claude@latest",
        "claude@^1.0.0",
        "claude@../x",
        "claude@1/2",
        "claude@",
    ] {
        assert!(matches!(parse(text), Err(Error::Version { .. })), "{text}");
    }
    assert!(matches!(parse("codex"), Err(Error::Unknown { .. })));
}
