//! The memory of this process, looked through for values that nobody holds any more.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use secret::scrub::{Needles, Scrubber};
use secret::sigv4::{Keys, Payload, Scope, sign};
use secret::{Secrets, Source, Value, placeholder};

use crate::world::{World, source};

/// The two halves of what a value ends with. The whole is nowhere in this test but where it is meant to be. Before it stand
/// many spaces: memory that is given back is written over from its beginning, and what is left is left at the end.
const HALVES: [&str; 2] = ["kq7zWm-in-memory-", "when-held-93hQx"];

/// Counts the places where the second half follows the first; one may be counted twice.
fn found() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
    let memory = File::open("/proc/self/mem").expect("it is there");
    let mut buffer = vec![0; 1 << 20];
    let mut places = 0;
    let written = maps.lines().filter_map(|line| line.split_once(" rw"));
    for (from, to) in written.filter_map(|(range, _)| range.split_once('-')) {
        let address = |text| u64::from_str_radix(text, 16).expect("it is an address");
        let (mut at, to) = (address(from), address(to));
        while at < to {
            // The buffer is looked at too, and must not hold what was seen before.
            buffer.fill(0);
            let left = usize::try_from(to - at).expect("it is in memory");
            let piece = left.min(buffer.len());
            let Ok(read) = memory.read_at(&mut buffer[..piece], at) else {
                break;
            };
            places += in_piece(&buffer[..read]);
            if read == left || read <= OVERLAP {
                break;
            }
            at += u64::try_from(read - OVERLAP).expect("it is short");
        }
    }
    buffer.fill(0);
    places
}

/// As long as the value, which may lie across two pieces.
const OVERLAP: usize = HALVES[0].len() + HALVES[1].len();

fn in_piece(bytes: &[u8]) -> usize {
    let first = HALVES[0].as_bytes();
    let starts = bytes.iter().enumerate().filter(|(_, b)| **b == first[0]);
    let rests = starts.filter_map(|(at, _)| bytes[at..].strip_prefix(first));
    rests
        .filter(|rest| rest.starts_with(HALVES[1].as_bytes()))
        .count()
}

/// Uses a value in every way that there is here.
fn used(value: &Value) {
    let fake = placeholder(value, &[3; 32]);
    assert_eq!(fake.len(), value.expose().len());
    let mut out = Vec::new();
    let mut scrubber = Scrubber::new(&Needles::of([value]));
    scrubber.push(b"nothing of it", &mut out);
    let keys = Keys {
        id: "AKIA",
        key: value,
        session: None,
    };
    let scope = Scope {
        region: "r",
        service: "s3",
    };
    let request = http::Request::builder().uri("https://bucket.test/");
    let mut parts = request.body(()).expect("it is a request").into_parts().0;
    sign(
        &mut parts,
        &keys,
        &scope,
        std::time::SystemTime::now(),
        Payload::Unsigned,
    )
    .expect("it is signed");
}

/// What the age crate leaves when something is set is not ours to wipe, and is there before.
async fn held_and_dropped(secrets: &Secrets, source: &Source) {
    let before = found();
    let value = secrets.resolve(source).await.expect("it is there");
    used(&value);
    // Else nothing that is said here afterwards means anything.
    assert!(found() > 0, "{source} is not found where it is");
    drop(value);
    secrets.changed(source);
    assert!(found() <= before, "{source} is left in memory");
}

#[tokio::test]
async fn a_value_that_nobody_holds_is_nowhere_in_memory() {
    let world = World::new();
    let secrets = world.secrets();
    let halves = serde_json::json!(["printf", "%3000s%s", HALVES[0], HALVES[1]]);
    let command = source(&format!("command:{halves}"));
    held_and_dropped(&secrets, &command).await;
    let path = world.write("token", "");
    let script = format!(
        "printf %3000s%s {} {} >'{}'; echo x",
        HALVES[0],
        HALVES[1],
        path.display()
    );
    let write = serde_json::json!(["sh", "-c", script]);
    let write = source(&format!("command:{write}"));
    secrets.resolve(&write).await.expect("it is written");
    held_and_dropped(&secrets, &source(&format!("file:{}", path.display()))).await;
    // Of its length from the start: what grows leaves copies behind.
    let mut value = Vec::with_capacity(4096);
    value.resize(3000, b' ');
    for half in HALVES {
        value.extend_from_slice(half.as_bytes());
    }
    let value = Value::new(value);
    secrets.set("k", value).await.expect("it is kept");
    held_and_dropped(&secrets, &source("age:k")).await;
}
