//! Prints a change as git does, so that people and tools can read it and `git apply` takes it.

use std::io::{self, Read, Write};

use crate::changes::{Change, Status};
use crate::lines::{self, Hunk, Slide};
use crate::quote::{quoted, quoted_bytes};
use crate::view::View;
use crate::{Entry, Error, Kind, Result, TEXT_BYTES};

/// Whether what git has no words for is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extra {
    /// Only what git would print.
    #[default]
    Hidden,
    /// Owners, attributes, other mode bits, directories, pipes and devices as `# …` lines before the change.
    Shown,
}

/// How changes are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchOptions {
    /// What of git's blind spots is told.
    pub extra: Extra,
    /// Unchanged lines around each change.
    pub context: usize,
}

impl Default for PatchOptions {
    fn default() -> Self {
        Self {
            extra: Extra::Hidden,
            context: 3,
        }
    }
}

/// Prints one change from `a` to `b`, which [`changes`](crate::changes) told of these two views. A text larger than
/// [`TEXT_BYTES`] is printed as binary.
///
/// # Errors
/// [`Error::Output`] where `out` refuses, else what the kernel says about the content.
pub fn patch(
    change: &Change,
    a: &View,
    b: &View,
    options: PatchOptions,
    out: &mut impl Write,
) -> Result<()> {
    if options.extra == Extra::Shown {
        extra(change, out).map_err(Error::Output)?;
    }
    let from = match &change.status {
        Status::Renamed { from, .. } => from,
        _ => &change.path,
    };
    let blob = |view: &View, path: &[u8], entry: &Option<Entry>| match entry {
        Some(entry) if entry.kind.is_blob() => Blob::read(view, path, entry).map(Some),
        _ => Ok(None),
    };
    let before = blob(a, from, &change.before)?;
    let after = blob(b, &change.path, &change.after)?;
    let names = Names {
        from,
        to: &change.path,
    };
    let print = |before: Option<&Blob>, after: Option<&Blob>, out: &mut _| {
        Printer {
            names: &names,
            similarity: match change.status {
                Status::Renamed { similarity, .. } => Some(similarity),
                _ => None,
            },
            context: options.context,
        }
        .print(before, after, out)
        .map_err(Error::Output)
    };
    match (&before, &after) {
        (None, None) => Ok(()),
        // Git has no patch from a file to a link: one goes, the other comes.
        (Some(old), Some(new)) if old.mode & 0o170_000 != new.mode & 0o170_000 => {
            print(Some(old), None, out)?;
            print(None, Some(new), out)
        }
        (old, new) => print(old.as_ref(), new.as_ref(), out),
    }
}

/// What git would store of an entry.
struct Blob {
    mode: u32,
    id: String,
    text: Option<Vec<u8>>,
}

impl Blob {
    fn read(view: &View, path: &[u8], entry: &Entry) -> Result<Self> {
        let mut bytes = Vec::new();
        let mut hash = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
        if entry.kind == Kind::Symlink {
            bytes.clone_from(&entry.target);
            hash.update(format!("blob {}\0", bytes.len()).as_bytes());
            hash.update(&bytes);
        } else {
            let mut file = view.content(path, entry)?;
            hash.update(format!("blob {}\0", entry.size).as_bytes());
            let mut piece = vec![0; 64 << 10];
            loop {
                let len = match file.read(&mut piece) {
                    Ok(0) => break,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    len => len.map_err(Error::io("read", path))?,
                };
                hash.update(&piece[..len]);
                if entry.size <= TEXT_BYTES {
                    bytes.extend(&piece[..len]);
                }
            }
        }
        let hex = |byte: &u8| format!("{byte:02x}");
        Ok(Self {
            mode: entry.git_mode(),
            id: hash.finish().as_ref().iter().map(hex).collect(),
            text: (entry.size <= TEXT_BYTES && !lines::is_binary(&bytes)).then_some(bytes),
        })
    }

    fn short(&self) -> &str {
        &self.id[..7]
    }
}

struct Names<'a> {
    from: &'a [u8],
    to: &'a [u8],
}

struct Printer<'a> {
    names: &'a Names<'a>,
    similarity: Option<u8>,
    context: usize,
}

