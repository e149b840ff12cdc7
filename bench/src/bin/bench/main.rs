//! What does durability cost, and against whom? One table, peers in the same run and in turns with us.
//!
//! `make bench`, or `cargo run --release -p bench -- [--dir D] [--json FILE] [--only exec,create,appends,output,cuts,restart,workspace,gateway]
//! [--quick]`, as root. Each measurement checks its results as well as its times; a missed aim is told and is no failure, a
//! wrong result is one.

#![forbid(unsafe_code)]

mod appends;
mod branches;
mod create;
mod cuts;
mod exec;
mod facts;
mod figures;
mod gateway;
mod output;
mod peers;
mod restart;
mod table;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use bench::Failure;

use facts::Facts;
use peers::Peers;
use table::Group;
use world::World;

const PARTS: [&str; 8] = [
    "exec", "create", "appends", "output", "cuts", "restart", WORKSPACE, GATEWAY,
];
/// Takes minutes and gigabytes, so it is only measured when it is asked for.
const WORKSPACE: &str = "workspace";
/// The same, and it needs a peer of its own.
const GATEWAY: &str = "gateway";

struct Options {
    dir: PathBuf,
    json: Option<PathBuf>,
    only: Vec<String>,
    quick: bool,
}

#[derive(serde::Serialize)]
struct Report<'a> {
    facts: &'a Facts,
    groups: &'a [Group],
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(usage) => {
            say(&usage);
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&format!("error: {}", failure.chain()));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    // Before there are threads: what is mounted here is gone with us, however we end.
    let mounts = workspace::private_mounts().map_err(Failure::cannot("get mounts of our own"))?;
    if options.only.iter().any(|only| only == GATEWAY) {
        if mounts != workspace::Mounts::Private {
            return Err(Failure::wrong("the gateway is measured as root"));
        }
        gateway::know_origin()?;
    }
    let mut world = World::new(&options.dir)?;
    let facts = Facts::gather(&world.program, world.dir());
    let peers = Peers::new(world.dir(), &world.root())?;
    let some = |full: usize, quick: usize| if options.quick { quick } else { full };
    let mut groups: Vec<Group> = Vec::new();
    for part in PARTS {
        let is_asked_for = options.only.iter().any(|only| only == part);
        let is_long = part == WORKSPACE || part == GATEWAY;
        if !is_asked_for && (is_long || !options.only.is_empty()) {
            continue;
        }
        say(&format!("measuring {part} …"));
        groups.extend(match part {
            "exec" => exec::run(&world, &peers, some(300, 20))?,
            "create" => create::run(&world, &peers, some(60, 5))?,
            "appends" => {
                let seconds = if options.quick { 0.5 } else { 3.0 };
                appends::run(world.dir(), seconds, some(3, 1))?
            }
            "output" => output::run(&world, some(5, 1))?,
            "cuts" => cuts::run(&world, some(30, 3))?,
            WORKSPACE => branches::run(&world, options.quick)?,
            GATEWAY => gateway::run(&world, options.quick)?,
            _ => restart::run(&mut world, &[1, some(200, 20)], some(5, 2))?,
        });
    }
    print(&format!("{}\n{}", facts.lines(), table::table(&groups)));
    for aim in groups.iter().flat_map(|group| &group.aims) {
        if !aim.met {
            print(&format!(
                "aim missed: {} (is {:.2})\n",
                aim.text, aim.reached
            ));
        }
    }
    if let Some(path) = &options.json {
        let report = Report {
            facts: &facts,
            groups: &groups,
        };
        let json = serde_json::to_vec_pretty(&report).map_err(Failure::cannot("write JSON"))?;
        std::fs::write(path, json).map_err(Failure::cannot(format!("write {}", path.display())))?;
    }
    Ok(())
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        dir: std::env::temp_dir(),
        json: None,
        only: Vec::new(),
        quick: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--dir" => options.dir = value()?.into(),
            "--json" => options.json = Some(value()?.into()),
            "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
            "--quick" => options.quick = true,
            other => {
                return Err(format!(
                    "unknown option {other}; see bench/src/bin/bench/main.rs"
                ));
            }
        }
    }
    match options
        .only
        .iter()
        .find(|only| !PARTS.contains(&only.as_str()))
    {
        Some(unknown) => Err(format!(
            "there is no part {unknown}; there are {}",
            PARTS.join(", ")
        )),
        None => Ok(options),
    }
}

/// The table, on stdout.
#[expect(clippy::print_stdout, reason = "a benchmark's answer")]
fn print(text: &str) {
    print!("{text}");
}

/// What goes on, on stderr.
#[expect(clippy::print_stderr, reason = "a program that takes minutes")]
fn say(text: &str) {
    eprintln!("{text}");
}
