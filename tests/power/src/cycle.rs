//! One cut of power, from a fresh disk to the last check.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bench::{Daemon, Failure, daemon};
use journal::{Sqlite, Store as _};
use tempfile::TempDir;

use crate::check;
use crate::controls::CONTROLS;
use crate::disk::Disk;
use crate::load::{self, Power, Seen, Shape};
use crate::processes;
use crate::seed::Seed;
use crate::stores;
use crate::tally::Tally;

/// Bytes that an operation writes beside its marks: none, a page, more than stays inline anywhere.
const BALLAST: [u64; 3] = [0, 4 << 10, 300 << 10];

/// Where all cuts of one run happen.
pub(crate) struct World {
    program: PathBuf,
    dir: TempDir,
    /// Every daemon there was; cgroups are named after them.
    daemons: RefCell<Vec<u32>>,
}

impl World {
    pub(crate) fn new(parent: &Path) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new()
            .prefix("durable-power-")
            .tempdir_in(parent)
            .map_err(Failure::cannot(format!(
                "make a directory in {}",
                parent.display()
            )))?;
        Ok(Self {
            program: daemon::program(),
            dir,
            daemons: RefCell::default(),
        })
    }

    fn mount(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    fn data(&self) -> PathBuf {
        self.mount().join("data")
    }

    /// The blob store that sandboxes are pushed to: on the same disk, so that it loses its power too.
    fn store(&self) -> PathBuf {
        self.mount().join("store")
    }

    /// Makes the daemon see what it sees after a power cut: it was last served in another boot of the machine. The kernel's
    /// own word on that cannot be changed, for a `/proc` with a mount in it is refused to sandboxes.
    fn reboot(&self) -> Result<(), Failure> {
        let note = self.data().join("machine.boot");
        let noted = std::fs::read(&note).map_err(Failure::cannot("read the note of the boot"))?;
        let other: Vec<u8> = noted.iter().rev().copied().collect();
        std::fs::write(&note, other).map_err(Failure::cannot("change the note of the boot"))
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("daemon.log")
    }

    pub(crate) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn start(&self) -> Result<Daemon, Failure> {
        let daemon = Daemon::start(&self.program, &self.data(), &self.log())?;
        self.daemons.borrow_mut().push(daemon.pid());
        Ok(daemon)
    }

    /// Cuts the power once.
    pub(crate) fn cycle(&self, seed: u64) -> Result<Tally, Failure> {
        let mut chance = Seed::new(seed);
        let disk = Disk::make(self.dir.path().join("disk.ext4"), self.mount())?;
        std::fs::create_dir(self.data()).map_err(Failure::cannot("make the data directory"))?;
        let daemon = self.start()?;
        let (power, stop) = (Power::default(), AtomicBool::new(false));
        let sandboxes = chance.between(1, 4);
        let shapes: Vec<Shape> = (0..sandboxes)
            .map(|nth| Shape {
                clients: chance.between(1, 4),
                command_line: nth == 0,
                ballast: BALLAST[usize::try_from(nth).unwrap_or_default() % BALLAST.len()],
            })
            .collect();
        let after = Duration::from_millis(chance.between(20, 1100));
        // A while in which everything runs on a disk that takes nothing any more: nothing may be announced then.
        let agony = Duration::from_millis(chance.between(0, 40));
        let (seen, acknowledged) = std::thread::scope(|scope| {
            let (power, stop) = (&power, &stop);
            let working: Vec<_> = shapes
                .iter()
                .enumerate()
                .map(|(nth, shape)| {
                    let (data, store) = (self.data(), self.store());
                    let (program, shape) = (&self.program, *shape);
                    scope.spawn(move || {
                        let name = format!("s{nth}");
                        load::work(program, &data, &store, &name, shape, power, stop)
                    })
                })
                .collect();
            let writing: Vec<_> = CONTROLS
                .iter()
                .map(|control| {
                    let disk = self.mount();
                    scope.spawn(move || control.write(&disk, power, stop))
                })
                .collect();
            let store = self.store();
            let collecting = scope.spawn(move || stores::keep_collecting(&store, stop));
            std::thread::sleep(after);
            power.goes();
            let cut = disk.cut();
            std::thread::sleep(agony);
            stop.store(true, Ordering::Relaxed);
            // Our own child is waited for here; what descends from it, and what its clients may have started, there.
            let killed = daemon.kill();
            let ended = processes::end_all();
            let seen: Vec<Seen> = working.into_iter().filter_map(|t| t.join().ok()).collect();
            let wrote: Result<Vec<u64>, Failure> = writing
                .into_iter()
                .map(|t| {
                    t.join()
                        .unwrap_or_else(|_| Err(Failure::wrong("a control panicked")))
                })
                .collect();
            // A client that was just starting a daemon may have got that far.
            let again = processes::end_all();
            if collecting.join().is_err() {
                return Err(Failure::wrong("a collection panicked"));
            }
            cut.and(killed).and(ended).and(again)?;
            if seen.len() != shapes.len() {
                return Err(Failure::wrong("a client panicked"));
            }
            Ok::<_, Failure>((seen, wrote?))
        })?;
        disk.unmount()?;
        disk.mount()?;
        self.reboot()?;
        let mut tally = Tally::of_one(sandboxes);
        for (nth, (control, acknowledged)) in CONTROLS.iter().zip(acknowledged).enumerate() {
            tally.control(nth, acknowledged, control.found(&self.mount()));
        }
        self.check(&seen, &mut tally)?;
        stores::check(&self.store(), self.dir.path(), &seen, &mut tally)?;
        disk.unmount()?;
        Ok(tally)
    }

    fn check(&self, seen: &[Seen], tally: &mut Tally) -> Result<(), Failure> {
        let daemon = self.start()?;
        let mut api = daemon.connect()?;
        // The pool is mounted in the daemon's own namespace.
        let pool = PathBuf::from(format!(
            "/proc/{}/root{}/pool",
            daemon.pid(),
            self.data().display()
        ));
        for seen in seen {
            check::sandbox(&mut api, &pool, seen, tally)?;
        }
        for view in api.list()? {
            // It must also still work.
            let done = api.exec(
                view.name.as_str(),
                "after",
                &bench::api::command(&["true"]),
                |_| (),
            );
            match done {
                Ok(done) if done.view.exit_code == Some(0) => {}
                Ok(done) => {
                    tally.violation(view.name.as_str(), &format!("`true` is {:?}", done.view))
                }
                Err(failure) => tally.violation(view.name.as_str(), &failure.chain()),
            }
            let stop = format!("/v1/sandboxes/{}/stop?grace_ms=0", view.name);
            let _stopped: protocol::api::SandboxView =
                api.call(hyper::Method::POST, &stop, None::<&()>)?;
        }
        daemon.terminate()?;
        if let Some(left) = processes::await_end() {
            tally.violation(
                "(all)",
                &format!("everything was told to end, and there are {left:?}"),
            );
            processes::end_all()?;
        }
        self.chains(tally)
    }

    /// Reads every journal with nobody else at it: each event's CRC and hash, and the head.
    fn chains(&self, tally: &mut Tally) -> Result<(), Failure> {
        let store = Sqlite::open(&self.data().join("journal"))
            .map_err(Failure::cannot("open the journal"))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(Failure::cannot("read the journal"))?;
        runtime.block_on(async {
            let list = store
                .list()
                .await
                .map_err(Failure::cannot("list the journals"))?;
            for (id, name) in list {
                let report = store
                    .verify(id, None)
                    .await
                    .map_err(Failure::cannot("verify a journal"))?;
                if !report.is_whole() {
                    tally.violation(name.as_str(), &report.to_string());
                }
            }
            Ok(())
        })
    }

    /// Names cgroups of ours that are still there.
    pub(crate) fn litter(&self) -> Option<String> {
        let daemons = self.daemons.borrow();
        let ours = |name: &str| {
            name.split('-')
                .next()
                .and_then(|pid| pid.parse().ok())
                .is_some_and(|pid: u32| daemons.contains(&pid))
        };
        let mut left = Vec::new();
        for hierarchy in list("/sys/fs/cgroup".as_ref()) {
            for key in list(&hierarchy.join("durable")) {
                for group in list(&key) {
                    let name = group
                        .file_name()
                        .map(|name| name.to_string_lossy().into_owned());
                    if name.is_some_and(|name| ours(&name)) {
                        left.push(group.display().to_string());
                    }
                }
            }
        }
        (!left.is_empty()).then(|| left.join(", "))
    }
}

fn list(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
