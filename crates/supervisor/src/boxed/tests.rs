use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn tar(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = ::tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o640);
        // As a hostile archive would have it: past the checks of the library.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn a_tree_survives_the_way_out_and_in() {
    let world = tempfile::tempdir().unwrap();
    let from = world.path().join("from");
    fs::create_dir_all(from.join("deep/closed")).unwrap();
    fs::write(from.join("deep/closed/file"), "content").unwrap();
    fs::write(from.join("run"), "#!").unwrap();
    fs::set_permissions(from.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", from.join("link")).unwrap();
    let long = "n".repeat(200);
    fs::write(from.join(&long), "long").unwrap();
    fs::set_permissions(from.join("deep/closed"), fs::Permissions::from_mode(0o555)).unwrap();

    let mut archive = Vec::new();
    tar_out::write(&from, &mut archive).unwrap();
    let to = world.path().join("to");
    tar_in::unpack(&to, archive.as_slice()).unwrap();

    let to = to.join("from");
    assert_eq!(fs::read(to.join("deep/closed/file")).unwrap(), b"content");
    assert_eq!(fs::read(to.join(&long)).unwrap(), b"long");
    assert_eq!(
        fs::read_link(to.join("link")).unwrap(),
        Path::new("/etc/passwd")
    );
    let mode = |path: &str| fs::metadata(to.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("run"), mode("deep/closed")), (0o755, 0o555));
    for dir in [&from, &to] {
        fs::set_permissions(dir.join("deep/closed"), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn an_archive_cannot_leave_its_directory() {
    let world = tempfile::tempdir().unwrap();
    let to = world.path().join("to");
    for name in ["../out", "a/../../out", "/tmp/durable-supervisor-out"] {
        let refused = tar_in::unpack(&to, tar(&[(name, "x")]).as_slice());
        assert!(
            matches!(refused, Err(Error::Refused(..))),
            "{name}: {refused:?}"
        );
    }
    assert!(!world.path().join("out").exists());

    // By way of a link that an earlier entry made.
    let mut builder = ::tar::Builder::new(Vec::new());
    let mut header = ::tar::Header::new_gnu();
    header.set_entry_type(::tar::EntryType::Symlink);
    header.set_size(0);
    builder
        .append_link(&mut header, "way", world.path())
        .unwrap();
    let mut header = ::tar::Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o644);
    builder
        .append_data(&mut header, "way/out", &b"x"[..])
        .unwrap();
    let archive = builder.into_inner().unwrap();
    assert!(tar_in::unpack(&to, archive.as_slice()).is_err());
    assert!(!world.path().join("out").exists());
}

#[test]
fn a_file_is_replaced_whole_and_keeps_its_mode() {
    let world = tempfile::tempdir().unwrap();
    let path = world.path().join("new/dir/file");
    file::write(&path, Some(0o600), &mut &b"one"[..]).unwrap();
    file::write(&path, None, &mut &b"two"[..]).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let mut out = Vec::new();
    file::read(&path, &mut out).unwrap();
    assert_eq!(out, b"two");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn misuse_and_failure_have_codes_of_their_own() {
    let code = |args: &[&str]| main(args.iter().map(OsString::from).collect());
    assert_eq!(code(&["frobnicate"]), MISUSED);
    assert_eq!(code(&["write", "/tmp/x", "--mode", "9"]), MISUSED);
    assert_eq!(code(&["read", "/does/not/exist"]), FAILED);
    assert_eq!(code(&["read", "/"]), FAILED);
}

#[test]
fn a_condition_is_looked_at_again_when_the_directory_is_ours() {
    use protocol::files::{Name, Put, Why};
    use rustix::fs::FlockOperation;

    let world = tempfile::tempdir().unwrap();
    let path = world.path().join("file");
    fs::write(&path, "old").unwrap();
    let name = Name(path.as_os_str().as_encoded_bytes().to_vec());
    let put = |tag: Option<String>| Put {
        path: name.clone(),
        mode: None,
        owner: None,
        parents: false,
        if_match: tag.map(|tag| vec![tag]),
        if_none_match: None,
    };
    let old = alter::put_file(&put(None), &mut &b"older"[..]).unwrap();
    let held = fs::File::open(world.path()).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
    let conditional = put(Some(old.tag()));
    let writer = std::thread::spawn(move || alter::put_file(&conditional, &mut &b"new"[..]));
    // Its first look is behind it once its own file is there.
    while fs::read_dir(world.path()).unwrap().count() < 2 {
        std::thread::yield_now();
    }
    // There is no event for what must not happen.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(fs::read_to_string(&path).unwrap(), "older");
    fs::write(world.path().join("other"), "somebody else's").unwrap();
    fs::rename(world.path().join("other"), &path).unwrap();
    drop(held);
    let refused = writer.join().unwrap().unwrap_err();
    assert_eq!(refused.why, Why::Precondition, "{}", refused.words);
    assert_eq!(fs::read_to_string(&path).unwrap(), "somebody else's");
    assert_eq!(fs::read_dir(world.path()).unwrap().count(), 1);
}

#[test]
fn a_copy_that_breaks_off_leaves_the_old_file() {
    let world = tempfile::tempdir().unwrap();
    fs::write(world.path().join("file"), "old").unwrap();
    let whole = tar(&[("file", &"n".repeat(4000))]);
    assert!(tar_in::unpack(world.path(), &whole[..1500]).is_err());
    assert_eq!(fs::read(world.path().join("file")).unwrap(), b"old");
    assert_eq!(fs::read_dir(world.path()).unwrap().count(), 1);
    tar_in::unpack(world.path(), whole.as_slice()).unwrap();
    assert_eq!(fs::read(world.path().join("file")).unwrap().len(), 4000);
    assert_eq!(fs::read_dir(world.path()).unwrap().count(), 1);
}
