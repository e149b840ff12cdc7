//! What is looked at after every run: the journal's chain and stories, the files against the last cut, what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use system_tests::{Res, World, journal, process, trouble};

use crate::report::{Fault, Verdict};

/// The journal of one sandbox after a run.
pub(crate) struct Story {
    events: Vec<Value>,
}

impl Story {
    /// Reads and verifies the journal; what the system's own reader says must be the same.
    pub(crate) fn read(world: &World, sandbox: &str, verdict: &mut Verdict) -> Res<Self> {
        let log = world.run(&["log", sandbox, "--json"])?;
        let rows = journal::read(world.data(), sandbox)?;
        if let Err(broken) = journal::verify(&rows) {
            verdict.find(Fault::Disagreement, broken.to_string());
        }
        if log.code != Some(0) {
            verdict.find(
                Fault::Disagreement,
                format!("durable log: {}", log.err().trim()),
            );
        }
        let told = log.out();
        let told: Vec<&str> = told.lines().collect();
        // The journal may have grown between the two looks, never changed.
        for (line, row) in told.iter().zip(&rows) {
            let line: Value = serde_json::from_str(line).unwrap_or_default();
            let hash: String = row.hash.iter().map(|b| format!("{b:02x}")).collect();
            if line["seq"] != row.seq || line["hash"] != hash.as_str() {
                verdict.find(
                    Fault::Disagreement,
                    format!("`durable log` tells event {} otherwise", row.seq),
                );
            }
        }
        if told.len() > rows.len() {
            verdict.find(
                Fault::Disagreement,
                "`durable log` tells events that are not there",
            );
        }
        let events = rows
            .iter()
            .map(|row| {
                let mut event = row.event();
                event["seq"] = row.seq.into();
                event
            })
            .collect();
        Ok(Self { events })
    }

    pub(crate) fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.events.iter().filter(move |e| e["kind"] == kind)
    }

    /// Checks that an operation has one intent, at most one start, one settlement, in this order, and that the settlement
    /// is what the answer says.
    pub(crate) fn operation(&self, op: &str, view: &Value, verdict: &mut Verdict) {
        let places = |kind| -> Vec<u64> {
            let events = self.of(kind).filter(|e| e["op"] == op);
            events.filter_map(|e| e["seq"].as_u64()).collect()
        };
        let (intents, starts, settles) = (
            places("op_intent"),
            places("op_started"),
            places("op_settled"),
        );
        let in_order = intents.len() == 1
            && starts.len() <= 1
            && settles.len() == 1
            && intents[0] < settles[0]
            && starts
                .iter()
                .all(|start| intents[0] < *start && *start < settles[0]);
        if !in_order {
            verdict.find(
                Fault::Disagreement,
                format!("{op}: intents {intents:?}, starts {starts:?}, settlements {settles:?}"),
            );
            return;
        }
        let Some(settled) = self.of("op_settled").find(|e| e["op"] == op) else {
            return;
        };
        let settlement = &settled["settlement"];
        for field in [
            "outcome",
            "exit_code",
            "signal",
            "stdout_bytes",
            "stderr_bytes",
        ] {
            if settlement[field] != view[field] {
                verdict.find(
                    Fault::Disagreement,
                    format!(
                        "{op}: {field} is {} in the journal and {} in the answer",
                        settlement[field], view[field]
                    ),
                );
            }
        }
        if settled["cut"] != view["cut"] {
            verdict.find(
                Fault::Disagreement,
                format!("{op}: another cut is told than is journaled"),
            );
        }
        let cut = settled["cut"].as_str();
        let is_taken = |cut: &str| {
            self.of("cut_taken")
                .any(|e| e["cut"] == cut && e["seq"].as_u64() < settled["seq"].as_u64())
        };
        if cut.is_some_and(|cut| !is_taken(cut)) {
            verdict.find(
                Fault::Disagreement,
                format!("{op}: its cut is not in the journal"),
            );
        }
    }

    /// The writable head and the last cut, with the head that the cut was taken of.
    fn workspace(&self) -> Option<(String, Option<(String, String)>)> {
        let mut head = None;
        let mut last = None;
        for event in &self.events {
            match event["kind"].as_str()? {
                "created" | "rolled_back" => head = event["workspace"].as_str().map(str::to_owned),
                "cut_taken" => last = head.clone().zip(event["cut"].as_str().map(str::to_owned)),
                _ => {}
            }
        }
        Some((head?, last))
    }

    /// Checks that the files are what the last cut holds; for a sandbox in which nothing runs. Returns the head on the host.
    pub(crate) fn files(&self, world: &World, verdict: &mut Verdict) -> Res<PathBuf> {
        let (head, last) = self
            .workspace()
            .ok_or_else(|| trouble("the journal names no workspace"))?;
        let pool = world.as_daemon_sees(&world.data().join("pool"))?;
        let up = pool.join("heads").join(&head).join("up");
        if let Some((of, cut)) = last {
            let cut = pool.join("cuts").join(of).join(&cut).join("up");
            let (mut live, mut kept) = (BTreeMap::new(), BTreeMap::new());
            tree(&up, Path::new(""), &mut live)?;
            tree(&cut, Path::new(""), &mut kept)
                .map_err(|e| trouble(format!("the last cut cannot be read: {e}")))?;
            if live != kept {
                let names: BTreeSet<_> = live.keys().chain(kept.keys()).collect();
                let differ = names.into_iter().filter(|n| live.get(*n) != kept.get(*n));
                let differ: Vec<String> = differ
                    .take(5)
                    .map(|n| {
                        format!(
                            "{} ({} now, {} in the cut)",
                            n.display(),
                            live.get(n).map_or("absent", String::as_str),
                            kept.get(n).map_or("absent", String::as_str)
                        )
                    })
                    .collect();
                verdict.find(
                    Fault::Disagreement,
                    format!(
                        "the files are not those of the last cut: {}",
                        differ.join(", ")
                    ),
                );
            }
        }
        Ok(up)
    }
}

