//! The store: what is on disk, who can read it, what a crash leaves, and the `age` tool as the other end.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use secret::{Error, FingerprintKey, Store, Why};
use tempfile::TempDir;

use crate::world::{World, got, value};

const SECRET: &str = "hunter2-hunter2";

fn store() -> (TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(dir.path(), None).expect("it opens");
    (dir, store)
}

fn key() -> FingerprintKey {
    FingerprintKey::new([1; 32])
}

fn files(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).expect("it is there") {
        let path = entry.expect("it is there").path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.push(path.display().to_string());
        }
    }
    all.sort();
    all
}

#[test]
fn what_is_set_can_be_had_listed_and_removed() {
    let (_dir, store) = store();
    for (name, text) in [("b", "two"), ("a", SECRET), ("c.d-e_F", "\0bytes\u{ff}\n")] {
        store.set(name, &value(text)).expect("it is kept");
        assert!(store.get(name).expect("it is there").is(text.as_bytes()));
    }
    store.set("b", &value("three")).expect("it is kept");
    let listed = store.list(&key()).expect("it is listed");
    let names: Vec<&str> = listed.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c.d-e_F"]);
    assert_eq!(
        listed[1].fingerprint,
        Ok(value("three").fingerprint(&key()))
    );
    assert!(listed[0].changed.0 > 1_700_000_000_000);
    assert!(!format!("{listed:?} {store:?}").contains("hunter2"));
    assert_eq!(store.remove("a"), Ok(true));
    assert_eq!(store.remove("a"), Ok(false));
    assert_eq!(store.get("a").expect_err("it is gone").why, Why::Unknown);
    assert_eq!(store.list(&key()).expect("it is listed").len(), 2);
}

#[test]
fn nothing_on_disk_is_in_the_open_or_for_others_eyes() {
    let (dir, store) = store();
    store.set("a", &value(SECRET)).expect("it is kept");
    let files = files(dir.path());
    assert!(
        files.iter().any(|file| file.ends_with("store.age.d/a.age")),
        "{files:?}"
    );
    for file in &files {
        let bytes = fs::read(file).expect("it is there");
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("hunter2"), "{file}");
        if !bytes.is_empty() {
            let mode = fs::metadata(file)
                .expect("it is there")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }
    let dir = fs::metadata(dir.path().join("store.age.d")).expect("it is there");
    assert_eq!(dir.permissions().mode() & 0o777, 0o700);
}

#[test]
fn names_and_values_that_are_none_are_refused_and_not_repeated() {
    let (dir, store) = store();
    let token = ["ghp_", "0123456789abcdefghij", "ABCDEFGHIJ012345"].concat();
    for name in ["", "../a", "a/b", ".a", "a b", token.as_str()] {
        for why in [
            store.set(name, &value("x")).expect_err("it is no name"),
            store.get(name).expect_err("it is no name"),
            store.remove(name).map(|_| ()).expect_err("it is no name"),
        ] {
            let said = format!("{why} {why:?}");
            assert!(matches!(why.why, Why::NoReference(_)), "{said}");
            assert!(!said.contains("0123456789"), "{said}");
        }
    }
    assert_eq!(
        store.set("a", &value("")).map_err(|e| e.why),
        Err(Why::Empty)
    );
    let long = value(&"x".repeat(64 * 1024 + 1));
    assert_eq!(store.set("a", &long).map_err(|e| e.why), Err(Why::TooLong));
    store
        .set("a", &value(&"x".repeat(64 * 1024)))
        .expect("it is kept");
    assert_eq!(
        store.get("a").expect("it is there").expose().len(),
        64 * 1024
    );
    assert_eq!(
        fs::read_dir(dir.path().join("store.age.d"))
            .expect("it is there")
            .count(),
        1
    );
}

#[test]
fn an_identity_that_is_gone_or_another_is_told_and_none_is_made_over_it() {
    let (dir, store) = store();
    store.set("a", &value(SECRET)).expect("it is kept");
    let (identity, away) = (dir.path().join("identity.txt"), dir.path().join("away"));
    fs::rename(&identity, &away).expect("it is there");
    let gone = |why: Error| matches!(why.why, Why::IdentityGone { .. });
    assert!(gone(store.get("a").expect_err("it is gone")));
    assert!(gone(store.set("b", &value("x")).expect_err("it is gone")));
    assert!(!identity.exists());
    let listed = store.list(&key()).expect("names are there");
    assert!(listed[0].fingerprint.is_err());

    fs::write(&identity, "AGE-SECRET-KEY-none").expect("it can be written");
    let why = store.get("a").expect_err("others can read it");
    assert!(matches!(why.why, Why::Exposed { .. }), "{why}");
    fs::set_permissions(&identity, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let why = store.get("a").expect_err("it is none");
    assert!(matches!(why.why, Why::NoIdentity { .. }), "{why}");
    fs::remove_file(&identity).expect("it is there");

    let other = tempfile::tempdir().expect("a directory");
    let others = Store::open(other.path(), None).expect("it opens");
    others.set("x", &value("x")).expect("it is kept");
    fs::rename(other.path().join("identity.txt"), &identity).expect("it is there");
    let why = store.get("a").expect_err("it is another's");
    assert!(matches!(why.why, Why::OtherIdentity { .. }), "{why}");
    assert!(why.to_string().contains("DURABLE_AGE_IDENTITY"));

    let named = Store::open(dir.path(), Some(&away)).expect("it opens");
    assert!(named.get("a").expect("it is there").is(SECRET.as_bytes()));
    // Both, the new one first: what is older is opened, what is new is for the new one.
    let both = [
        fs::read(&identity).expect("it is there"),
        fs::read(&away).expect("it is there"),
    ];
    fs::write(&identity, both.concat()).expect("it can be written");
    assert!(store.get("a").expect("it is there").is(SECRET.as_bytes()));
    store.set("b", &value("new")).expect("it is kept");
    let why = named.get("b").expect_err("it is for the new one");
    assert!(matches!(why.why, Why::OtherIdentity { .. }), "{why}");
}

#[test]
fn an_identity_that_is_named_is_never_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let named = dir.path().join("mine");
    let store = Store::open(dir.path(), Some(&named)).expect("it opens");
    let why = store.set("a", &value("x")).expect_err("it is not there");
    assert!(matches!(why.why, Why::File { .. }), "{why}");
    assert!(!named.exists() && !dir.path().join("identity.txt").exists());
}

