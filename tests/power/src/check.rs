//! What must still be so after the cut: everything that anybody was told, and nothing claimed that is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bench::{Api, Failure};
use protocol::api::{EventView, OpView, SandboxState};
use protocol::{ApiError, CutId, OpId};
use serde_json::Value;

use crate::load::{Seen, When};
use crate::tally::Tally;

/// One sandbox as it is after the cut.
struct After {
    events: Vec<EventView>,
    ops: BTreeMap<OpId, OpView>,
    workspace: String,
    /// Cuts that the retention rule gave back.
    dropped: BTreeSet<CutId>,
}

/// Holds what was seen of one sandbox against what is there now. `pool` is the pool's directory as the daemon sees it.
pub(crate) fn sandbox(
    api: &mut Api,
    pool: &Path,
    seen: &Seen<When>,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let name = &seen.sandbox;
    let list = api.list()?;
    let Some(view) = list.iter().find(|view| view.name.as_str() == name) else {
        if seen.created == Some(When::Before) {
            tally.violation(name, "its creation was announced, and it is gone");
        }
        return Ok(());
    };
    if view.state == SandboxState::Damaged {
        let problem = view.problem.as_deref().unwrap_or_default();
        tally.violation(name, &format!("it is damaged: {problem}"));
        return Ok(());
    }
    let after = look(api, name, tally)?;
    events(seen, &after, tally);
    operations(api, seen, &after, tally)?;
    cuts(pool, seen, &after, tally);
    forks(api, pool, seen, tally)?;
    head(pool, seen, &after, tally)
}

fn look(api: &mut Api, name: &str, tally: &mut Tally) -> Result<After, Failure> {
    // Recovery may have begun what was journaled and never started; that must come to its end too.
    let path = format!("/v1/sandboxes/{name}/ops");
    for op in api.get::<Vec<OpView>>(&path)? {
        if op.outcome.is_none() {
            let _settled: OpView = api.get(&format!("{path}/{}?wait=true", op.id))?;
        }
    }
    let ops: Vec<OpView> = api.get(&path)?;
    let journal = api.bytes(&format!("/v1/sandboxes/{name}/journal?from=1"))?;
    let mut events: Vec<EventView> = Vec::new();
    for line in journal
        .split(|byte| *byte == b'\n')
        .filter(|l| !l.is_empty())
    {
        match serde_json::from_slice(line) {
            Ok(event) => events.push(event),
            Err(_) => tally.violation(
                name,
                &format!("its journal ends: {}", String::from_utf8_lossy(line)),
            ),
        }
    }
    if events
        .iter()
        .zip(1..)
        .any(|(event, seq)| event.seq.0 != seq)
    {
        tally.violation(name, "its journal has a gap");
    }
    let workspace = of_kind(&events, "created")
        .filter_map(|event| event.event["workspace"].as_str())
        .next()
        .unwrap_or_default()
        .to_owned();
    let dropped = of_kind(&events, "cuts_dropped")
        .filter_map(|event| serde_json::from_value::<Vec<CutId>>(event.event["cuts"].clone()).ok())
        .flatten()
        .collect();
    Ok(After {
        ops: ops.into_iter().map(|op| (op.id.clone(), op)).collect(),
        events,
        workspace,
        dropped,
    })
}

fn of_kind<'a>(events: &'a [EventView], kind: &'a str) -> impl Iterator<Item = &'a EventView> {
    events
        .iter()
        .filter(move |event| event.event["kind"] == kind)
}

/// Every event that was announced stands where it stood, with the hash over everything before it.
fn events(seen: &Seen<When>, after: &After, tally: &mut Tally) {
    let at = |seq: u64| {
        let nth = usize::try_from(seq).ok()?.checked_sub(1)?;
        after.events.get(nth)
    };
    for (when, event) in &seen.events {
        tally.events += 1;
        if at(event.seq.0) != Some(event) {
            let what = format!("event {} was announced, and is not there", event.seq);
            tally.gone(*when, &seen.sandbox, &what);
        }
    }
    for (when, op, seq) in &seen.intents {
        tally.intents += 1;
        let there = at(seq.0)
            .is_some_and(|e| e.event["kind"] == "op_intent" && e.event["op"] == op.as_str());
        if !there {
            let what = format!("the intent of {op} was announced at {seq}, and is not there");
            tally.gone(*when, &seen.sandbox, &what);
        }
    }
    for (when, view, _) in &seen.settled {
        tally.settlements += 1;
        let event = view.settled_seq.and_then(|seq| at(seq.0));
        let same = event.is_some_and(|e| {
            let e = &e.event;
            e["kind"] == "op_settled"
                && e["op"] == view.id.as_str()
                && e["settlement"]["exit_code"] == serde_json::json!(view.exit_code)
                && e.get("cut").and_then(Value::as_str) == view.cut.as_ref().map(CutId::as_str)
        });
        if !same {
            let what = format!(
                "the settlement of {} was announced, and is not there",
                view.id
            );
            tally.gone(*when, &seen.sandbox, &what);
        }
    }
}

