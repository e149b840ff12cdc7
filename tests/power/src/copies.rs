//! A load on a disk that is recorded, and the disk as power cuts at many moments would have left it.
//!
//! Half of the moments are those at which something had just been announced: what an announcement rests on, and nothing more, is
//! on the disk then. What the device had not been told to flush is kept, lost or torn (see `tape`).

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bench::Failure;

use crate::cycle::{Told, World, shapes};
use crate::disk::{self, Disk};
use crate::fuse::TapeFile;
use crate::load::{Cut, Power};
use crate::naive::Naive;
use crate::seed::Seed;
use crate::tally::Tally;
use crate::tape::{Cache, Mark, Tape};

/// One moment at which the power is cut.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Mark,
    cache: Cache,
    /// What the device did with each block that it may lose.
    chance: u64,
}

impl World {
    /// Records one load, and cuts the power `copies` times.
    ///
    /// Each copy is mounted where the disk was, as after a reboot; its daemon so also takes the load's cgroups away.
    pub(crate) fn copies(
        &self,
        seed: u64,
        copies: u64,
        keep: Option<&PathBuf>,
    ) -> Result<Tally, Failure> {
        let mut chance = Seed::new(seed);
        let tape = self.tape()?;
        let shapes = shapes(&mut chance);
        let before = Duration::from_millis(chance.between(100, 600));
        let after = Duration::from_millis(chance.between(50, 500));
        let power = Power::Taped(Arc::clone(&tape));
        let place = self.place();
        let file = TapeFile::mount(Arc::clone(&tape), self.dir().join("disk.tape"))?;
        let disk = Disk::of(file.path().to_owned(), place.mount().to_owned())?;
        let (mut naive, mut end) = (None, 0);
        let told = self.load(&place, &shapes, &power, || {
            std::thread::sleep(before);
            let copy = self.dir().join("naive.btrfs");
            naive = Some(Naive::take(&place, copy, &mut chance)?);
            std::thread::sleep(after);
            end = tape.mark();
            Ok(())
        })?;
        disk.unmount()?;
        drop((disk, file));
        let mut tally = Tally::default();
        told.wrong(&mut tally);
        if let Some(naive) = naive {
            let found = self.naive(&tape, end, &naive, &told)?;
            tally.add(found.of("copy of the pool while it was written"));
        }
        for moment in moments(&told, end, copies, &mut chance) {
            let found = self.cut(&tape, moment, &told, shapes.len())?;
            if let Some(keep) = keep.filter(|_| !found.violations.is_empty()) {
                self.keep(
                    &tape,
                    moment,
                    &keep.join(format!("{seed}-{}.ext4", moment.at)),
                )?;
            }
            tally.add(found.of(&format!(
                "copy at {} of {end}, {:?}",
                moment.at, moment.cache
            )));
        }
        Ok(tally)
    }

    fn tape(&self) -> Result<Arc<Tape>, Failure> {
        let image = self.dir().join("fresh.ext4");
        let fresh = disk::format(&image)?;
        let tape = Tape::of(&fresh).map_err(Failure::cannot("read the fresh disk"))?;
        std::fs::remove_file(&image).map_err(Failure::cannot("remove the fresh disk"))?;
        Ok(Arc::new(tape))
    }

    fn cut(
        &self,
        tape: &Tape,
        moment: Moment,
        told: &Told,
        sandboxes: usize,
    ) -> Result<Tally, Failure> {
        let mut tally = Tally::of_one(sandboxes);
        let (image, place) = (self.dir().join("copy.ext4"), self.place());
        tally.copies = 1;
        tally.device_lost = moment.image(tape, &image)?;
        let disk = Disk::of(image, place.mount().to_owned())?;
        told.check(self, &place, Cut::Copied(moment.at), &mut tally)?;
        disk.unmount()?;
        Ok(tally)
    }

    /// Everything of the disk is whole but the pool, which is a naive copy.
    fn naive(&self, tape: &Tape, end: Mark, naive: &Naive, told: &Told) -> Result<Tally, Failure> {
        let (image, place) = (self.dir().join("copy.ext4"), self.place());
        let whole = Moment {
            at: end,
            cache: Cache::Kept,
            chance: 0,
        };
        whole.image(tape, &image)?;
        let disk = Disk::of(image, place.mount().to_owned())?;
        let mut tally = Tally::default();
        naive.put(&place)?;
        let seen: Vec<_> = told
            .seen
            .iter()
            .map(|s| s.as_of(Cut::Copied(end)))
            .collect();
        naive.check(self, &place, &seen, &mut tally)?;
        disk.unmount()?;
        Ok(tally)
    }

    /// Leaves the disk of a cut that something was wrong after, for people.
    fn keep(&self, tape: &Tape, moment: Moment, to: &PathBuf) -> Result<(), Failure> {
        moment.image(tape, to).map(drop)
    }
}

impl Moment {
    fn image(self, tape: &Tape, path: &PathBuf) -> Result<u64, Failure> {
        let what = || format!("make the copy {}", path.display());
        let file = File::create(path).map_err(Failure::cannot(what()))?;
        tape.image(self.at, self.cache, &mut Seed::new(self.chance), &file)
            .map_err(Failure::cannot(what()))
    }
}

/// Draws when the power is cut: after the daemon was ready, and before the load's end.
fn moments(told: &Told, end: Mark, copies: u64, chance: &mut Seed) -> Vec<Moment> {
    let mut announced: Vec<Mark> = told.seen.iter().flat_map(|seen| seen.marks()).collect();
    announced.retain(|mark| (told.ready..=end).contains(mark));
    (0..copies)
        .map(|nth| {
            let drawn = chance.between(0, (announced.len() as u64).max(1));
            let announced = usize::try_from(drawn)
                .ok()
                .and_then(|nth| announced.get(nth));
            let any = chance.between(told.ready, end.max(told.ready) + 1);
            Moment {
                at: announced.filter(|_| nth % 2 == 0).copied().unwrap_or(any),
                cache: Cache::draw(chance),
                chance: chance.between(0, u64::MAX),
            }
        })
        .collect()
}
