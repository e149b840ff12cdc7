//! Whom an operation runs as: names are looked up in the sandbox's own files.
//!
//! The C library is not asked: a static binary cannot load its name services, and they would run with PID 1's rights on
//! files that the sandbox controls.

use std::fs::File;
use std::io::Read;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::process::{Gid, Uid};

use crate::sys::spawn::Identity;
use crate::words::quoted;

/// More than any real file; keeps a sandbox from filling our memory.
const MAX_FILE: u64 = 4 << 20;

/// Finds out whom `user` means; none is root. Returns `None` where the operation simply stays what we are.
///
/// # Errors
/// Words for people: it does not exist, or we have no right to become it.
pub(crate) fn resolve(user: Option<&str>) -> Result<Option<Identity>, String> {
    let me = rustix::process::geteuid();
    let Some(user) = user else {
        return Ok(me.is_root().then(|| Identity {
            uid: Uid::ROOT,
            gid: Gid::ROOT,
            groups: Vec::new(),
        }));
    };
    let identity = look_up(user, &read("/etc/passwd"), &read("/etc/group"))?;
    if me.is_root() {
        return Ok(Some(identity));
    }
    if identity.uid == me {
        return Ok(None);
    }
    Err(format!(
        "this sandbox has no right to run anything as user {}",
        quoted(user)
    ))
}

fn look_up(user: &str, passwd: &str, group: &str) -> Result<Identity, String> {
    let missing = || format!("user {} does not exist in this sandbox", quoted(user));
    let (user_part, group_part) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let number = user_part.parse::<u32>().ok();
    let entry = lines(passwd).find_map(|fields| {
        let (name, uid, gid) = (
            fields.first()?,
            number_at(&fields, 2)?,
            number_at(&fields, 3)?,
        );
        let wanted = number.map_or(*name == user_part, |number| number == uid);
        wanted.then_some((*name, uid, gid))
    });
    let uid = entry
        .map(|(_, uid, _)| uid)
        .or(number)
        // The kernel reads the highest number as "leave it".
        .filter(|uid| *uid != u32::MAX)
        .ok_or_else(missing)?;
    let gid = match group_part {
        Some(part) => group_id(part, group)
            .ok_or_else(|| format!("group {} does not exist in this sandbox", quoted(part)))?,
        None => entry.map_or(0, |(_, _, gid)| gid),
    };
    let groups = match (group_part, entry) {
        (None, Some((name, _, _))) => memberships(name, group),
        _ => Vec::new(),
    };
    Ok(Identity {
        uid: Uid::from_raw(uid),
        gid: Gid::from_raw(gid),
        groups,
    })
}

fn group_id(part: &str, group: &str) -> Option<u32> {
    let by_name = || {
        lines(group)
            .find(|fields| fields.first() == Some(&part))
            .and_then(|fields| number_at(&fields, 2))
    };
    part.parse()
        .ok()
        .or_else(by_name)
        .filter(|gid| *gid != u32::MAX)
}

fn memberships(name: &str, group: &str) -> Vec<Gid> {
    let is_member = |fields: &Vec<&str>| {
        fields
            .get(3)
            .is_some_and(|members| members.split(',').any(|m| m == name))
    };
    lines(group)
        .filter(is_member)
        .filter_map(|fields| number_at(&fields, 2))
        .filter(|gid| *gid != u32::MAX)
        .map(Gid::from_raw)
        .collect()
}

fn lines(file: &str) -> impl Iterator<Item = Vec<&str>> {
    file.lines()
        .map(|line| line.trim_end().split(':').collect())
}

fn number_at(fields: &[&str], at: usize) -> Option<u32> {
    fields.get(at)?.parse().ok()
}

/// Reads a file of the sandbox; one that is missing, huge or no file counts as empty.
fn read(path: &str) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
    let Ok(fd) = opened else {
        return String::new();
    };
    let regular = rustix::fs::fstat(&fd)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    let mut bytes = Vec::new();
    if regular
        && File::from(fd)
            .take(MAX_FILE)
            .read_to_end(&mut bytes)
            .is_err()
    {
        bytes.clear();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1001:,,,:/home/ada:/bin/sh\n\nodd\n";
    const GROUP: &str = "root:x:0:\nada:x:1001:\nvideo:x:44:bob,ada\nadam:x:7:adam\n";

    fn ids(user: &str) -> Result<(u32, u32, Vec<u32>), String> {
        look_up(user, PASSWD, GROUP).map(|i| {
            let groups = i.groups.iter().map(|g| g.as_raw()).collect();
            (i.uid.as_raw(), i.gid.as_raw(), groups)
        })
    }

    #[test]
    fn names_and_numbers_are_found_in_the_sandboxs_files() {
        assert_eq!(ids("ada"), Ok((1000, 1001, vec![44])));
        assert_eq!(ids("1000"), Ok((1000, 1001, vec![44])));
        assert_eq!(ids("ada:video"), Ok((1000, 44, vec![])));
        assert_eq!(ids("5:6"), Ok((5, 6, vec![])));
        assert_eq!(ids("5"), Ok((5, 0, vec![])));
    }

    #[test]
    fn who_does_not_exist_is_named() {
        assert_eq!(
            ids("eve").unwrap_err(),
            "user `eve` does not exist in this sandbox"
        );
        assert_eq!(
            ids("ada:staff").unwrap_err(),
            "group `staff` does not exist in this sandbox"
        );
        for user in ["", "4294967295", "-1", "5:4294967295"] {
            assert!(ids(user).is_err(), "{user:?} was accepted");
        }
    }
}
