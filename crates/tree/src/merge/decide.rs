//! What becomes of one path, looked at by itself.

use super::{By, Conflict, ConflictKind, Content, Plan, Step, Strategy, Texts, on_conflict};
use crate::compare;
use crate::walk::Difference;
use crate::{Entry, Error, Kind, Result, Xattrs};

impl Plan {
    /// Decides a path that theirs changed, and ours perhaps.
    pub(super) fn decide(&mut self, ours: Option<&Difference>, theirs: Difference) -> Result<()> {
        let Some(ours) = ours else {
            self.take(theirs.path, theirs.before.as_ref(), theirs.after);
            return Ok(());
        };
        let conflict = |kind| Conflict {
            path: theirs.path.clone(),
            kind,
            base: theirs.before.clone(),
            ours: ours.after.clone(),
            theirs: theirs.after.clone(),
        };
        let kind = match (&ours.after, &theirs.after) {
            (None, None) => return Ok(()),
            (None, Some(_)) => ConflictKind::ModifiedDeleted { deleted: By::Ours },
            (Some(_), None) => ConflictKind::ModifiedDeleted {
                deleted: By::Theirs,
            },
            (Some(one), Some(two)) if one.kind == two.kind => {
                return self.both(ours, &theirs, (one, two), conflict);
            }
            (Some(one), Some(two)) if Kind::Dir == one.kind || Kind::Dir == two.kind => {
                ConflictKind::DirectoryFile
            }
            (Some(_), Some(_)) => ConflictKind::TypeChange,
        };
        if self.conflict(conflict(kind)) {
            self.take(theirs.path, ours.after.as_ref(), theirs.after);
        }
        Ok(())
    }

    /// Makes a path what it is in theirs. `there` is what it is in ours.
    fn take(&mut self, path: Vec<u8>, there: Option<&Entry>, theirs: Option<Entry>) {
        let put = theirs.map(|entry| match entry.kind {
            Kind::File => (entry, Content::Theirs),
            _ => (entry, Content::Nothing),
        });
        let is_same_kind =
            there.map(|entry| entry.kind) == put.as_ref().map(|(entry, _)| entry.kind);
        let delete = there.is_some() && !is_same_kind;
        self.steps.insert(path, Step { delete, put });
    }

    /// Decides a path that is of one type on both sides.
    fn both(
        &mut self,
        ours: &Difference,
        theirs: &Difference,
        (one, two): (&Entry, &Entry),
        conflict: impl Fn(ConflictKind) -> Conflict,
    ) -> Result<()> {
        let path = &theirs.path;
        let base = theirs.before.as_ref().filter(|base| base.kind == one.kind);
        let mut found = Vec::new();
        let content = self.content(ours, theirs, (base, one, two), &mut found)?;
        let mut entry = match content {
            Content::Ours => one.clone(),
            Content::Nothing | Content::Theirs | Content::Merged => two.clone(),
        };
        // Who takes the file over cannot tell when it was merged; it is no older than either.
        entry.mtime = match content {
            Content::Merged => one.mtime.max(two.mtime),
            _ => entry.mtime,
        };
        if content == Content::Nothing && (one.kind == Kind::Symlink || one.rdev != two.rdev) {
            let is_ours = |entry: &Entry| (&entry.target, entry.rdev) == (&one.target, one.rdev);
            let is_theirs = |entry: &Entry| (&entry.target, entry.rdev) == (&two.target, two.rdev);
            let keep = is_ours(two) || base.is_some_and(is_theirs);
            let clash = !keep && !base.is_some_and(is_ours);
            if clash {
                found.push(ConflictKind::BothModified);
            }
            if keep || clash && self.strategy != Strategy::Theirs {
                entry.target.clone_from(&one.target);
                entry.rdev = one.rdev;
            }
        }
        let mut scalar = |base: Option<(u32, u32)>, one: (u32, u32), two: (u32, u32), kind| {
            if one == two || base == Some(two) {
                return one;
            }
            if base == Some(one) {
                return two;
            }
            found.push(kind);
            if self.strategy == Strategy::Theirs {
                two
            } else {
                one
            }
        };
        let mode = |entry: &Entry| (entry.mode, 0);
        let owner = |entry: &Entry| (entry.uid, entry.gid);
        (entry.mode, _) = scalar(
            base.map(mode),
            mode(one),
            mode(two),
            ConflictKind::ModeBothChanged,
        );
        (entry.uid, entry.gid) = scalar(
            base.map(owner),
            owner(one),
            owner(two),
            ConflictKind::OwnerBothChanged,
        );
        let none = Xattrs::new();
        let of_base = base.map_or(&none, |base| &base.xattrs);
        entry.xattrs = self.xattrs(of_base, &one.xattrs, &two.xattrs, &mut found);

        let clash = !found.is_empty();
        for kind in found {
            self.conflict(conflict(kind));
        }
        let changed = !matches!(content, Content::Ours | Content::Nothing)
            || compare::metadata(one, &entry).any();
        // A path in conflict is left alone as a whole unless somebody said who wins.
        if changed && !(clash && self.strategy == Strategy::Merge) {
            self.disputed.remove(path);
            let put = Some((entry, content));
            self.steps.insert(path.clone(), Step { delete: false, put });
        }
        Ok(())
    }

