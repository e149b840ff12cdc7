//! One load on one disk, and what is looked at after its power was cut: from a fresh disk to the last check.

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
use crate::load::{self, Cut, Power, Seen, Shape, When};
use crate::processes;
use crate::seed::Seed;
use crate::stores;
use crate::tally::Tally;
use crate::tape::Mark;

/// Bytes that an operation writes beside its marks: none, a page, more than stays inline anywhere.
const BALLAST: [u64; 3] = [0, 4 << 10, 300 << 10];

/// Where all cuts of one run happen.
pub(crate) struct World {
    program: PathBuf,
    dir: TempDir,
    /// Every daemon there was; cgroups are named after them.
    daemons: RefCell<Vec<u32>>,
}

/// A mounted disk with everything that the load leaves on it.
#[derive(Debug, Clone)]
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn mount(&self) -> &Path {
        &self.0
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// The blob store that sandboxes are pushed to: on the same disk, so that it loses its power too.
    pub(crate) fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    /// Makes the daemon see what it sees after a power cut: it was last served in another boot of the machine. The kernel's
    /// own word on that cannot be changed, for a `/proc` with a mount in it is refused to sandboxes.
    pub(crate) fn reboot(&self) -> Result<(), Failure> {
        let note = self.data().join("machine.boot");
        let noted = std::fs::read(&note).map_err(Failure::cannot("read the note of the boot"))?;
        let other: Vec<u8> = noted.iter().rev().copied().collect();
        std::fs::write(&note, other).map_err(Failure::cannot("change the note of the boot"))
    }
}

/// What a load left in our memory: what clients saw of each sandbox, and when each control acknowledged what.
pub(crate) struct Told {
    pub(crate) seen: Vec<Seen<Mark>>,
    /// When the daemon served.
    pub(crate) ready: Mark,
    controls: Vec<Vec<Mark>>,
}

impl Told {
    /// Holds everything on a disk against what had been announced when its power was cut.
    pub(crate) fn check(
        &self,
        world: &World,
        place: &Place,
        cut: Cut,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        place.reboot()?;
        for (nth, (control, marks)) in CONTROLS.iter().zip(&self.controls).enumerate() {
            let before = |mark: &&Mark| cut.when(**mark) == Some(When::Before);
            let acknowledged = marks.iter().filter(before).count() as u64;
            tally.control(nth, acknowledged, control.found(place.mount()));
        }
        let seen: Vec<Seen<When>> = self.seen.iter().map(|seen| seen.as_of(cut)).collect();
        world.check(place, &seen, tally)?;
        stores::check(&place.store(), world.dir(), &seen, tally)
    }

    /// Notes the answers that were wrong in themselves.
    pub(crate) fn wrong(&self, tally: &mut Tally) {
        for seen in &self.seen {
            for wrong in &seen.wrong {
                tally.violation(&seen.sandbox, wrong);
            }
        }
    }
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

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where its disk is mounted.
    pub(crate) fn place(&self) -> Place {
        Place(self.dir().join("disk"))
    }

    fn log(&self) -> PathBuf {
        self.dir().join("daemon.log")
    }

    /// Makes what daemons log from here on all that they logged.
    pub(crate) fn forget_log(&self) {
        // Nothing was logged yet: as good.
        let _gone = std::fs::remove_file(self.log());
    }

    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    pub(crate) fn log_tail(&self) -> String {
        let log = self.log_text();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    pub(crate) fn start(&self, place: &Place) -> Result<Daemon, Failure> {
        let daemon = Daemon::start(&self.program, &place.data(), &self.log())?;
        self.daemons.borrow_mut().push(daemon.pid());
        Ok(daemon)
    }

    /// Shuts a file system down once, under a load.
    pub(crate) fn shutdown(&self, seed: u64) -> Result<Tally, Failure> {
        let mut chance = Seed::new(seed);
        let place = self.place();
        let disk = Disk::make(self.dir().join("disk.ext4"), place.mount().to_owned())?;
        let shapes = shapes(&mut chance);
        let mut tally = Tally::of_one(shapes.len());
        let after = Duration::from_millis(chance.between(20, 1100));
        // A while in which everything runs on a disk that takes nothing any more: nothing may be announced then.
        let agony = Duration::from_millis(chance.between(0, 40));
        let power = Power::to_be_cut();
        let told = self.load(&place, &shapes, &power, || {
            std::thread::sleep(after);
            power.goes();
            let cut = disk.cut();
            std::thread::sleep(agony);
            cut
        })?;
        disk.unmount()?;
        disk.mount()?;
        told.wrong(&mut tally);
        told.check(self, &place, Cut::Shutdown, &mut tally)?;
        disk.unmount()?;
        Ok(tally)
    }

    /// Starts a daemon and works with it for as long as `meanwhile` takes; then everything is killed.
    pub(crate) fn load(
        &self,
        place: &Place,
        shapes: &[Shape],
        power: &Power,
        meanwhile: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Told, Failure> {
        std::fs::create_dir(place.data()).map_err(Failure::cannot("make the data directory"))?;
        let daemon = self.start(place)?;
        let (ready, stop) = (power.mark(), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let working: Vec<_> = shapes
                .iter()
                .enumerate()
                .map(|(nth, shape)| {
                    let (data, store) = (place.data(), place.store());
                    let (program, shape) = (&self.program, *shape);
                    scope.spawn(move || {
                        let name = format!("s{nth}");
                        load::work(program, &data, &store, &name, shape, power, stop)
                    })
                })
                .collect();
            let writing: Vec<_> = CONTROLS
                .iter()
                .map(|control| scope.spawn(move || control.write(place.mount(), power, stop)))
                .collect();
            let store = place.store();
            let collecting = scope.spawn(move || stores::keep_collecting(&store, stop));
            let cut = meanwhile();
            stop.store(true, Ordering::Relaxed);
            // Our own child is waited for here; what descends from it, and what its clients may have started, there.
            let killed = daemon.kill();
            let ended = processes::end_all();
            let seen: Vec<Seen<Mark>> = working.into_iter().filter_map(|t| t.join().ok()).collect();
            let controls: Result<Vec<Vec<Mark>>, Failure> = writing
                .into_iter()
                .map(|t| t.join().map_err(|_| Failure::wrong("a control panicked")))
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
            let controls = controls?;
            Ok(Told {
                seen,
                ready,
                controls,
            })
        })
    }

    fn check(&self, place: &Place, seen: &[Seen<When>], tally: &mut Tally) -> Result<(), Failure> {
        let daemon = self.start(place)?;
        let mut api = daemon.connect()?;
        let pool = pool_of(&daemon, place);
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
        self.chains(place, tally)
    }

    /// Reads every journal with nobody else at it: each event's CRC and hash, and the head.
    fn chains(&self, place: &Place, tally: &mut Tally) -> Result<(), Failure> {
        let store = Sqlite::open(&place.data().join("journal"))
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

/// Draws how much goes on in how many sandboxes.
pub(crate) fn shapes(chance: &mut Seed) -> Vec<Shape> {
    (0..chance.between(1, 4))
        .map(|nth| Shape {
            clients: chance.between(1, 4),
            command_line: nth == 0,
            ballast: BALLAST[usize::try_from(nth).unwrap_or_default() % BALLAST.len()],
        })
        .collect()
}

/// The pool's directory; it is mounted in the daemon's own namespace.
pub(crate) fn pool_of(daemon: &Daemon, place: &Place) -> PathBuf {
    let data = place.data();
    PathBuf::from(format!(
        "/proc/{}/root{}/pool",
        daemon.pid(),
        data.display()
    ))
}

fn list(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
