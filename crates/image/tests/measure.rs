//! How long does a layer of some 150 MB take to unpack, against `tar -x` of the same? Run by hand:
//! `cargo test --release -p durable-image -- --ignored measure --nocapture`.

use std::process::Command;
use std::time::Instant;

use serde_json::json;

use crate::images::{Image, Packing};
use crate::world::World;

/// A layer of a machine's own `/usr/share` and `/usr/lib`, until it is large enough.
#[test]
#[ignore = "a measurement"]
fn a_large_layer_against_tar() {
    let world = World::new();
    let tar = world.path("layer.tar");
    let script = "find /usr/share /usr/lib/python3* -xdev -type f -size -2000k 2>/dev/null | sort | head -14000 > list && tar -cf layer.tar --format=pax -T list 2>/dev/null; ls -l layer.tar; wc -l list";
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(world.path("."))
        .output()
        .unwrap();
    eprintln!("{}", String::from_utf8_lossy(&made.stdout));
    let content = std::fs::read(&tar).unwrap();
    for packing in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let image = Image::with([content.clone()], packing, json!({}));
        let file = world.path("image.tar");
        image.oci_archive(&file);
        std::fs::write(world.path("blob"), &image.blobs[0]).unwrap();
        let unpack = match packing {
            Packing::Plain => "tar -x -f blob -C out",
            Packing::Gzip => "tar -x -z -f blob -C out",
            Packing::Zstd => "tar -x --zstd -f blob -C out",
        };
        for _ in 0..3 {
            Command::new("sh")
                .args(["-c", "rm -rf out; mkdir out; sync -f ."])
                .current_dir(world.path("."))
                .status()
                .unwrap();
            let begun = Instant::now();
            Command::new("sh")
                .args(["-c", unpack])
                .current_dir(world.path("."))
                .status()
                .unwrap();
            let tar_alone = begun.elapsed();
            Command::new("sync")
                .args(["-f", "."])
                .current_dir(world.path("."))
                .status()
                .unwrap();
            let tar_synced = begun.elapsed();
            let begun = Instant::now();
            let synced = std::sync::Arc::new(std::sync::Mutex::new(begun));
            let tell = std::sync::Arc::clone(&synced);
            let source = format!("oci-archive:{}", file.display()).parse().unwrap();
            let pulled = crate::world::block_on(world.store().pull(&source, move |progress| {
                if progress == image::Progress::Syncing {
                    *tell.lock().unwrap() = Instant::now();
                }
            }));
            let (alone, whole) = (*synced.lock().unwrap() - begun, begun.elapsed());
            eprintln!(
                "{packing:?}: tar {tar_alone:.2?} (synced {tar_synced:.2?}), ours {alone:.2?} (synced {whole:.2?})"
            );
            world
                .store()
                .remove(&pulled.unwrap().digest, |_| vec![])
                .unwrap();
        }
    }
}
