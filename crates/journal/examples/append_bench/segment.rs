//! The least that group commit can cost: frames of length, CRC and payload, gathered by one thread, written with one
//! `pwrite` and one `fdatasync` a batch into a zero-filled file that it goes round in.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::raw::zeros;
use crate::{EVENT_BYTES, Run, drive, noise};

const FILE_BYTES: usize = 256 << 20;
const FRAME_BYTES: usize = EVENT_BYTES + 8;

struct Frame {
    bytes: Vec<u8>,
    durable: oneshot::Sender<()>,
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_BYTES);
    frame.extend(&EVENT_BYTES.to_le_bytes()[..4]);
    frame.extend(crc32fast::hash(payload).to_le_bytes());
    frame.extend(payload);
    frame
}

pub(crate) fn run(dir: &Path, writers: usize, run: Duration) -> Run {
    let file = zeros(&dir.join("segment"), FILE_BYTES);
    let (sender, receiver) = channel();
    let committer = std::thread::spawn(move || {
        commit(&file, &receiver);
        file
    });
    let measured = drive(writers, run, |_| {
        let sender: Sender<Frame> = sender.clone();
        let event = noise(EVENT_BYTES);
        move || {
            let (durable, answer) = oneshot::channel();
            let bytes = frame(event.as_bytes());
            let sent = sender.send(Frame { bytes, durable });
            async move {
                sent.expect("the committer lives");
                answer.await.expect("the committer answers");
            }
        }
    });
    drop(sender);
    let file = committer.join().expect("the committer ends");
    check(&file, measured.latencies.len());
    measured
}

fn commit(file: &std::fs::File, frames: &Receiver<Frame>) {
    let mut at = 0;
    let mut batch = Vec::new();
    while let Ok(first) = frames.recv() {
        batch.clear();
        let mut waiting = Vec::new();
        for Frame { bytes, durable } in std::iter::once(first).chain(frames.try_iter().take(1023)) {
            batch.extend(bytes);
            waiting.push(durable);
        }
        if at + batch.len() > FILE_BYTES {
            at = 0;
        }
        file.write_all_at(&batch, at as u64).expect("a write");
        file.sync_data().expect("a sync");
        at += batch.len();
        for durable in waiting {
            durable.send(()).expect("the writer waits");
        }
    }
}

/// A fast wrong log is no limit: every frame that was acknowledged is there, as far as the file was not gone round.
fn check(file: &std::fs::File, acknowledged: usize) {
    let mut frame = vec![0; FRAME_BYTES];
    for n in 0..acknowledged.min(FILE_BYTES / FRAME_BYTES - 1024) {
        let at = (n * FRAME_BYTES) as u64;
        file.read_exact_at(&mut frame, at).expect("a read");
        let crc = crc32fast::hash(&frame[8..]).to_le_bytes();
        assert_eq!(crc, frame[4..8], "frame {n}");
    }
}
