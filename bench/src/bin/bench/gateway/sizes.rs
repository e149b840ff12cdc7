//! How much goes through, and what that takes of the machine.

use std::io::{BufRead as _, BufReader, Read as _};

use bench::Failure;
use bench::gateway::{OPEN, What};

use super::process::Process;
use super::{Course, VERSIONS, WAYS, Way, result};
use crate::figures::Sample;
use crate::table::{Group, Unit};

const MEBIBYTE: usize = 1 << 20;
/// Aims, in mebibytes.
const EACH_CORE: f64 = 250.0;
const FOR_STREAMS: f64 = 64.0;
/// A peer that is slower gets less, so that the whole does not take minutes.
const PEER_SHARE: usize = 8;
/// Streams on one connection of HTTP/2.
const SHARED_BY: usize = 100;

pub(super) fn throughput(course: &Course<'_>, bytes: usize) -> Result<Vec<Group>, Failure> {
    let mut groups = Vec::new();
    for (http2, version) in VERSIONS {
        let ways = [
            ("down", What::Download as fn(usize) -> What),
            ("up", What::Upload),
        ];
        for (direction, what) in ways {
            let mut group = Group::new(format!("{} MiB {direction}, {version}", bytes / MEBIBYTE));
            let mut cores = Group::new(format!(
                "the same for each second of a core that the gateway's process takes ({direction}, {version})"
            ));
            for way in WAYS {
                let bytes = match way {
                    Way::Mitmproxy => bytes / PEER_SHARE,
                    _ => bytes,
                };
                let process = match way {
                    Way::Direct => None,
                    Way::Gateway | Way::Secret => Some(course.daemon),
                    Way::Mitmproxy => Some(Process(course.peer.pid())),
                };
                let before = process.map(Process::cpu).transpose()?;
                let mut sample = Sample::default();
                for each in course.measure(way, http2, what(bytes))? {
                    sample.push(each);
                }
                if way.is_ours() {
                    group.line(way.name(), Unit::MebibytesPerSecond, &sample);
                } else {
                    group.peer(way.name(), Unit::MebibytesPerSecond, &sample);
                }
                let (Some(process), Some(before)) = (process, before) else {
                    continue;
                };
                // Not nothing, however short it was.
                let took = (process.cpu()? - before).max(0.01);
                let each = mebibytes(bytes) / took;
                let mut sample = Sample::default();
                sample.push(each);
                if way.is_ours() {
                    cores.line(way.name(), Unit::MebibytesPerSecond, &sample);
                    cores.at_least(
                        format!("{}: at least 250 MiB/s for each core", way.name()),
                        each,
                        EACH_CORE,
                    );
                } else {
                    cores.peer(way.name(), Unit::MebibytesPerSecond, &sample);
                }
            }
            groups.push(group);
            groups.push(cores);
        }
    }
    Ok(groups)
}

#[expect(clippy::cast_precision_loss, reason = "a few gibibytes at most")]
fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / MEBIBYTE as f64
}

pub(super) fn memory(course: &Course<'_>, streams: usize) -> Result<Vec<Group>, Failure> {
    let daemon = course.daemon;
    let mut group = Group::new(format!("the daemon's memory with {streams} open streams"));
    // What the first request needs is there for all of them.
    for (http2, _) in VERSIONS {
        course.measure(Way::Secret, http2, What::Warm(1))?;
    }
    let idle = daemon.memory()?;
    line(&mut group, "idle", idle);
    for (http2, version) in VERSIONS.into_iter().rev() {
        let connections = if http2 {
            streams.div_ceil(SHARED_BY)
        } else {
            streams
        };
        daemon.forget_most()?;
        let open = held_open(course, http2, What::Hold(streams, connections))?;
        let most = daemon.most_memory()?;
        let who = format!("{connections} connections, {version}");
        line(&mut group, &who, open);
        line(&mut group, &format!("{who}, the most"), most);
        let text = format!("{streams} streams on {who}: at most 64 MiB more than idle");
        group.at_most(text, most - idle, FOR_STREAMS);
    }
    let bytes = if streams < 1000 { 1 << 26 } else { 1 << 30 };
    let before = daemon.memory()?;
    daemon.forget_most()?;
    course.measure(Way::Secret, true, What::Download(bytes))?;
    course.measure(Way::Secret, true, What::Upload(bytes))?;
    line(&mut group, "before transfers", before);
    let who = format!("{} MiB down and up, the most", bytes / MEBIBYTE);
    line(&mut group, &who, daemon.most_memory()?);
    Ok(vec![group])
}

fn line(group: &mut Group, who: &str, value: f64) {
    let mut sample = Sample::default();
    sample.push(value);
    group.line(who, Unit::Mebibytes, &sample);
}

/// Returns what the daemon has in memory when all are open; they are ended and read to the end then.
fn held_open(course: &Course<'_>, http2: bool, what: What) -> Result<f64, Failure> {
    let doing = format!("hold {what:?} open");
    let mut client = course
        .command(Way::Secret, http2, what)?
        .spawn()
        .map_err(Failure::cannot(doing.clone()))?;
    let mut rest = Vec::new();
    let mut open = None;
    if let Some(stdout) = client.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout
            .read_line(&mut line)
            .map_err(Failure::cannot(doing.clone()))?;
        if line.trim() == OPEN {
            open = Some(course.daemon.memory()?);
        }
        course.origin.end_held();
        stdout
            .read_to_end(&mut rest)
            .map_err(Failure::cannot(doing.clone()))?;
    }
    let status = client.wait().map_err(Failure::cannot(doing.clone()))?;
    match open {
        Some(open) if status.success() => {
            result(Way::Secret, &doing, &rest)?;
            Ok(open)
        }
        _ => Err(Failure::wrong(format!("{doing}: {status}"))),
    }
}
