//! Fits the decisions of single paths together so that they make a tree: what is put somewhere has directories above it,
//! what replaces a directory has nothing below it, and a directory that still holds something stays.

use super::{Conflict, ConflictKind, Content, Plan, Step, Strategy};
use crate::view::{join, split};
use crate::{Entry, Kind, Result};

impl Plan {
    pub(super) fn fit(&mut self) -> Result<()> {
        self.replace_directories()?;
        self.make_parents()?;
        self.keep_directories()
    }

    /// Where something else replaces a directory, everything of ours in it must be on its way out.
    fn replace_directories(&mut self) -> Result<()> {
        let is_other = |step: &Step| {
            step.put
                .as_ref()
                .is_some_and(|(entry, _)| entry.kind != Kind::Dir)
        };
        let paths: Vec<Vec<u8>> = self
            .steps
            .iter()
            .filter(|(_, step)| step.delete && is_other(step))
            .map(|(path, _)| path.clone())
            .collect();
        for path in paths {
            let Some(ours) = self
                .ours
                .lookup(&path)?
                .filter(|entry| entry.kind == Kind::Dir)
            else {
                continue;
            };
            let mut staying = self.below(&path)?;
            staying.retain(|path| {
                self.steps
                    .get(path)
                    .is_none_or(|step| !step.delete || step.put.is_some())
            });
            if staying.is_empty() {
                continue;
            }
            let is_known = self.conflicts.iter().any(|conflict| conflict.path == path);
            if is_known && self.strategy == Strategy::Theirs || self.dispute(&path, Some(ours))? {
                for path in staying {
                    self.steps.insert(
                        path,
                        Step {
                            delete: true,
                            put: None,
                        },
                    );
                }
            } else {
                self.drop_below(&path);
            }
        }
        Ok(())
    }

    /// Where something is put, the directories above it must be there.
    fn make_parents(&mut self) -> Result<()> {
        let puts = self.steps.iter().filter(|(_, step)| step.put.is_some());
        let paths: Vec<Vec<u8>> = puts.map(|(path, _)| path.clone()).collect();
        let mut checked = std::collections::BTreeSet::new();
        for path in paths {
            let ends = (0..path.len()).filter(|&at| path[at] == b'/');
            for above in ends.map(|end| &path[..end]) {
                if !self.steps.contains_key(&path) {
                    break;
                }
                if checked.insert(above.to_vec()) {
                    self.make_parent(above)?;
                }
            }
        }
        Ok(())
    }

    fn make_parent(&mut self, path: &[u8]) -> Result<()> {
        if let Some(Step {
            put: Some((entry, _)),
            ..
        }) = self.steps.get(path)
            && entry.kind == Kind::Dir
        {
            return Ok(());
        }
        let ours = self.ours.lookup(path)?;
        let delete = match &ours {
            Some(entry) if entry.kind == Kind::Dir => return Ok(()),
            Some(_) => true,
            None => false,
        };
        if delete && (self.disputed.contains(path) || !self.dispute(path, ours)?) {
            self.drop_below(path);
            return Ok(());
        }
        if let Some(entry) = self.theirs.lookup(path)? {
            let put = Some((entry, Content::Nothing));
            self.steps.insert(path.to_vec(), Step { delete, put });
        }
        Ok(())
    }

    /// A directory that theirs deleted stays where ours has something in it that stays.
    fn keep_directories(&mut self) -> Result<()> {
        let gone = self
            .steps
            .iter()
            .rev()
            .filter(|(_, step)| step.delete && step.put.is_none());
        let paths: Vec<Vec<u8>> = gone.map(|(path, _)| path.clone()).collect();
        // From the deepest up, so that what stays keeps what is above it.
        for path in paths {
            let Some(shape) = self.ours.shape(&path)? else {
                continue;
            };
            let dir = self.ours.merged(&path, shape)?;
            for name in dir.names(&path)? {
                let child = join(&path, &name);
                let goes = self
                    .steps
                    .get(&child)
                    .is_some_and(|step| step.delete && step.put.is_none());
                if !goes && dir.find(&name, &child)?.is_some() {
                    self.steps.remove(&path);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Notes that one side has a directory here and the other something else. Returns whether theirs wins.
    fn dispute(&mut self, path: &[u8], ours: Option<Entry>) -> Result<bool> {
        let conflict = Conflict {
            path: path.to_vec(),
            kind: ConflictKind::DirectoryFile,
            base: self.base.lookup(path)?,
            ours,
            theirs: self.theirs.lookup(path)?,
        };
        Ok(self.conflict(conflict))
    }

    /// Takes back what was decided of a path and all below it.
    fn drop_below(&mut self, top: &[u8]) {
        let is_below = |path: &[u8]| {
            path.strip_prefix(top)
                .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
        };
        self.steps.retain(|path, _| !is_below(path));
    }

    /// Lists everything that ours has in a directory, at any depth.
    fn below(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        let Some(shape) = self.ours.shape(path)? else {
            return Ok(found);
        };
        let mut waiting = vec![(path.to_vec(), shape)];
        while let Some((at, shape)) = waiting.pop() {
            let dir = self.ours.merged(&at, shape)?;
            for name in dir.names(&at)? {
                let child = join(&at, &name);
                if let Some(item) = dir.find(split(&child).1, &child)? {
                    waiting.extend(item.dir.map(|shape| (child.clone(), shape)));
                    found.push(child);
                }
            }
        }
        Ok(found)
    }
}
