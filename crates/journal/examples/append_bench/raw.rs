//! One `pwrite` and one `fdatasync` for each append, into a file that was filled with zeros before.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::{EVENT_BYTES, Run, noise};

/// Bytes of a file that appends go round in.
const FILE_BYTES: usize = 64 << 20;

/// Makes a file of zeros that is on disk.
pub(crate) fn zeros(path: &Path, bytes: usize) -> File {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(path)
        .expect("a file");
    let block = vec![0; 1 << 20];
    for _ in 0..bytes / block.len() {
        file.write_all(&block).expect("room on the disk");
    }
    file.sync_all().expect("a disk that syncs");
    file
}

pub(crate) fn run(dir: &Path, writers: usize, run: Duration) -> Run {
    let log = Mutex::new((zeros(&dir.join("raw"), FILE_BYTES), 0));
    let event = noise(EVENT_BYTES);
    let start = Instant::now();
    let latencies = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|_| {
                scope.spawn(|| {
                    let mut latencies = Vec::new();
                    while start.elapsed() < run {
                        let before = Instant::now();
                        let mut log = log.lock().expect("no writer panics");
                        let at = log.1;
                        log.0.write_all_at(event.as_bytes(), at).expect("a write");
                        log.0.sync_data().expect("a sync");
                        log.1 = (at + EVENT_BYTES as u64) % FILE_BYTES as u64;
                        drop(log);
                        latencies.push(before.elapsed());
                    }
                    latencies
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a writer that ends"))
            .collect()
    });
    Run {
        latencies,
        took: start.elapsed(),
    }
}
