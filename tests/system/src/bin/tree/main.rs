//! Runs inside a sandbox: `tree change SEED CHANGES DIR…` makes random changes to the trees, `tree list DIR…` prints
//! everything that can be told of them. The same seed on equal trees makes the same changes.
//!
//! A path may be longer than the kernel takes in one piece, so every entry is reached by way of a descriptor of its directory.

#![forbid(unsafe_code)]

mod change;
mod list;
mod place;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: tree change SEED CHANGES DIR… | tree list DIR…";

fn main() -> ExitCode {
    match run(std::env::args_os().skip(1).collect()) {
        Ok(said) => {
            let written = io::stdout().write_all(&said);
            ExitCode::from(u8::from(written.is_err()))
        }
        Err(error) => {
            // There is nowhere else to say it.
            let _told = writeln!(io::stderr(), "tree: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Vec<OsString>) -> io::Result<Vec<u8>> {
    let usage = || io::Error::new(io::ErrorKind::InvalidInput, USAGE);
    let mut args = args.into_iter();
    let verb = args.next().ok_or_else(usage)?;
    let mut number = || {
        let word = args.next().ok_or_else(usage)?;
        word.to_str()
            .and_then(|word| word.parse().ok())
            .ok_or_else(usage)
    };
    if verb == "change" {
        let (seed, changes) = (number()?, number()?);
        let roots: Vec<PathBuf> = args.map(PathBuf::from).collect();
        return change::change(seed, changes, &roots);
    }
    if verb != "list" {
        return Err(usage());
    }
    let mut out = Vec::new();
    for root in args.map(PathBuf::from) {
        list::list(&root, &mut out)?;
    }
    Ok(out)
}
