//! How fast does 1 GiB of output get from a command in a sandbox to a reader, every byte kept on disk on the way?
//!
//! Held against the same command writing into a plain pipe of the same reader, which keeps nothing; and, to tell what the
//! disk takes of the difference, against the same bytes written to a file. The aim: at least half of the pipe.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use bench::Failure;
use protocol::Image;

use crate::figures::Sample;
use crate::table::{Group, Unit};
use crate::world::World;

const BYTES: usize = 1 << 30;
const PRODUCE: &str = "head -c 1073741824 /dev/zero";
const MEBIBYTES: f64 = 1024.0;

pub(crate) fn run(world: &World, rounds: usize) -> Result<Vec<Group>, Failure> {
    let mut api = world.connect()?;
    let file = world.dir().join("output");
    let (mut ours, mut pipe, mut disk) = (Sample::default(), Sample::default(), Sample::default());
    for round in 0..rounds {
        // One sandbox for each: its output is given back with it.
        let name = format!("output-{round}");
        api.create(&name, Image::Host)?;
        let mut exec = world.durable(&["exec", "--op", "gib", &name, "--", "sh", "-c", PRODUCE]);
        ours.push(read(&mut exec)?);
        let view: protocol::api::OpView = api.get(&format!("/v1/sandboxes/{name}/ops/gib"))?;
        if view.stdout_bytes.0 != BYTES as u64 || view.exit_code != Some(0) {
            return Err(Failure::wrong(format!("it settled as {view:?}")));
        }
        api.remove(&name)?;
        pipe.push(read(Command::new("sh").args(["-c", PRODUCE]))?);
        disk.push(write(&file)?);
    }
    let mut group = Group::new("1 GiB of output through `exec` to a reader");
    group.line("durable exec", Unit::MebibytesPerSecond, &ours);
    group.peer("a plain pipe", Unit::MebibytesPerSecond, &pipe);
    group.peer("head > FILE, not synced", Unit::MebibytesPerSecond, &disk);
    if let (Some(ours), Some(pipe)) = (group.median(0), group.median(1)) {
        group.at_least("output ≥ 0.5 × a plain pipe", ours / pipe, 0.5);
    }
    Ok(vec![group])
}

/// Reads a command's whole output, checks every byte of it and returns mebibytes a second.
fn read(command: &mut Command) -> Result<f64, Failure> {
    let what = "read 1 GiB";
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::cannot(what))?;
    let (mut bytes, mut zeros) = (0, true);
    if let Some(mut stdout) = child.stdout.take() {
        let mut buffer = vec![1; 256 << 10];
        let nothing = vec![0; buffer.len()];
        loop {
            let read = stdout.read(&mut buffer).map_err(Failure::cannot(what))?;
            if read == 0 {
                break;
            }
            bytes += read;
            zeros &= buffer[..read] == nothing[..read];
        }
    }
    let status = child.wait().map_err(Failure::cannot(what))?;
    let took = begun.elapsed().as_secs_f64();
    if !status.success() || bytes != BYTES || !zeros {
        return Err(Failure::wrong(format!(
            "1 GiB of zeros was written, {bytes} bytes came ({status}), {}",
            if zeros {
                "zeros"
            } else {
                "not all of them zeros"
            }
        )));
    }
    Ok(MEBIBYTES / took)
}

fn write(file: &Path) -> Result<f64, Failure> {
    let what = "write 1 GiB";
    let begun = Instant::now();
    let status = Command::new("sh")
        .args(["-c", &format!("{PRODUCE} > \"$0\"")])
        .arg(file)
        .status()
        .map_err(Failure::cannot(what))?;
    let took = begun.elapsed().as_secs_f64();
    std::fs::remove_file(file).map_err(Failure::cannot(what))?;
    if !status.success() {
        return Err(Failure::wrong(format!("{what}: {status}")));
    }
    Ok(MEBIBYTES / took)
}
