//! Images in files, and what the store does with them afterwards.

use std::sync::{Arc, Mutex};

use image::{Error, Kind, Progress, Source};
use serde_json::json;

use crate::images::{Image, Packing, architecture, oci_archive, pack};
use crate::layers::Layer;
use crate::world::{World, block_on, tree};

fn hello() -> Image {
    let layers = [
        Layer::new().file("hello", "1").done(),
        Layer::new().file("hello", "2").done(),
    ];
    Image::with(layers, Packing::Gzip, json!({"Cmd": ["/hello"]}))
}

#[test]
fn both_kinds_of_archives_give_the_same_tree() {
    let world = World::new();
    let (oci, docker) = (world.path("oci.tar"), world.path("docker.tar"));
    hello().oci_archive(&oci);
    hello().docker_archive(&docker, "hello:1");
    let first = world
        .pull(&format!("oci-archive:{}", oci.display()))
        .unwrap();
    let second = world
        .pull(&format!("docker-archive:{}", docker.display()))
        .unwrap();
    assert_eq!(first.digest, hello().digest());
    assert_ne!(
        first.digest, second.digest,
        "one is named by its manifest, the other has none"
    );
    assert_eq!(
        (&tree(&first.root), &first.config),
        (&tree(&second.root), &second.config)
    );
    assert_eq!(tree(&first.root)[b"hello".as_slice()].data, b"2");
}

#[test]
fn an_image_is_unpacked_once_and_found_again() {
    let world = World::new();
    let file = world.path("x.tar");
    hello().oci_archive(&file);
    let text = format!("oci-archive:{}", file.display());
    let source: Source = text.parse().unwrap();
    assert_eq!(world.store().find(&source).unwrap(), None);
    let first = world.pull(&text).unwrap();
    let second = world.pull(&text).unwrap();
    assert_eq!(
        (first.pulled, second.pulled, &first.root),
        (true, false, &second.root)
    );
    let store = world.store();
    assert_eq!(store.find(&source).unwrap().unwrap().root, first.root);
    assert_eq!(
        store.get(&first.digest).unwrap().unwrap().config.cmd,
        ["/hello"]
    );
    let listed = store.list().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].digest, &listed[0].references),
        (first.digest, &vec![text])
    );
    assert_eq!(listed[0].created.as_deref(), Some("2024-02-29T12:00:00Z"));
    assert!(listed[0].size_bytes > 0 && listed[0].last_used >= listed[0].pulled_at);
}

#[test]
fn an_image_in_use_is_not_removed() {
    let world = World::new();
    let pulled = world.unpack(&hello()).unwrap();
    let store = world.store();
    let error = store
        .remove(&pulled.digest, |_| {
            vec!["sandbox ada".into(), "sandbox bob".into()]
        })
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InUse);
    assert!(
        error
            .to_string()
            .ends_with("is in use by sandbox ada, sandbox bob"),
        "{error}"
    );
    assert!(pulled.root.join("hello").exists());
    store.remove(&pulled.digest, |_| vec![]).unwrap();
    assert!(!pulled.root.exists());
    assert_eq!(store.list().unwrap(), []);
    assert_eq!(
        store.remove(&pulled.digest, |_| vec![]).unwrap_err().kind(),
        Kind::NotFound
    );
    assert_eq!(store.get(&pulled.digest).unwrap(), None);
    assert!(
        world.unpack(&hello()).unwrap().pulled,
        "it can be pulled again"
    );
}

#[test]
fn two_pulls_at_once_share_one_result() {
    let world = World::new();
    let file = world.path("x.tar");
    Image::with(
        [Layer::new().file("x", vec![1; 8 << 20]).done()],
        Packing::Gzip,
        json!({}),
    )
    .oci_archive(&file);
    let source: Source = format!("oci-archive:{}", file.display()).parse().unwrap();
    let (one, two) = (world.store(), world.store());
    let same = one.clone();
    // Two of one store, and one as if of another process.
    let (a, b, c) = block_on(async {
        tokio::join!(
            one.pull(&source, |_| {}),
            same.pull(&source, |_| {}),
            two.pull(&source, |_| {})
        )
    });
    let all = [a.unwrap(), b.unwrap(), c.unwrap()];
    assert_eq!(all.iter().filter(|pulled| pulled.pulled).count(), 1);
    assert!(all.iter().all(|pulled| pulled.root == all[0].root));
}

#[test]
fn a_pull_that_is_given_up_leaves_nothing() {
    let world = World::new();
    let file = world.path("x.tar");
    let layers = [
        Layer::new().file("x", vec![1; 4 << 20]).done(),
        b"no tar".repeat(1000),
    ];
    Image::with(layers, Packing::Plain, json!({})).oci_archive(&file);
    world
        .pull(&format!("oci-archive:{}", file.display()))
        .unwrap_err();
    assert_eq!(
        (world.staged(), world.store().list().unwrap().len()),
        (vec![], 0)
    );
}

#[test]
fn progress_tells_the_image_and_ends_at_its_size() {
    let world = World::new();
    let file = world.path("x.tar");
    let image = hello();
    image.oci_archive(&file);
    let source: Source = format!("oci-archive:{}", file.display()).parse().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    block_on(
        world
            .store()
            .pull(&source, move |progress| tell.lock().unwrap().push(progress)),
    )
    .unwrap();
    let told = told.lock().unwrap();
    let total: u64 = image.blobs.iter().map(|blob| blob.len() as u64).sum();
    assert_eq!(
        told[0],
        Progress::Found {
            digest: image.digest(),
            layers: 2,
            bytes: total
        }
    );
    assert_eq!(
        told[told.len() - 2..],
        [Progress::Unpacked { bytes: total }, Progress::Syncing]
    );
}

