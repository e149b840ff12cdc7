//! `durable __box`: moves files in and out of a sandbox from the inside, as an ordinary operation with that user's rights.

mod alter;
mod apply;
mod ending;
mod file;
mod forget;
mod see;
mod serve;
mod stale;
mod tar_in;
mod tar_out;
mod watch;

use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

pub(crate) use tar_out::{ERROR, SKIPPED};

/// Why it could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot {verb} {}", path.display())]
    File {
        verb: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot {0}")]
    Stream(&'static str, #[source] io::Error),
    #[error("{0} is refused: {1}")]
    Refused(String, &'static str),
    #[error("{} changed while it was read", .0.display())]
    Changed(PathBuf),
    #[error("{} changed meanwhile, and nothing was done: run compose again", .0.display())]
    Meanwhile(PathBuf),
    #[error("some of the changes are made, then it failed")]
    Midway(#[source] Box<Self>),
    #[error("{0}")]
    Usage(&'static str),
}

const USAGE: &str = "usage: __box files | change JSON | tar-out PATH | tar-in DIR | apply DIR | read PATH | write PATH [--mode OCTAL] | remove PATH | forget PATTERN...";

/// Exit codes: done, failed, called wrongly.
const DONE: i32 = 0;
const FAILED: i32 = 1;
const MISUSED: i32 = 2;

/// Returns what a failure of `verb` on `path` is, given its cause.
fn failed(verb: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File {
        verb,
        path: path.into(),
        source,
    }
}

/// Does what `args` say; returns the exit code.
pub(crate) fn main(args: Vec<OsString>) -> i32 {
    match args.as_slice() {
        // The daemon sees the end of the connection; nobody reads a stderr here.
        [verb] if *verb == "files" => return serve::main().map_or(FAILED, |()| DONE),
        [verb, what] if *verb == "change" => return change(what),
        _ => {}
    }
    match run(&args) {
        Ok(()) => DONE,
        Err(error) => {
            crate::complain("durable", &error);
            match error {
                Error::Usage(_) => MISUSED,
                _ => FAILED,
            }
        }
    }
}

fn change(what: &OsStr) -> i32 {
    let what = what
        .to_str()
        .and_then(|what| serde_json::from_str(what).ok());
    let Some(what) = what else {
        crate::complain("durable", &Error::Usage(USAGE));
        return MISUSED;
    };
    match alter::main(&what) {
        Ok(true) => DONE,
        Ok(false) => FAILED,
        Err(error) => {
            crate::complain("durable", &Error::Stream("answer", error));
            FAILED
        }
    }
}

/// Packs `path` into a tar archive as `name`; returns how many special files were left out.
pub(crate) fn pack(path: &Path, name: &Path, out: &mut impl Write) -> Result<u64, Error> {
    tar_out::write_as(path, name, out)
}

fn run(args: &[OsString]) -> Result<(), Error> {
    let args: Vec<&OsStr> = args.iter().map(OsString::as_os_str).collect();
    match args.as_slice() {
        [verb, path] if *verb == "tar-out" => tar_out::write(
            Path::new(path),
            BufWriter::with_capacity(256 << 10, io::stdout().lock()),
        ),
        [verb, dir] if *verb == "tar-in" => tar_in::unpack(
            Path::new(dir),
            BufReader::with_capacity(256 << 10, io::stdin().lock()),
        ),
        [verb, dir] if *verb == "apply" => apply::apply(
            Path::new(dir),
            BufReader::with_capacity(256 << 10, io::stdin().lock()),
        ),
        [verb, path] if *verb == "read" => file::read(Path::new(path), &mut io::stdout().lock()),
        [verb, path] if *verb == "remove" => {
            std::fs::remove_file(path).map_err(failed("remove", Path::new(path)))
        }
        [verb, patterns @ ..] if *verb == "forget" && !patterns.is_empty() => {
            forget::forget(patterns)
        }
        [verb, path] if *verb == "write" => {
            file::write(Path::new(path), None, &mut io::stdin().lock())
        }
        [verb, path, option, mode] if *verb == "write" && *option == "--mode" => {
            let mode = mode
                .to_str()
                .and_then(|mode| u32::from_str_radix(mode, 8).ok())
                .filter(|mode| *mode <= 0o7777)
                .ok_or(Error::Usage("the mode must be octal, such as 644"))?;
            file::write(Path::new(path), Some(mode), &mut io::stdin().lock())
        }
        _ => Err(Error::Usage(USAGE)),
    }
}

#[cfg(test)]
mod tests;
