//! Finds which deletion and which addition are one file that moved: first the same bytes, then enough of the same lines.
//! Both are bounded; beyond the bounds a rename is told as a deletion and an addition, which is true as well.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;

use crate::changes::{Change, Status};
use crate::compare;
use crate::view::{Open, View, split};
use crate::{Entry, Error, Kind, Result};

/// A larger file is paired only by its exact content.
const SIMILAR_BYTES: u64 = 1 << 20;
/// So many bytes at most are looked at for likeness in all: their fingerprints are in memory at once.
const SIMILAR_TOTAL: u64 = 64 << 20;
/// So many pairs at most are held against each other, git's bound.
const SIMILAR_PAIRS: usize = 1000 * 1000;

/// Replaces pairs of deletions and additions by renames. `changes` is sorted before and after.
pub(crate) fn pair(changes: &mut Vec<Change>, a: &View, b: &View, similarity: u8) -> Result<()> {
    let files = |side: fn(&Change) -> Option<&Entry>, status: &Status| -> Vec<usize> {
        let file = |change: &Change| {
            change.status == *status
                && side(change).is_some_and(|entry| entry.kind == Kind::File && entry.size > 0)
        };
        (0..changes.len())
            .filter(|&at| file(&changes[at]))
            .collect()
    };
    let gone = files(|change| change.before.as_ref(), &Status::Deleted);
    let new = files(|change| change.after.as_ref(), &Status::Added);
    if gone.is_empty() || new.is_empty() {
        return Ok(());
    }
    let search = Search {
        a: a.open()?,
        b: b.open()?,
        changes,
    };
    let mut pairs = search.exact(&gone, &new)?;
    let left = |all: &[usize], taken: &dyn Fn(usize) -> bool| -> Vec<usize> {
        all.iter().copied().filter(|&at| !taken(at)).collect()
    };
    let gone = left(&gone, &|at| pairs.values().any(|&(from, _)| from == at));
    let new = left(&new, &|at| pairs.contains_key(&at));
    if similarity < 100 {
        pairs.extend(search.similar(&gone, &new, similarity)?);
    }
    join(changes, &pairs);
    Ok(())
}

/// By the index of the addition: the index of the deletion, and the likeness in percent.
type Pairs = BTreeMap<usize, (usize, u8)>;

fn join(changes: &mut Vec<Change>, pairs: &Pairs) {
    for (&to, &(from, similarity)) in pairs {
        let (path, before) = (changes[from].path.clone(), changes[from].before.take());
        let change = &mut changes[to];
        change.before = before;
        change.status = Status::Renamed {
            from: path,
            similarity,
        };
        if let (Some(before), Some(after)) = (&change.before, &change.after) {
            change.what = compare::metadata(before, after);
            change.what.content = similarity < 100;
        }
    }
    // What a rename took has no side left.
    changes.retain(|change| change.before.is_some() || change.after.is_some());
}

struct Search<'a> {
    a: Open,
    b: Open,
    changes: &'a [Change],
}

