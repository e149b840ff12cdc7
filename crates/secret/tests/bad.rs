//! Sources that hang, say too much, are no files, or fail: each is refused in words, and no word of them is the secret.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::retry_on_intr;
use secret::{Error, Why};

use crate::world::{World, got, source, value};

/// What no message may contain.
const SECRET: &str = "hunter2-hunter2";

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("it is new");
}

async fn why(world: &World, text: &str) -> Why {
    let why: Error = got(&world.secrets(), text).await.expect_err(text);
    let said = format!("{why} {why:?}");
    assert!(!said.contains(SECRET), "{said}");
    assert_eq!(why.reference, source(text).to_string());
    assert!(said.contains(&why.reference), "{said}");
    why.why
}

/// A program that opens a pipe, says so on it, and stays with a child of its own.
fn stays(fifo: &Path) -> String {
    let script = format!(
        "exec 3>'{}'; echo up >&3; sleep 10000 & sleep 10000",
        fifo.display()
    );
    format!("command:{}", serde_json::json!(["sh", "-c", script]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_hangs_is_killed_with_all_that_it_started() {
    let world = World::new();
    let pipe = world.at("pipe");
    fifo(&pipe);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let reader = rustix::fs::open(&pipe, flags, Mode::empty()).expect("it is there");
    let secrets = world.hasty(Duration::from_secs(3));
    let text = stays(&pipe);
    let why = got(&secrets, &text).await.expect_err("it hangs");
    assert!(matches!(why.why, Why::TimedOut { secs: 3, .. }), "{why}");
    // Nobody has the other end any more.
    let mut ends = [PollFd::new(&reader, PollFlags::empty())];
    let patience = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    // A child's end is a signal, which interrupts this.
    retry_on_intr(|| poll(&mut ends, Some(&patience))).expect("it can be waited for");
    assert!(ends[0].revents().contains(PollFlags::HUP));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_ends_when_nobody_waits_for_it_any_more() {
    let world = World::new();
    let pipe = world.at("pipe");
    fifo(&pipe);
    let (secrets, text) = (world.secrets(), stays(&pipe));
    let asking = tokio::spawn(async move { got(&secrets, &text).await });
    let reading = tokio::task::spawn_blocking(move || {
        let mut file = fs::File::open(pipe).expect("it is there");
        let mut up = [0; 3];
        file.read_exact(&mut up).expect("it says so");
        (file, up)
    });
    let (mut file, up) = reading.await.expect("nobody panicked");
    assert_eq!(&up, b"up\n");
    asking.abort();
    let end = tokio::task::spawn_blocking(move || file.read_to_end(&mut Vec::new()));
    assert_eq!(end.await.expect("nobody panicked").ok(), Some(0));
}

#[tokio::test]
async fn a_program_that_fails_says_nothing_for_it_but_how_to_see_it() {
    let world = World::new();
    world.write("op", SECRET);
    let failed = why(&world, "op://v/My Item/f").await;
    assert_eq!(
        failed.to_string(),
        "the program op ended with exit status: 1; run it by hand to see why: op read --no-newline 'op://v/My Item/f'"
    );
    assert!(matches!(
        why(&world, "vault:secret/a#k").await,
        Why::Failed { .. }
    ));
    assert!(matches!(
        why(&world, "keyring:a/b").await,
        Why::Failed { .. }
    ));
    let loud = format!(
        r#"command:["sh","-c","cat '{}'; cat '{}' >&2; kill -9 $$"]"#,
        world.at("op").display(),
        world.at("op").display()
    );
    assert!(matches!(why(&world, &loud).await, Why::Failed { .. }));
    let none = why(&world, r#"command:["no-such-program-here"]"#).await;
    assert_eq!(
        none,
        Why::NoProgram {
            program: "no-such-program-here".into()
        }
    );
    assert!(matches!(
        why(&world, r#"command:["/"]"#).await,
        Why::Run { .. }
    ));
    assert_eq!(why(&world, r#"command:["true"]"#).await, Why::Empty);
}

#[tokio::test]
async fn a_client_that_is_not_installed_is_named() {
    let world = World::new();
    fs::remove_file(world.at("bin/op")).expect("it is there");
    assert_eq!(
        why(&world, "op://v/i/f").await,
        Why::NoProgram {
            program: "op".into()
        }
    );
}

#[tokio::test]
async fn what_is_too_long_is_refused() {
    let world = World::new();
    assert_eq!(why(&world, r#"command:["yes"]"#).await, Why::TooLong);
    let just = world.write("just", "x".repeat(64 * 1024));
    let text = format!("file:{}", just.display());
    assert_eq!(
        got(&world.secrets(), &text).await.map(|text| text.len()),
        Ok(64 * 1024)
    );
    let over = world.write("over", "x".repeat(64 * 1024 + 1));
    assert_eq!(
        why(&world, &format!("file:{}", over.display())).await,
        Why::TooLong
    );
}

#[tokio::test]
async fn what_is_no_file_is_refused_at_once() {
    let world = World::new();
    let pipe = world.at("pipe");
    fifo(&pipe);
    for path in [
        &*pipe,
        Path::new("/dev/zero"),
        Path::new("/dev/tty"),
        &*world.at("bin"),
    ] {
        let why = why(&world, &format!("file:{}", path.display())).await;
        assert!(matches!(why, Why::NotRegular { .. }), "{why}");
    }
}

#[tokio::test]
async fn a_file_that_others_can_read_is_refused_with_the_remedy() {
    let world = World::new();
    let path = world.write("token", SECRET);
    let text = format!("file:{}", path.display());
    for mode in [0o640, 0o604, 0o644, 0o660, 0o601] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        let why = why(&world, &text).await.to_string();
        assert!(
            why.contains("chmod 600") && why.contains(&format!("{mode:04o}")),
            "{why}"
        );
    }
    for mode in [0o600, 0o400] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        assert_eq!(got(&world.secrets(), &text).await.as_deref(), Ok(SECRET));
    }
}

#[tokio::test]
async fn what_is_not_there_or_empty_is_told() {
    let mut world = World::new();
    world.set("EMPTY", "");
    world.write("empty", "\n");
    assert_eq!(why(&world, "env:NONE").await, Why::NotSet);
    assert_eq!(why(&world, "env:EMPTY").await, Why::Empty);
    assert_eq!(why(&world, "age:none").await, Why::Unknown);
    assert!(matches!(
        why(&world, "file:/none/here").await,
        Why::File { .. }
    ));
    assert_eq!(
        why(&world, &format!("file:{}", world.at("empty").display())).await,
        Why::Empty
    );
}

#[tokio::test]
async fn a_failure_is_not_remembered() {
    let world = World::new();
    let secrets = world.secrets();
    let text = format!("command:{}", serde_json::json!(["cat", world.at("late")]));
    assert!(got(&secrets, &text).await.is_err());
    world.write("late", SECRET);
    assert_eq!(got(&secrets, &text).await.as_deref(), Ok(SECRET));
}

#[tokio::test]
async fn a_panic_that_holds_values_prints_none() {
    let world = World::new();
    let secrets = world.secrets();
    secrets.set("k", value(SECRET)).await.expect("it is kept");
    let held = secrets.resolve(&source("k")).await.expect("it is there");
    let panic = std::panic::catch_unwind(|| panic!("{held:?} {:?}", Some(&held)));
    let said = panic.expect_err("it panicked");
    let said = said.downcast_ref::<String>().expect("it says something");
    assert!(
        said.contains("Value(…)") && !said.contains(SECRET),
        "{said}"
    );
}