/// Every announced settlement is told the same again, with its output; the others are told as what is known.
fn operations(
    api: &mut Api,
    seen: &Seen<When>,
    after: &After,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let name = &seen.sandbox;
    let announced: BTreeSet<&OpId> = seen.settled.iter().map(|(_, view, _)| &view.id).collect();
    for (when, view, stdout) in &seen.settled {
        if *stdout != format!("{}\n", view.id).into_bytes() || view.exit_code != Some(0) {
            tally.violation(
                name,
                &format!("{} was announced with a wrong outcome or output", view.id),
            );
        }
        let same = after.ops.get(&view.id).is_some_and(|now| {
            (now.exit_code, now.stdout_bytes, &now.cut, now.settled_seq)
                == (
                    view.exit_code,
                    view.stdout_bytes,
                    &view.cut,
                    view.settled_seq,
                )
        });
        if !same {
            let now = after.ops.get(&view.id);
            tally.gone(
                *when,
                name,
                &format!("{} was announced as {view:?} and is now {now:?}", view.id),
            );
        }
    }
    for op in after.ops.values() {
        match op.outcome.as_deref() {
            Some("exited") => {
                let path = format!("/v1/sandboxes/{name}/ops/{}/output/stdout", op.id);
                let output = match api.bytes(&path) {
                    Ok(output) => output.to_vec(),
                    Err(Failure::Refused { error, .. }) => said(&error),
                    Err(failure) => return Err(failure),
                };
                if op.exit_code != Some(0) || output != format!("{}\n", op.id).into_bytes() {
                    let output = String::from_utf8_lossy(&output);
                    let what = format!(
                        "{} is settled as {:?} with output {output:?}",
                        op.id, op.exit_code
                    );
                    tally.violation(name, &what);
                }
                tally.late_exits += u64::from(!announced.contains(&op.id));
            }
            Some("lost") => tally.lost += 1,
            other => tally.violation(
                name,
                &format!("{} is told as {other:?}: {:?}", op.id, op.error),
            ),
        }
    }
    let unknown = seen.asked.iter().filter(|(_, asked)| {
        let id: Result<OpId, _> = asked.parse();
        id.is_ok_and(|id| !after.ops.contains_key(&id))
    });
    tally.not_journaled += unknown.count() as u64;
    Ok(())
}

fn said(error: &ApiError) -> Vec<u8> {
    error.message.clone().into_bytes()
}

/// Every announced cut is there and holds what it was taken for, and what settled before it.
fn cuts(pool: &Path, seen: &Seen<When>, after: &After, tally: &mut Tally) {
    let name = &seen.sandbox;
    let place = |cut: &str| -> PathBuf {
        let path: PathBuf = [after.workspace.as_str(), cut, "up/workspace"]
            .iter()
            .collect();
        pool.join("cuts").join(path)
    };
    let taken = seen
        .events
        .iter()
        .filter(|(when, event)| *when == When::Before && event.event["kind"] == "cut_taken");
    let mut announced: BTreeSet<CutId> = taken
        .filter_map(|(_, event)| serde_json::from_value(event.event["cut"].clone()).ok())
        .collect();
    let mut last: Option<&OpView> = None;
    let before = || {
        seen.settled
            .iter()
            .filter(|(when, ..)| *when == When::Before)
    };
    for (_, view, _) in before() {
        let Some(cut) = &view.cut else {
            tally.violation(
                name,
                &format!("{} wrote files and was announced without a cut", view.id),
            );
            continue;
        };
        announced.insert(cut.clone());
        if after.dropped.contains(cut) {
            continue;
        }
        if let Some(problem) = missing(&place(cut.as_str()), view.id.as_str()) {
            tally.violation(
                name,
                &format!("cut {cut} was announced for {}: {problem}", view.id),
            );
        }
        if last.is_none_or(|last| last.settled_seq < view.settled_seq) {
            last = Some(view);
        }
    }
    tally.cuts += announced.len() as u64;
    for cut in announced.difference(&after.dropped) {
        // The sandbox's own start may be all that a cut holds: then there is no such directory in it.
        if !place(cut.as_str())
            .ancestors()
            .nth(1)
            .is_some_and(Path::is_dir)
        {
            tally.violation(name, &format!("cut {cut} was announced, and is not there"));
        }
    }
    let Some(last) = last else { return };
    let Some(cut) = last.cut.as_ref().filter(|cut| !after.dropped.contains(cut)) else {
        return;
    };
    for (_, view, _) in before() {
        if view.settled_seq <= last.settled_seq
            && let Some(problem) = missing(&place(cut.as_str()), view.id.as_str())
        {
            tally.violation(
                name,
                &format!("cut {cut} came after {}: {problem}", view.id),
            );
        }
    }
}

