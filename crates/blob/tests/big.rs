//! A million small files, and one of twenty gigabytes. Run with
//! `cargo test -p durable-blob --release -- --ignored big_ --nocapture --test-threads 1`.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::time::Instant;

use crate::tree::{self, Dice};
use crate::world::{World, push};

#[test]
#[ignore = "needs minutes and some 10 GiB of disk"]
fn big_million_small_files_come_back() {
    let world = World::new();
    let tree = world.path("tree");
    for dir in 0..1000 {
        fs::create_dir_all(tree.join(dir.to_string())).unwrap();
        for file in 0..1000 {
            fs::write(
                tree.join(format!("{dir}/{file}")),
                format!("{dir}/{file}\n"),
            )
            .unwrap();
        }
    }
    let cache = world.path("tree.cache");
    for what in ["cold", "unchanged"] {
        let began = Instant::now();
        let (_, report) = push(&world.store(), &tree, Some(&cache));
        println!("{what} push {:?} {report:?}", began.elapsed());
    }
    assert!(
        world.objects("packs").len() < 40,
        "{} packs",
        world.objects("packs").len()
    );
    let (id, _) = push(&world.store(), &tree, Some(&cache));
    let began = Instant::now();
    let pulled = world.pull(&id).unwrap();
    println!("pull {:?}", began.elapsed());
    tree::assert_same(&tree, pulled.path(), "a million");
}

#[test]
#[ignore = "needs minutes"]
fn big_sparse_file_of_twenty_gigabytes_comes_back() {
    let world = World::new();
    let tree = world.path("tree");
    fs::create_dir(&tree).unwrap();
    let mut file = fs::File::create(tree.join("disk")).unwrap();
    file.set_len(20 << 30).unwrap();
    let mut dice = Dice(20);
    for at in 0..20 {
        file.seek(SeekFrom::Start(at << 30)).unwrap();
        file.write_all(&dice.bytes(50 << 20)).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let cache = world.path("tree.cache");
    let began = Instant::now();
    let (id, report) = push(&world.store(), &tree, Some(&cache));
    println!("push {:?} {report:?}", began.elapsed());
    let began = Instant::now();
    let pulled = world.pull(&id).unwrap();
    println!("pull {:?}", began.elapsed());
    tree::assert_same(&tree, pulled.path(), "twenty gigabytes");
}
