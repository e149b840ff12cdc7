//! Images that try to lead the one who mounts them astray.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use isolation::Error;

use crate::world::World;

fn image() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("isolation-image-")
        .tempdir()
        .unwrap()
}

#[test]
fn an_empty_directory_is_an_image() {
    let (world, image) = (World::new(), image());
    let ada = world.start_image(image.path()).unwrap();
    assert_eq!(
        ada.list("/"),
        [
            "dev",
            "opt",
            "proc",
            "root",
            "run",
            "sys",
            "tmp",
            "workspace"
        ]
    );
    assert_eq!(ada.list("/opt/durable/bin"), ["durable", "durable-shell"]);
    assert_eq!(ada.list("/opt/durable/harness"), [""; 0]);
    let done = ada.run(&[protocol::paths::SHELL, "cat", "/proc/self/status"]);
    assert!(done.out.contains("Name:"), "{done:?}");
    // What was made is the sandbox's; the image is as it was.
    assert_eq!(fs::read_dir(image.path()).unwrap().count(), 0);
}

#[test]
fn links_in_an_image_lead_nowhere_outside() {
    let (world, image, outside) = (World::new(), image(), image());
    let to = |target: &str, name: &str| symlink(target, image.path().join(name)).unwrap();
    let up = format!("../../../../../../../..{}", outside.path().display());
    to(outside.path().to_str().unwrap(), "dev");
    to(&up, "proc");
    to("/proc/self/root/tmp", "sys");
    to("/proc/self/cwd", "tmp");
    to(&format!("{up}/opt"), "opt");
    to("/etc", "run");
    to("/proc/1/root", "workspace");
    fs::create_dir(image.path().join("etc")).unwrap();
    fs::create_dir(outside.path().join("opt")).unwrap();
    match world.start_image(image.path()) {
        Ok(ada) => {
            assert!(ada.list("/dev").contains(&"null".to_owned()));
            assert!(
                ada.list("/etc").contains(&"durable".to_owned()),
                "a link inside is followed inside"
            );
        }
        // A link of procfs may be refused; that is an answer too.
        Err(error) => assert!(matches!(error, Error::Inside { .. }), "{error}"),
    }
    assert_eq!(names(outside.path()), ["opt"]);
    assert_eq!(names(&outside.path().join("opt")), [""; 0]);
    assert_eq!(
        names(&image.path().join("etc")),
        [""; 0],
        "the image itself is not written"
    );
}

#[test]
fn each_place_may_be_a_link_and_stays_inside() {
    let world = World::new();
    for place in [
        "dev",
        "proc",
        "sys",
        "run",
        "opt",
        "tmp",
        "root",
        "workspace",
    ] {
        // Not in `/tmp`: a `/tmp` that leads into itself is an error.
        let (image, outside) = (image(), tempfile::tempdir_in("/var/tmp").unwrap());
        symlink(outside.path(), image.path().join(place)).unwrap();
        let ada = world
            .start_image(image.path())
            .unwrap_or_else(|e| panic!("{place}: {e}"));
        assert!(ada.list("/dev").contains(&"null".to_owned()), "{place}");
        assert!(ada.list("/proc").contains(&"self".to_owned()), "{place}");
        assert_eq!(names(outside.path()), [""; 0], "{place}");
    }
}

#[test]
fn a_device_or_socket_of_the_image_is_not_taken_for_ours() {
    let (world, image) = (World::new(), image());
    fs::create_dir_all(image.path().join("dev")).unwrap();
    fs::write(image.path().join("dev/null"), "planted").unwrap();
    fs::create_dir_all(image.path().join("run/durable")).unwrap();
    fs::write(image.path().join("run/durable/shim.sock"), "planted").unwrap();
    fs::create_dir_all(image.path().join("opt/durable/bin")).unwrap();
    fs::write(image.path().join("opt/durable/bin/durable"), "planted").unwrap();
    let ada = world.start_image(image.path()).unwrap();
    assert_eq!(ada.run(&[protocol::paths::BIN, "cat", "/dev/null"]).out, "");
    assert_eq!(ada.list("/run/durable"), ["shim.sock"]);
}

#[test]
fn a_file_where_a_directory_must_be_is_told() {
    let (world, image) = (World::new(), image());
    fs::write(image.path().join("proc"), "").unwrap();
    let error = world.start_image(image.path()).err().unwrap().to_string();
    assert!(error.contains("/proc"), "{error}");
}

#[test]
fn an_image_that_cannot_be_one_is_told() {
    let world = World::new();
    for path in ["/nonexistent", "/etc/passwd", "/"] {
        let error = world.start_image(Path::new(path)).err().unwrap();
        assert!(matches!(error, Error::Image { .. }), "{path}: {error}");
        assert!(error.to_string().contains(path));
    }
}

fn names(path: &Path) -> Vec<String> {
    fs::read_dir(path)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}