#[test]
fn of_several_images_one_must_be_named() {
    let world = World::new();
    let file = world.path("x.tar");
    let (one, two) = (hello(), Image::of([Layer::new().file("other", "").done()]));
    let entry = |image: &Image, name: &str| {
        let mut descriptor = image.descriptor();
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        descriptor
    };
    let index = json!({"schemaVersion": 2, "manifests": [entry(&one, "one"), entry(&two, "two")]});
    oci_archive(&file, &[&one, &two], &index);
    let error = world
        .pull(&format!("oci-archive:{}", file.display()))
        .unwrap_err();
    assert!(error.hint().unwrap().ends_with("one, two"), "{error:?}");
    let pulled = world
        .pull(&format!("oci-archive:{}:two", file.display()))
        .unwrap();
    assert_eq!(pulled.digest, two.digest());
}

#[test]
fn of_several_platforms_this_machines_is_taken() {
    let world = World::new();
    let file = world.path("x.tar");
    let image = hello();
    let on = |architecture: &str, image: &Image| {
        let mut descriptor = image.descriptor();
        descriptor["platform"] = json!({"os": "linux", "architecture": architecture});
        descriptor
    };
    let other = Image::of([Layer::new().file("other", "").done()]);
    let index =
        json!({"schemaVersion": 2, "manifests": [on("pdp11", &other), on(architecture(), &image)]});
    oci_archive(&file, &[&image, &other], &index);
    assert_eq!(
        world
            .pull(&format!("oci-archive:{}", file.display()))
            .unwrap()
            .digest,
        image.digest()
    );
    let index = json!({"schemaVersion": 2, "manifests": [on("pdp11", &other), on("vax", &other)]});
    oci_archive(&file, &[&other], &index);
    let error = world
        .pull(&format!("oci-archive:{}", file.display()))
        .unwrap_err();
    assert!(
        crate::world::story(&error).contains("linux/pdp11, linux/vax"),
        "{error:?}"
    );
}

#[test]
fn what_is_wrong_with_an_archive_is_said() {
    let world = World::new();
    let file = world.path("x.tar");
    let text = format!("oci-archive:{}", file.display());
    let error = world.pull(&text).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
    hello().oci_archive(&file);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, pack(&whole, Packing::Gzip)).unwrap();
    let error = world.pull(&text).unwrap_err();
    assert!(error.hint().unwrap().contains("gunzip"), "{error:?}");
    std::fs::write(&file, Layer::new().file("x", "").done()).unwrap();
    let error = world.pull(&text).unwrap_err();
    assert!(
        crate::world::story(&error).contains("`index.json` is not in it"),
        "{error:?}"
    );
    std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let error = world.pull(&text).unwrap_err();
    assert!(
        matches!(error.kind(), Kind::Invalid | Kind::Corrupt),
        "{error:?}"
    );
    std::fs::write(&file, [7; 5000]).unwrap();
    let error = world.pull(&text).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
}

#[test]
fn a_record_that_is_damaged_is_told_and_not_guessed_at() {
    let world = World::new();
    let pulled = world.unpack(&hello()).unwrap();
    std::fs::write(pulled.root.parent().unwrap().join("image.json"), "{").unwrap();
    let error = world.store().get(&pulled.digest).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }) && error.kind() == Kind::Corrupt);
}

#[test]
fn references_mean_what_docker_means_by_them() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    for (text, whole) in [
        ("debian", "docker.io/library/debian:latest"),
        ("debian:12", "docker.io/library/debian:12"),
        ("a/b", "docker.io/a/b:latest"),
        ("index.docker.io/a/b", "docker.io/a/b:latest"),
        ("localhost/x", "localhost/x:latest"),
        ("localhost:5000/x/y:tag", "localhost:5000/x/y:tag"),
        ("[::1]:5000/x:1", "[::1]:5000/x:1"),
        ("GHCR.io/a/b__c-d.e", "ghcr.io/a/b__c-d.e:latest"),
        (
            &format!("ghcr.io/a/b@{digest}"),
            &format!("ghcr.io/a/b@{digest}"),
        ),
        (
            &format!("ghcr.io/a/b:1@{digest}"),
            &format!("ghcr.io/a/b:1@{digest}"),
        ),
    ] {
        let source: Source = format!("oci:{text}").parse().unwrap();
        assert_eq!(source.to_string(), format!("oci:{whole}"));
    }
    for text in [
        "",
        "/",
        "UPPER",
        "a//b",
        "a/../b",
        "a:",
        "a:b/c",
        "x@sha256:12",
        "x@md5:00",
        "-a/b",
        "a..b",
        "host:99999/x",
        "ho_st.x/y",
        "a b",
        "a?x",
        "evil.example/..%2f",
        "user@host.x/y",
        "a:-tag",
        "[::1/x",
        "a/b#c",
    ] {
        assert!(format!("oci:{text}").parse::<Source>().is_err(), "{text}");
    }
    assert!("http://x".parse::<Source>().is_err());
    assert!("oci-archive:".parse::<Source>().is_err());
}