impl Search<'_> {
    fn deleted(&self, at: usize) -> Option<(&[u8], &Entry)> {
        let change = &self.changes[at];
        Some((&change.path, change.before.as_ref()?))
    }

    fn added(&self, at: usize) -> Option<(&[u8], &Entry)> {
        let change = &self.changes[at];
        Some((&change.path, change.after.as_ref()?))
    }

    /// Pairs files of the same bytes; among several the one of the same name, else the first.
    fn exact(&self, gone: &[usize], new: &[usize]) -> Result<Pairs> {
        let mut by_size: BTreeMap<u64, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for &at in gone {
            if let Some((_, entry)) = self.deleted(at) {
                by_size.entry(entry.size).or_default().0.push(at);
            }
        }
        for &at in new {
            if let Some((_, entry)) = self.added(at)
                && let Some((_, new)) = by_size.get_mut(&entry.size)
            {
                new.push(at);
            }
        }
        by_size.retain(|_, (_, new)| !new.is_empty());
        let mut pairs = Pairs::new();
        for (gone, new) in by_size.into_values() {
            let mut by_hash: HashMap<blake3::Hash, Vec<usize>> = HashMap::new();
            for at in gone {
                if let Some((path, entry)) = self.deleted(at) {
                    let hash = hash(self.a.content(path, entry)?, path)?;
                    by_hash.entry(hash).or_default().push(at);
                }
            }
            let mut wanted = Vec::new();
            for at in new {
                if let Some((path, entry)) = self.added(at) {
                    wanted.push((at, hash(self.b.content(path, entry)?, path)?));
                }
            }
            for same_name in [true, false] {
                wanted.retain(|&(at, hash)| {
                    let Some(from) = by_hash.get_mut(&hash) else {
                        return false;
                    };
                    let fits = |from: &usize| !same_name || self.same_name(*from, at);
                    let Some(place) = from.iter().position(fits) else {
                        return true;
                    };
                    pairs.insert(at, (from.remove(place), 100));
                    false
                });
            }
        }
        Ok(pairs)
    }

    fn same_name(&self, from: usize, to: usize) -> bool {
        split(&self.changes[from].path).1 == split(&self.changes[to].path).1
    }

    /// Pairs files that share enough lines, the likest first.
    fn similar(&self, gone: &[usize], new: &[usize], least: u8) -> Result<Pairs> {
        if gone.len().saturating_mul(new.len()) > SIMILAR_PAIRS {
            return Ok(Pairs::new());
        }
        let mut budget = SIMILAR_TOTAL;
        let mut prints =
            |view: &Open, side: &dyn Fn(usize) -> Option<(Vec<u8>, Entry)>, all: &[usize]| {
                let mut prints = Vec::new();
                for &at in all {
                    if let Some((path, entry)) = side(at)
                        && entry.size <= SIMILAR_BYTES.min(budget)
                    {
                        budget -= entry.size;
                        prints.push((
                            at,
                            entry.size,
                            Print::of(view.content(&path, &entry)?, &path)?,
                        ));
                    }
                }
                Ok::<_, Error>(prints)
            };
        let owned = |(path, entry): (&[u8], &Entry)| (path.to_vec(), entry.clone());
        let gone = prints(&self.a, &|at| self.deleted(at).map(owned), gone)?;
        let new = prints(&self.b, &|at| self.added(at).map(owned), new)?;
        let mut scores = Vec::new();
        for (from, old_size, old) in &gone {
            for (to, new_size, new) in &new {
                let (small, large) = (old_size.min(new_size), old_size.max(new_size));
                if small * 100 < large * u64::from(least) {
                    continue;
                }
                // In units of git's, so that the percentage is rounded as there.
                let score = old.common(new) * 60_000 / large;
                let percent = u8::try_from(score * 100 / 60_000).unwrap_or(100).min(99);
                if percent >= least {
                    scores.push((
                        Reverse(score),
                        !self.same_name(*from, *to),
                        *from,
                        *to,
                        percent,
                    ));
                }
            }
        }
        scores.sort_unstable();
        let mut pairs = Pairs::new();
        let mut used = std::collections::BTreeSet::new();
        for (_, _, from, to, percent) in scores {
            if !pairs.contains_key(&to) && used.insert(from) {
                pairs.insert(to, (from, percent));
            }
        }
        Ok(pairs)
    }
}

fn hash(mut file: File, path: &[u8]) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    std::io::copy(&mut file, &mut hasher).map_err(Error::io("read", path))?;
    Ok(hasher.finalize())
}

/// How many bytes of a file lie in which lines, or pieces of 64 bytes of a longer one.
struct Print(HashMap<u64, u64>);

impl Print {
    fn of(mut file: File, path: &[u8]) -> Result<Self> {
        let mut bytes = Vec::new();
        file.by_ref()
            .take(SIMILAR_BYTES)
            .read_to_end(&mut bytes)
            .map_err(Error::io("read", path))?;
        let mut print = HashMap::new();
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            for piece in line.chunks(64) {
                let mut hasher = DefaultHasher::new();
                piece.hash(&mut hasher);
                *print.entry(hasher.finish()).or_default() += piece.len() as u64;
            }
        }
        Ok(Self(print))
    }

    fn common(&self, other: &Self) -> u64 {
        let count =
            |(piece, bytes): (&u64, &u64)| other.0.get(piece).map_or(0, |more| *more.min(bytes));
        self.0.iter().map(count).sum()
    }
}