impl Printer<'_> {
    fn print(
        &self,
        old: Option<&Blob>,
        new: Option<&Blob>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        if let (Some(old), Some(new)) = (old, new)
            && (old.mode, &old.id) == (new.mode, &new.id)
            && self.similarity.is_none()
        {
            return Ok(());
        }
        self.header(old, new, out)?;
        if old.map(|blob| &blob.id) == new.map(|blob| &blob.id) {
            return Ok(());
        }
        let label = |blob: Option<&Blob>, name: &[u8], prefix: &[u8]| match blob {
            Some(_) => quoted_bytes(name, prefix),
            None => b"/dev/null".to_vec(),
        };
        let from = label(old, self.names.from, b"a/");
        let to = label(new, self.names.to, b"b/");
        let text = |blob: Option<&Blob>| match blob {
            Some(blob) => blob.text.clone(),
            None => Some(Vec::new()),
        };
        let (Some(old), Some(new)) = (text(old), text(new)) else {
            return line(out, &[b"Binary files ", &from, b" and ", &to, b" differ"]);
        };
        if old == new {
            return Ok(());
        }
        // A name that ends nobody knows where is ended by a tab.
        let end = |label: &[u8]| {
            if label.contains(&b' ') {
                b"\t".as_slice()
            } else {
                b""
            }
        };
        line(out, &[b"--- ", &from, end(&from)])?;
        line(out, &[b"+++ ", &to, end(&to)])?;
        hunks(&lines::of(&old), &lines::of(&new), self.context, out)
    }

    fn header(
        &self,
        old: Option<&Blob>,
        new: Option<&Blob>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let (from, to) = (self.names.from, self.names.to);
        line(
            out,
            &[
                b"diff --git ",
                &quoted_bytes(from, b"a/"),
                b" ",
                &quoted_bytes(to, b"b/"),
            ],
        )?;
        match (old, new) {
            (Some(old), None) => writeln!(out, "deleted file mode {:06o}", old.mode)?,
            (None, Some(new)) => writeln!(out, "new file mode {:06o}", new.mode)?,
            (Some(old), Some(new)) if old.mode != new.mode => {
                writeln!(out, "old mode {:06o}\nnew mode {:06o}", old.mode, new.mode)?;
            }
            _ => {}
        }
        if let Some(similarity) = self.similarity {
            writeln!(out, "similarity index {similarity}%")?;
            line(out, &[b"rename from ", &quoted_bytes(from, b"")])?;
            line(out, &[b"rename to ", &quoted_bytes(to, b"")])?;
        }
        let id = |blob: Option<&Blob>| blob.map_or("0000000", Blob::short).to_owned();
        let mode = match (old, new) {
            (Some(old), Some(new)) if old.id == new.id => return Ok(()),
            (Some(old), Some(new)) if old.mode == new.mode => format!(" {:06o}", old.mode),
            _ => String::new(),
        };
        writeln!(out, "index {}..{}{mode}", id(old), id(new))
    }
}

fn line(out: &mut impl Write, parts: &[&[u8]]) -> io::Result<()> {
    for part in parts {
        out.write_all(part)?;
    }
    out.write_all(b"\n")
}

/// Prints the changed lines with those around them; changes whose surroundings touch go together.
fn hunks(old: &[&[u8]], new: &[&[u8]], context: usize, out: &mut impl Write) -> io::Result<()> {
    let all = lines::diff(old, new, Slide::ByIndent);
    let near = |one: &Hunk, two: &Hunk| two.before.start - one.before.end <= 2 * context;
    let mut heading = Heading::default();
    for group in all.chunk_by(near) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let lead = first.before.start.min(context);
        let tail = (old.len() - last.before.end).min(context);
        let (start, end) = (first.before.start - lead, last.before.end + tail);
        let (new_start, new_end) = (first.after.start - lead, last.after.end + tail);
        write!(out, "@@ -")?;
        range(start, end - start, out)?;
        write!(out, " +")?;
        range(new_start, new_end - new_start, out)?;
        write!(out, " @@")?;
        heading.print(old, start, out)?;
        out.write_all(b"\n")?;
        let mut at = start;
        for hunk in group {
            marked(b" ", &old[at..hunk.before.start], out)?;
            marked(b"-", &old[hunk.before.clone()], out)?;
            marked(b"+", &new[hunk.after.clone()], out)?;
            at = hunk.before.end;
        }
        marked(b" ", &old[at..end], out)?;
    }
    Ok(())
}