#[test]
fn a_damaged_file_is_told_and_never_gives_another_value() {
    let (dir, store) = store();
    store.set("a", &value(SECRET)).expect("it is kept");
    let path = dir.path().join("store.age.d/a.age");
    let whole = fs::read(&path).expect("it is there");
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).expect("it can be written");
        let why = store.get("a").expect_err("a bit is another");
        let told = matches!(why.why, Why::Damaged { .. } | Why::OtherIdentity { .. });
        assert!(told, "byte {at}: {why}");
    }
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).expect("it can be written");
        assert!(store.get("a").is_err(), "{len} bytes are left");
    }
    fs::write(&path, &whole).expect("it can be written");
    assert!(store.get("a").expect("it is whole").is(SECRET.as_bytes()));
}

#[test]
fn what_a_crash_left_unfinished_is_nobodys_secret_and_goes() {
    let (dir, store) = store();
    store.set("a", &value(SECRET)).expect("it is kept");
    let left = dir.path().join("store.age.d/.unfinished-b.age");
    fs::write(&left, "half").expect("it can be written");
    assert_eq!(store.list(&key()).expect("it is listed").len(), 1);
    assert_eq!(
        store.get("b").expect_err("it was never kept").why,
        Why::Unknown
    );
    store.set("b", &value("x")).expect("it is kept");
    assert!(!left.exists());
    assert_eq!(store.list(&key()).expect("it is listed").len(), 2);
}

#[test]
fn many_who_set_at_once_leave_one_identity_and_whole_files() {
    let dir = tempfile::tempdir().expect("a directory");
    std::thread::scope(|scope| {
        for n in 0..8 {
            let dir = dir.path();
            scope.spawn(move || {
                let store = Store::open(dir, None).expect("it opens");
                for round in 0..5 {
                    store
                        .set("same", &value(&format!("{n} {round}")))
                        .expect("it is kept");
                    store
                        .set(&format!("own{n}"), &value("x"))
                        .expect("it is kept");
                    store.get("same").expect("it is whole");
                }
            });
        }
    });
    let store = Store::open(dir.path(), None).expect("it opens");
    let listed = store.list(&key()).expect("it is listed");
    assert_eq!(listed.len(), 9);
    assert!(
        listed.iter().all(|entry| entry.fingerprint.is_ok()),
        "{listed:?}"
    );
}

/// Runs a tool of age's with this on its stdin.
fn age(program: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it is installed");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input).expect("it reads");
    drop(stdin);
    let done = child.wait_with_output().expect("it ends");
    assert!(done.status.success(), "{program} {args:?}: {}", done.status);
    done.stdout
}

#[test]
fn the_age_tool_reads_the_store_and_the_store_reads_the_age_tool() {
    if Command::new("age").arg("--version").output().is_err() {
        eprintln!("skipped: `age` is not installed (the Debian package of that name)");
        return;
    }
    let (dir, store) = store();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let public = |identity: &str| {
        let public = age("age-keygen", &["-y", identity], b"");
        String::from_utf8(public)
            .expect("it is text")
            .trim()
            .to_owned()
    };
    store.set("a", &value(SECRET)).expect("it is kept");
    let ours = at("identity.txt");
    let plain = age("age", &["-d", "-i", &ours, &at("store.age.d/a.age")], b"");
    assert_eq!(plain, SECRET.as_bytes());
    let ours = public(&ours);
    age(
        "age",
        &["-r", &ours, "-o", &at("store.age.d/b.age")],
        b"by hand",
    );
    assert!(store.get("b").expect("it is there").is(b"by hand"));
    // An identity as the tool makes it, and a secret for both.
    let mine = at("mine.txt");
    age("age-keygen", &["-o", &mine], b"");
    let both = [
        "-r",
        &ours,
        "-r",
        &public(&mine),
        "-o",
        &at("store.age.d/c.age"),
    ];
    age("age", &both, b"for both");
    let named = Store::open(dir.path(), Some(Path::new(&mine))).expect("it opens");
    assert!(named.get("c").expect("it is there").is(b"for both"));
    assert!(store.get("c").expect("it is there").is(b"for both"));
}

#[tokio::test]
async fn the_environment_names_another_identity() {
    let mut world = World::new();
    let first = world.secrets();
    first.set("a", value(SECRET)).await.expect("it is kept");
    let mine = world.at("mine.txt");
    fs::rename(world.at("data/identity.txt"), &mine).expect("it is there");
    world.set("DURABLE_AGE_IDENTITY", &mine.display().to_string());
    assert_eq!(got(&world.secrets(), "a").await.as_deref(), Ok(SECRET));
}
