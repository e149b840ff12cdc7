//! A pull that is killed at any moment leaves a whole image or none, and the next one comes through.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use image::{Options, Source, Store};
use serde_json::json;

use crate::images::{Image, Packing};
use crate::layers::{Entry, Layer};
use crate::world::{World, block_on, is_root, tree};

const STORE: &str = "IMAGE_TEST_STORE";
const SOURCE: &str = "IMAGE_TEST_SOURCE";

/// Runs one test of this binary as a process of its own.
fn child(test: &str, store: &Path, source: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        test,
        "--exact",
        "--nocapture",
        "--ignored",
        "--test-threads=1",
    ]);
    command
        .env(STORE, store)
        .env(SOURCE, source)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// The child: says how far it is, line by line.
#[test]
#[ignore = "a part of other tests"]
fn pulls_what_it_is_told() {
    let (Some(store), Ok(source)) = (std::env::var_os(STORE), std::env::var(SOURCE)) else {
        return;
    };
    let store = Store::open_with(Path::new(&store), Options::default()).unwrap();
    let source: Source = source.parse().unwrap();
    let pulled = block_on(store.pull(&source, |progress| println(&format!("{progress:?}"))));
    println(&format!("ended {:?}", pulled.map(|pulled| pulled.pulled)));
}

#[expect(clippy::print_stdout, reason = "it is a process that is listened to")]
fn println(line: &str) {
    println!("{line}");
}

fn big(world: &World) -> (Image, String) {
    let mut layer = Layer::new();
    for n in 0..2000 {
        layer = layer.file(format!("d{}/f{n}", n % 7), vec![b'x'; 4000]);
    }
    let image = Image::with([layer.done()], Packing::Gzip, json!({}));
    let file = world.path("x.tar");
    image.oci_archive(&file);
    (image, format!("oci-archive:{}", file.display()))
}

/// Lets a child go on until it has said so many lines, and kills it. Returns whether it had come to its end.
fn kill_after(mut child: Child, lines: usize) -> bool {
    let out = BufReader::new(child.stdout.take().unwrap());
    let told: Vec<String> = out
        .lines()
        .map_while(Result::ok)
        .filter(|line| {
            line.contains("Unpacked") || line.contains("Syncing") || line.starts_with("ended")
        })
        .take(lines)
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    told.iter().any(|line| line.starts_with("ended"))
}

#[test]
fn a_kill_in_the_middle_leaves_nothing_and_the_next_pull_comes_through() {
    let world = World::new();
    let (image, source) = big(&world);
    let dir = world.path("data/images");
    for lines in [1, 2, 3, 5, 8] {
        let process = child("kills::pulls_what_it_is_told", &dir, &source)
            .spawn()
            .unwrap();
        let ended = kill_after(process, lines);
        // Opening sweeps, for nobody builds.
        let store = world.store();
        assert_eq!(
            world.staged(),
            Vec::<std::path::PathBuf>::new(),
            "after {lines} lines"
        );
        match store.list().unwrap().as_slice() {
            [] => assert!(!ended, "after {lines} lines"),
            [one] => {
                let pulled = store.get(&one.digest).unwrap().unwrap();
                assert_eq!(
                    tree(&pulled.root).len(),
                    2000 + 7 + 1,
                    "after {lines} lines"
                );
                store.remove(&one.digest, |_| vec![]).unwrap();
            }
            more => panic!("{more:?}"),
        }
    }
    let pulled = world.pull(&source).unwrap();
    assert_eq!((pulled.digest, pulled.pulled), (image.digest(), true));
}

#[test]
fn a_store_that_another_process_builds_in_is_not_swept() {
    let world = World::new();
    let (_, source) = big(&world);
    let store = world.store();
    // The archive's reader waits here: its image is in the making as long as this stands still.
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let (told, tell) = std::sync::mpsc::channel();
    let held = std::sync::Mutex::new((held, false));
    let puller = std::thread::spawn(move || {
        let source: Source = source.parse().unwrap();
        block_on(store.pull(&source, move |_| {
            let mut held = held.lock().unwrap();
            if !std::mem::replace(&mut held.1, true) {
                told.send(()).unwrap();
                held.0.recv().unwrap();
            }
        }))
    });
    tell.recv().unwrap();
    let _other = world.store();
    assert_eq!(world.staged().len(), 1, "what is in the making was swept");
    hold.send(()).unwrap();
    assert!(puller.join().unwrap().unwrap().pulled);
}

#[test]
fn without_root_everything_is_the_callers_and_can_be_removed_again() {
    if !is_root() {
        return eprintln!("SKIPPED: only root can be another user for a moment");
    }
    let world = World::new();
    let layer = Layer::new()
        .entry(Entry::new("closed", b'5').mode(0))
        .entry(Entry::new("closed/f", b'0').mode(0o400).owner(12, 34))
        .entry(Entry::new("ro", b'5').mode(0o555))
        .file("ro/x", "1");
    let two = Layer::new()
        .file("closed/g", "2")
        .file("ro/.wh.x", "")
        .entry(Entry::new("./", b'5').mode(0o500));
    let file = world.path("x.tar");
    Image::of([layer.done(), two.done()]).oci_archive(&file);
    // The binary may lie where the other user cannot read it.
    let open = world.path("open");
    std::fs::create_dir(&open).unwrap();
    let binary = open.join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    for path in [world.path("."), open.clone()] {
        std::fs::set_permissions(path, std::fs::Permissions::clone(&all)).unwrap();
    }
    let dir = open.join("images");
    let command = child(
        "kills::pulls_what_it_is_told",
        &dir,
        &format!("oci-archive:{}", file.display()),
    );
    let mut as_nobody = Command::new(&binary);
    as_nobody
        .args(command.get_args())
        .envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .uid(65534)
        .gid(65534);
    let output = as_nobody.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        told.contains("ended Ok(true)"),
        "{told} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let image = std::fs::read_dir(dir.join("images"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let found = tree(&image.join("rootfs"));
    let names: Vec<_> = found
        .iter()
        .map(|(name, node)| (name.as_slice(), node.mode, node.owner))
        .collect();
    let nobody = (65534, 65534);
    assert_eq!(
        names,
        [
            (b"".as_slice(), 0o500, nobody),
            (b"closed", 0, nobody),
            (b"closed/f", 0o400, nobody),
            (b"closed/g", 0o644, nobody),
            (b"ro", 0o555, nobody),
        ]
    );
}
