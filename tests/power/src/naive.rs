//! The copy that is not fair: the pool's image copied piece by piece while it is written, as `cp` does it. What it holds was
//! never on the disk at any one moment. Nobody can be served everything from it; but nobody may be served anything else either.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bench::{Api, Failure};
use protocol::api::{OpView, SandboxState};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::check;
use crate::cycle::{Place, World, pool_of};
use crate::load::{Seen, When};
use crate::processes;
use crate::seed::Seed;
use crate::tally::Tally;

const IMAGE: &str = "pool.btrfs";
/// As much as a copying program takes in one go.
const PIECE: usize = 256 << 10;

/// A copy of the pool's image.
pub(crate) struct Naive {
    image: PathBuf,
}

/// What one look at something that was announced came to.
enum Found {
    Whole,
    /// It cannot be read, and reading it says so.
    Refused,
    Wrong(String),
}

impl Naive {
    /// Copies the image, at full speed or as slowly as a large one would take.
    pub(crate) fn take(place: &Place, to: PathBuf, chance: &mut Seed) -> Result<Self, Failure> {
        let pause = Duration::from_micros(chance.between(0, 3) * chance.between(0, 300));
        let backwards = chance.between(0, 2) == 1;
        let copied = copy(&place.data().join(IMAGE), &to, pause, backwards);
        copied.map_err(Failure::cannot("copy the pool's image"))?;
        Ok(Self { image: to })
    }

    /// Puts it in the place of the pool's image.
    pub(crate) fn put(&self, place: &Place) -> Result<(), Failure> {
        let image = place.data().join(IMAGE);
        copy(&self.image, &image, Duration::ZERO, false)
            .map_err(Failure::cannot("put the copy in the pool's place"))
    }

    /// Holds what a daemon on it serves against what was announced.
    pub(crate) fn check(
        &self,
        world: &World,
        place: &Place,
        seen: &[Seen<When>],
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        tally.naive.copies += 1;
        place.reboot()?;
        world.forget_log();
        let daemon = match world.start(place) {
            Ok(daemon) => daemon,
            Err(failure) => {
                // It tells whoever started it, and its log a moment later.
                let said = format!("{failure}: {}", world.log_text());
                if !said.contains("pool") {
                    let what = format!("it does not start and says not why: {said}");
                    tally.violation("(all)", &what);
                }
                tally.naive.refused += 1;
                return processes::end_all();
            }
        };
        let mut api = daemon.connect()?;
        let pool = pool_of(&daemon, place);
        for seen in seen {
            sandbox(&mut api, &pool, seen, tally)?;
        }
        daemon.kill()?;
        processes::end_all()
    }
}

impl Drop for Naive {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.image);
    }
}

/// One sandbox: each of its cuts and its files hold what they were announced with, or it is told that they do not.
fn sandbox(
    api: &mut Api,
    pool: &Path,
    seen: &Seen<When>,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let name = &seen.sandbox;
    let list = api.list()?;
    let Some(view) = list.iter().find(|view| view.name.as_str() == name) else {
        if seen.created.is_some() {
            tally.violation(name, "it is gone, and its journal is whole");
        }
        return Ok(());
    };
    // The last checkpoint is among those that it tells of as lost, so that its files may be older too.
    let told = view.state == SandboxState::Damaged
        || view.problem.as_ref().is_some_and(|p| p.contains("older"));
    let workspace = check::first_event(api, name)?["workspace"].clone();
    let workspace = workspace.as_str().unwrap_or_default();
    let head = pool.join("heads").join(workspace);
    for (_, op, _) in &seen.settled {
        let in_cut = op.cut.as_ref().map(|cut| {
            let tree = pool.join("cuts").join(workspace).join(cut.as_str());
            let gone = view.problem.is_some() && !tree.exists();
            (look(&tree, op), gone)
        });
        for (found, told) in in_cut.into_iter().chain([(look(&head, op), told)]) {
            match found {
                Found::Whole => tally.naive.whole += 1,
                Found::Refused => tally.naive.told += 1,
                Found::Wrong(_) if told => tally.naive.told += 1,
                Found::Wrong(what) => {
                    let what = format!("nobody is told that {} is damaged: {what}", op.id);
                    tally.violation(name, &what);
                }
            }
        }
    }
    Ok(())
}

/// Looks for the file of an operation in a tree.
fn look(tree: &Path, view: &OpView) -> Found {
    let path = tree.join("up/workspace").join(view.id.as_str());
    match std::fs::read_to_string(&path) {
        Ok(text) if text == format!("{}\n", view.id) => Found::Whole,
        Ok(text) => Found::Wrong(format!("{} holds {text:?}", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Found::Wrong(format!("{} is not there", path.display()))
        }
        Err(_) => Found::Refused,
    }
}

/// Copies a file piece by piece and leaves out where there is nothing.
fn copy(from: &Path, to: &Path, pause: Duration, backwards: bool) -> io::Result<()> {
    let (from, to) = (File::open(from)?, File::create(to)?);
    let bytes = from.metadata()?.len();
    to.set_len(bytes)?;
    let mut piece = vec![0; PIECE];
    let pieces = bytes.div_ceil(PIECE as u64);
    for nth in 0..pieces {
        let nth = if backwards { pieces - 1 - nth } else { nth };
        let at = nth * PIECE as u64;
        match rustix::fs::seek(&from, SeekFrom::Data(at)) {
            Ok(next) if next < at + PIECE as u64 => {}
            Ok(_) | Err(Errno::NXIO) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let size = from.read_at(&mut piece, at)?;
        to.write_all_at(&piece[..size], at)?;
        std::thread::sleep(pause);
    }
    Ok(())
}