fn range(start: usize, len: usize, out: &mut impl Write) -> io::Result<()> {
    match len {
        0 => write!(out, "{start},0"),
        1 => write!(out, "{}", start + 1),
        _ => write!(out, "{},{len}", start + 1),
    }
}

fn marked(mark: &[u8], lines: &[&[u8]], out: &mut impl Write) -> io::Result<()> {
    for line in lines {
        out.write_all(mark)?;
        out.write_all(line)?;
        if !line.ends_with(b"\n") {
            out.write_all(b"\n\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}

/// The last line above a hunk that looks like the head of a function or section.
#[derive(Default)]
struct Heading {
    looked: usize,
    found: Option<usize>,
}

impl Heading {
    fn print(&mut self, old: &[&[u8]], start: usize, out: &mut impl Write) -> io::Result<()> {
        let is_head = |line: &[u8]| matches!(line, [b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'$', ..]);
        if let Some(at) = (self.looked..start).rev().find(|&at| is_head(old[at])) {
            self.found = Some(at);
        }
        self.looked = start;
        let Some(at) = self.found else {
            return Ok(());
        };
        let head = old[at].strip_suffix(b"\n").unwrap_or(old[at]);
        let head = head[..head.len().min(80)].trim_ascii_end();
        out.write_all(b" ")?;
        out.write_all(head)
    }
}

/// Tells what git has no words for. Git takes such lines before a `diff --git` for a letter around the patch.
fn extra(change: &Change, out: &mut impl Write) -> io::Result<()> {
    let name = quoted(&change.path, b"");
    let name = if name.is_empty() {
        ".".to_owned()
    } else {
        name
    };
    match (&change.before, &change.after) {
        (None, None) => Ok(()),
        (Some(gone), None) if gone.kind.is_blob() => Ok(()),
        (Some(gone), None) => writeln!(out, "# deleted {}: {name}", gone.kind.word()),
        (None, Some(new)) => {
            if !new.kind.is_blob() {
                writeln!(out, "# new {}: {name}", described(new))?;
            }
            attributes(None, new, &name, out)
        }
        (Some(old), Some(new)) => {
            if change.what.kind || change.what.device {
                writeln!(
                    out,
                    "# type {} -> {}: {name}",
                    described(old),
                    described(new)
                )?;
            }
            if change.what.mode {
                writeln!(out, "# mode {:04o} -> {:04o}: {name}", old.mode, new.mode)?;
            }
            if change.what.owner {
                let (from, to) = ((old.uid, old.gid), (new.uid, new.gid));
                writeln!(
                    out,
                    "# owner {}:{} -> {}:{}: {name}",
                    from.0, from.1, to.0, to.1
                )?;
            }
            attributes(Some(old), new, &name, out)
        }
    }
}

fn described(entry: &Entry) -> String {
    let word = entry.kind.word();
    match entry.kind {
        Kind::CharDevice | Kind::BlockDevice => {
            let (major, minor) = (rustix::fs::major(entry.rdev), rustix::fs::minor(entry.rdev));
            format!("{word} {major}:{minor}")
        }
        _ => word.to_owned(),
    }
}

fn attributes(
    old: Option<&Entry>,
    new: &Entry,
    name: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    /// Longer values are cut in print.
    const VALUE: usize = 80;
    let shown = |value: &[u8]| match quoted(&value[..value.len().min(VALUE)], b"") {
        text if value.len() > VALUE => format!("{text}… ({} bytes)", value.len()),
        text => text,
    };
    let none = crate::Xattrs::new();
    let old = old.map_or(&none, |old| &old.xattrs);
    for (key, value) in &new.xattrs {
        let key_text = quoted(key, b"");
        match old.get(key) {
            Some(before) if before == value => {}
            Some(before) => {
                let (before, value) = (shown(before), shown(value));
                writeln!(out, "# xattr {key_text} {before} -> {value}: {name}")?;
            }
            None => writeln!(out, "# new xattr {key_text} {}: {name}", shown(value))?,
        }
    }
    for key in old.keys().filter(|key| !new.xattrs.contains_key(*key)) {
        writeln!(out, "# deleted xattr {}: {name}", quoted(key, b""))?;
    }
    Ok(())
}