    /// Decides where the bytes of a regular file come from.
    fn content(
        &self,
        ours: &Difference,
        theirs: &Difference,
        (base, one, two): (Option<&Entry>, &Entry, &Entry),
        found: &mut Vec<ConflictKind>,
    ) -> Result<Content> {
        if one.kind != Kind::File {
            return Ok(Content::Nothing);
        }
        if base.is_some() && !theirs.what.content {
            return Ok(Content::Ours);
        }
        if base.is_some() && !ours.what.content {
            return Ok(Content::Theirs);
        }
        let path = &theirs.path;
        if one.size == two.size {
            let (a, b) = (
                self.ours.content(path, one)?,
                self.theirs.content(path, two)?,
            );
            if compare::same_bytes(a, b, one.size).map_err(Error::io("read", path))? {
                return Ok(Content::Ours);
            }
        }
        let texts = Texts {
            base: &self.base,
            ours: &self.ours,
            theirs: &self.theirs,
        };
        let woven = texts.weave(path, (base, one, two), on_conflict(self.strategy))?;
        match &woven {
            None => found.push(ConflictKind::BinaryBothModified),
            Some(woven) if woven.conflicts > 0 => found.push(ConflictKind::BothModified),
            Some(_) => {}
        }
        Ok(match (woven, self.strategy) {
            (Some(woven), _) if woven.is_ours => Content::Ours,
            (Some(_), _) => Content::Merged,
            (None, Strategy::Theirs) => Content::Theirs,
            (None, Strategy::Ours | Strategy::Merge) => Content::Ours,
        })
    }

    /// Merges attributes name by name.
    fn xattrs(
        &self,
        base: &Xattrs,
        one: &Xattrs,
        two: &Xattrs,
        found: &mut Vec<ConflictKind>,
    ) -> Xattrs {
        let mut merged = one.clone();
        let mut clash = false;
        let names: std::collections::BTreeSet<_> =
            base.keys().chain(one.keys()).chain(two.keys()).collect();
        for name in names {
            let (old, ours, theirs) = (base.get(name), one.get(name), two.get(name));
            if ours == theirs || theirs == old {
                continue;
            }
            let differs = ours != old;
            clash |= differs;
            if differs && self.strategy != Strategy::Theirs {
                continue;
            }
            match theirs {
                Some(value) => drop(merged.insert(name.clone(), value.clone())),
                None => drop(merged.remove(name)),
            }
        }
        if clash {
            found.push(ConflictKind::XattrBothChanged);
        }
        merged
    }
}