/// Reads a tree: what kind of thing each name is, its rights and its content.
fn tree(root: &Path, below: &Path, into: &mut BTreeMap<PathBuf, String>) -> Res<()> {
    let dir = root.join(below);
    let entries = fs::read_dir(&dir).map_err(|e| trouble(format!("{}: {e}", dir.display())))?;
    for entry in entries {
        let entry = entry?;
        let name = below.join(entry.file_name());
        let meta = fs::symlink_metadata(entry.path())?;
        let mode = meta.mode() & 0o7777;
        let kind = meta.file_type();
        let text = if kind.is_dir() {
            tree(root, &name, into)?;
            format!("directory {mode:o}")
        } else if kind.is_symlink() {
            format!("link to {}", fs::read_link(entry.path())?.display())
        } else if kind.is_file() {
            let content = fs::read(entry.path())?;
            let hash = blake3::hash(&content).to_hex();
            format!("file {mode:o} of {} bytes {}", content.len(), &hash[..8])
        } else if kind.is_char_device() {
            format!("device {}", meta.rdev())
        } else {
            "something else".to_owned()
        };
        into.insert(name, text);
    }
    Ok(())
}

/// Removes the sandbox and looks for what is left of it while its daemon lives on.
pub(crate) fn removed(world: &World, sandbox: &str, verdict: &mut Verdict) -> Res<()> {
    let state = world.state_dir(sandbox)?;
    let mut api = world.api()?;
    api.send("DELETE", &format!("/v1/sandboxes/{sandbox}"), b"")?
        .json()
        .map_err(|e| trouble(format!("the sandbox cannot be removed: {e}")))?;
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let processes = strangers(world);
        let groups: BTreeSet<_> = world
            .marks()
            .cgroups(true)
            .iter()
            .filter_map(|dir| Some(dir.file_name()?.to_owned()))
            .collect();
        let mounts = world.marks().mounts();
        // The pool's loop device lives as long as the daemon; a launcher waits in a group for the next sandbox.
        let mounts: Vec<_> = mounts
            .iter()
            .filter(|m| !m.contains("pool.btrfs"))
            .collect();
        let litter = !processes.is_empty() || groups.len() > 1 || !mounts.is_empty();
        if litter && Instant::now() < until {
            // The last processes are on their way; nobody tells when they are gone.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        for pid in processes {
            verdict.find(
                Fault::Process,
                format!("left: process {pid} ({})", process::command(pid)),
            );
        }
        for mount in mounts {
            verdict.find(Fault::Mount, format!("left: {mount}"));
        }
        if groups.len() > 1 {
            verdict.find(Fault::Cgroup, format!("left: cgroups {groups:?}"));
        }
        break;
    }
    if state.exists() {
        verdict.find(Fault::Disagreement, format!("left: {}", state.display()));
    }
    let pool = world.as_daemon_sees(&world.data().join("pool"))?;
    for part in ["heads", "cuts"] {
        let left = fs::read_dir(pool.join(part))?.flatten();
        for entry in left {
            verdict.find(
                Fault::Disagreement,
                format!("left in the pool: {part}/{}", entry.file_name().display()),
            );
        }
    }
    Ok(())
}

/// Living processes of the world besides the daemon, its relay and the launcher that it keeps ready, which waits in a cgroup
/// of this daemon's.
fn strangers(world: &World) -> Vec<i32> {
    let daemon = world.daemon();
    let group = format!("/{}-", daemon.unwrap_or_default());
    let mut launchers = 0;
    world
        .marks()
        .processes()
        .into_iter()
        .filter(|pid| {
            let command = process::command(*pid);
            if Some(*pid) == daemon || command.contains("__relay") {
                return false;
            }
            let groups = String::from_utf8_lossy(&process::file(*pid, "cgroup")).into_owned();
            if command.contains("__supervisor") && groups.contains(&group) {
                launchers += 1;
                return launchers > 1;
            }
            true
        })
        .collect()
}
