//! Which users and groups of the host stand behind those of a sandbox.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use protocol::SandboxId;
use serde::{Deserialize, Serialize};

use crate::Error;

/// How many ids every sandbox has: enough for `nobody`.
const COUNT: u32 = 65_536;
/// Host ids of the first sandbox, above what distributions give to people.
const FIRST: u32 = 1_000_000;
/// Sandboxes with ranges of their own; the next ones share with the oldest.
const RANGES: u64 = 20_000;

/// The ids of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum IdMap {
    /// A range of its own; the daemon is root.
    Range { first: u32 },
    /// Root is the daemon's user, the others come from `/etc/subuid` and `/etc/subgid`.
    Delegated {
        uid: u32,
        gid: u32,
        sub_uid: SubRange,
        sub_gid: SubRange,
    },
    /// Root is the daemon's user and there is nobody else.
    Single { uid: u32, gid: u32 },
}

/// A range of ids that the administrator gave to a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SubRange {
    first: u32,
    count: u32,
}

impl IdMap {
    /// Chooses for a sandbox of this daemon.
    pub(super) fn choose(sandbox: SandboxId) -> Result<Self, Error> {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        if uid == 0 {
            let nth = u32::try_from(sandbox.0 % RANGES).unwrap_or_default();
            let first = FIRST + COUNT * nth;
            for map in ["/proc/self/uid_map", "/proc/self/gid_map"] {
                let text =
                    fs::read_to_string(map).map_err(|e| Error::step(format!("read {map}"), e))?;
                if !covers(&text, first, COUNT) {
                    return Err(Error::Unsupported {
                        what: format!("this root user may not use ids {first} to {}", first + COUNT - 1),
                        remedy: "run the daemon outside the enclosing container, or as an unprivileged user in it".to_owned(),
                    });
                }
            }
            return Ok(Self::Range { first });
        }
        let (Some(sub_uid), Some(sub_gid)) =
            (sub_range("/etc/subuid", uid), sub_range("/etc/subgid", uid))
        else {
            return Ok(Self::Single { uid, gid });
        };
        if find_program("newuidmap") && find_program("newgidmap") {
            return Ok(Self::Delegated {
                uid,
                gid,
                sub_uid,
                sub_gid,
            });
        }
        Ok(Self::Single { uid, gid })
    }

    /// Whether groups can be changed inside.
    pub(super) fn has_groups(self) -> bool {
        !matches!(self, Self::Single { .. })
    }

    /// The host user behind root.
    pub(super) fn root(self) -> u32 {
        match self {
            Self::Range { first } => first,
            Self::Delegated { uid, .. } | Self::Single { uid, .. } => uid,
        }
    }

    /// Gives the ids to the user namespace of process `pid`.
    pub(super) fn write(self, pid: i32) -> Result<(), Error> {
        let to = |file: &str, text: String| {
            let path = format!("/proc/{pid}/{file}");
            fs::write(&path, text).map_err(|e| Error::step(format!("write the id map {file}"), e))
        };
        match self {
            Self::Range { first } => {
                to("uid_map", format!("0 {first} {COUNT}\n"))?;
                to("gid_map", format!("0 {first} {COUNT}\n"))
            }
            Self::Single { uid, gid } => {
                // A member without privilege may not drop groups that deny something to it.
                to("setgroups", "deny".to_owned())?;
                to("uid_map", format!("0 {uid} 1\n"))?;
                to("gid_map", format!("0 {gid} 1\n"))
            }
            Self::Delegated {
                uid,
                gid,
                sub_uid,
                sub_gid,
            } => {
                helper("newuidmap", pid, uid, sub_uid)?;
                helper("newgidmap", pid, gid, sub_gid)
            }
        }
    }
}

fn helper(program: &str, pid: i32, own: u32, sub: SubRange) -> Result<(), Error> {
    let count = sub.count.min(COUNT - 1);
    let numbers = [0, own, 1, 1, sub.first, count].map(|n| n.to_string());
    let done = Command::new(program)
        .arg(pid.to_string())
        .args(numbers)
        .output()
        .map_err(|e| Error::step(format!("run {program}"), e))?;
    if done.status.success() {
        return Ok(());
    }
    Err(Error::Step {
        step: format!("map ids with {program}"),
        remedy: Some("check your lines in /etc/subuid and /etc/subgid".to_owned()),
        source: io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned()),
    })
}

/// Whether every id of a range exists in this id map.
fn covers(map: &str, first: u32, count: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line
            .split_whitespace()
            .filter_map(|n| n.parse::<u64>().ok());
        let (Some(inside), Some(_), Some(length)) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        u64::from(first) >= inside && u64::from(first) + u64::from(count) <= inside + length
    })
}

fn sub_range(file: &str, uid: u32) -> Option<SubRange> {
    find_range(
        &fs::read_to_string(file).ok()?,
        uid,
        user_name(uid).as_deref(),
    )
}

fn find_range(text: &str, uid: u32, name: Option<&str>) -> Option<SubRange> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        if Some(owner) != name && owner.parse() != Ok(uid) {
            return None;
        }
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (count > 0).then_some(SubRange { first, count })
    })
}

fn user_name(uid: u32) -> Option<String> {
    fs::read_to_string("/etc/passwd")
        .ok()?
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
        })
}

fn find_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| Path::new(&dir).join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_covers_only_what_lies_whole_within_one_line() {
        let whole = "         0          0 4294967295\n";
        assert!(covers(whole, FIRST, COUNT));
        assert!(!covers("0 100000 65536\n", FIRST, COUNT));
        assert!(covers("0 100000 65536\n", 0, COUNT));
        assert!(!covers("0 100000 65536\n", 1, COUNT));
    }

    #[test]
    fn a_range_is_found_by_name_and_by_number() {
        let text = "ada:100000:65536\n1001:300000:1000\n";
        assert_eq!(
            find_range(text, 1000, Some("ada")),
            Some(SubRange {
                first: 100_000,
                count: 65_536
            })
        );
        assert_eq!(
            find_range(text, 1001, None),
            Some(SubRange {
                first: 300_000,
                count: 1000
            })
        );
        assert_eq!(find_range(text, 1002, Some("eve")), None);
    }
}
