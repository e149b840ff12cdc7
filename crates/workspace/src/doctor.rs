//! What this machine can do for a pool, for people.

use std::fs::{self, OpenOptions};
use std::path::Path;

use crate::btrfs::{IMAGE, is_btrfs, mkfs};
use crate::open::Kind;

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// What was looked at, such as `mkfs.btrfs`.
    pub name: &'static str,
    /// Whether it is as the best pool needs it.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// How to get it, where it is missing.
    pub hint: Option<String>,
}

impl Fact {
    fn new(name: &'static str, ok: bool, detail: impl Into<String>) -> Self {
        Self {
            name,
            ok,
            detail: detail.into(),
            hint: None,
        }
    }

    /// What to do if it is not ok.
    fn or(mut self, hint: impl Into<String>) -> Self {
        self.hint = (!self.ok).then(|| hint.into());
        self
    }
}

/// Looks at what a pool in `data_dir` could be made of. It changes nothing.
///
/// The last fact, `pool`, says which kind is there or would be made, and why.
#[must_use]
pub fn doctor(data_dir: &Path) -> Vec<Fact> {
    let root = rustix::process::geteuid().is_root();
    let kernel =
        fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.contains("\tbtrfs\n"));
    let module = fs::metadata("/sys/module/btrfs").is_ok();
    let on_btrfs = is_btrfs(data_dir);
    let program = mkfs();
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control");

    let mut facts = vec![
        Fact::new("root", root, if root { "yes" } else { "no" })
            .or("only root can take btrfs snapshots; without it workspaces are copied"),
        Fact::new(
            "btrfs",
            kernel || module,
            if kernel || module {
                "in this kernel"
            } else {
                "not loaded"
            },
        )
        .or("modprobe btrfs"),
        Fact::new(
            "data directory",
            true,
            if on_btrfs {
                "on btrfs"
            } else {
                "not on btrfs: a loop image is needed"
            },
        ),
    ];
    if !on_btrfs {
        facts.push(match &program {
            Some(path) => Fact::new("mkfs.btrfs", true, path.display().to_string()),
            None => {
                Fact::new("mkfs.btrfs", false, "not installed").or("apt-get install btrfs-progs")
            }
        });
        facts.push(match &control {
            Ok(_) => Fact::new("loop devices", true, "available"),
            Err(e) => Fact::new("loop devices", false, format!("/dev/loop-control: {e}")).or(
                "modprobe loop; in a container, pass /dev/loop-control and allow block devices 7:*",
            ),
        });
    }
    // An image that is there needs no mkfs any more.
    let image = control.is_ok() && (program.is_some() || data_dir.join(IMAGE).exists());
    facts.push(match Kind::read(data_dir) {
        Ok(Some(kind)) => Fact::new("pool", kind != Kind::Copy, format!("{}, chosen when it was made", kind.name()))
            .or("cuts copy what changed; a new data directory where btrfs can be had would take snapshots"),
        Err(error) => Fact::new("pool", false, error.to_string()).or("use the version of the program that made it"),
        Ok(None) if root && on_btrfs => Fact::new("pool", true, "btrfs would be used, in the data directory itself"),
        Ok(None) if root && (kernel || module) && image => {
            Fact::new("pool", true, "btrfs would be used, in a loop image in the data directory")
        }
        Ok(None) => Fact::new("pool", false, "copies would be used: something above is missing")
            .or("workspaces work all the same, with cuts that cost what changed"),
    });
    facts
}