/// Says how an operation's own file is not as it wrote it.
fn missing(dir: &Path, op: &str) -> Option<String> {
    let path = dir.join(op);
    match std::fs::read_to_string(&path) {
        Ok(text) if text == format!("{op}\n") => None,
        Ok(text) => Some(format!("{} holds {text:?}", path.display())),
        Err(error) => Some(format!("{}: {error}", path.display())),
    }
}

/// Every announced fork is there, with a journal and a workspace of its own that hold what its source had settled.
fn forks(api: &mut Api, pool: &Path, seen: &Seen<When>, tally: &mut Tally) -> Result<(), Failure> {
    for (when, fork, op) in &seen.forks {
        tally.forks += 1;
        let there = api
            .list()?
            .into_iter()
            .find(|view| view.name.as_str() == fork);
        let Some(view) = there else {
            tally.gone(*when, fork, "the fork was announced, and it is gone");
            continue;
        };
        if view.state == SandboxState::Damaged {
            tally.gone(*when, fork, "the fork is damaged");
            continue;
        }
        let first = first_event(api, fork)?;
        let text = |key: &str| first[key].as_str().unwrap_or_default().to_owned();
        let (workspace, cut) = (text("workspace"), text("cut"));
        for tree in [
            pool.join("heads").join(&workspace),
            pool.join("cuts").join(&workspace).join(&cut),
        ] {
            if let Some(problem) = missing(&tree.join("up/workspace"), op) {
                tally.gone(*when, fork, &format!("the fork was announced: {problem}"));
            }
        }
    }
    Ok(())
}

/// Returns what a sandbox's journal begins with.
pub(crate) fn first_event(api: &mut Api, name: &str) -> Result<Value, Failure> {
    let journal = api.bytes(&format!("/v1/sandboxes/{name}/journal?from=1"))?;
    let mut lines = journal.split(|byte| *byte == b'\n');
    Ok(serde_json::from_slice(lines.next().unwrap_or_default()).unwrap_or_default())
}

/// The files after the cut: what settled is in them, nothing ran twice, and nothing ran that was not journaled first.
fn head(pool: &Path, seen: &Seen<When>, after: &After, tally: &mut Tally) -> Result<(), Failure> {
    let name = &seen.sandbox;
    let dir = pool
        .join("heads")
        .join(&after.workspace)
        .join("up/workspace");
    let what = || format!("read {}", dir.display());
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let mut files = BTreeSet::new();
    match std::fs::read_dir(&dir) {
        // Nothing was ever written.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        listed => {
            for entry in listed.map_err(Failure::cannot(what()))? {
                let entry = entry.map_err(Failure::cannot(what()))?;
                let file = entry.file_name().to_string_lossy().into_owned();
                if file.starts_with("log-") {
                    let text =
                        std::fs::read_to_string(entry.path()).map_err(Failure::cannot(what()))?;
                    for line in text.lines() {
                        *lines.entry(line.to_owned()).or_default() += 1;
                    }
                } else if !file.starts_with("ballast-") {
                    files.insert(file);
                }
            }
        }
    }
    for (line, times) in &lines {
        if *times > 1 {
            tally.violation(name, &format!("{line} ran {times} times"));
        }
    }
    for ran in files.iter().chain(lines.keys()) {
        let id: Result<OpId, _> = ran.parse();
        if !id.is_ok_and(|id| after.ops.contains_key(&id)) {
            tally.violation(name, &format!("{ran:?} took effect and is not journaled"));
        }
    }
    let announced: BTreeSet<&OpId> = seen.settled.iter().map(|(_, view, _)| &view.id).collect();
    for op in after.ops.values().filter(|op| op.exit_code == Some(0)) {
        let problem = missing(&dir, op.id.as_str()).or_else(|| {
            (!lines.contains_key(op.id.as_str())).then(|| "its log line is missing".to_owned())
        });
        let Some(problem) = problem else { continue };
        let told = if announced.contains(&op.id) {
            "was announced"
        } else {
            "is told after the cut"
        };
        let error = op.error.as_deref().unwrap_or("no word of it");
        tally.violation(
            name,
            &format!("{} {told} as exited with 0, and {problem} ({error})", op.id),
        );
    }
    Ok(())
}
