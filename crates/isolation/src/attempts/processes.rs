//! Other processes, and namespaces.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use rustix::thread::UnshareFlags;

use super::Make::{Call as Makes, Run};
use super::{Attempt, Host, Result, namespace};
use crate::sys;
use crate::sys::calls::Call;

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "be in a namespace of the host",
        make: Run(namespaces),
    },
    Attempt {
        name: "see processes of the host",
        make: Run(|_| strangers()),
    },
    Attempt {
        name: "trace process 1 (ptrace)",
        make: Makes(Call::PtraceInit),
    },
    Attempt {
        name: "take a descriptor of process 1",
        make: Makes(Call::StealDescriptor),
    },
    Attempt {
        name: "read the memory of process 1",
        make: Run(|_| of_init("mem")),
    },
    Attempt {
        name: "read the environment of process 1",
        make: Run(|_| of_init("environ")),
    },
    Attempt {
        name: "look into the root of process 1",
        make: Run(|_| init_root()),
    },
    Attempt {
        name: "find open descriptors of somebody else",
        make: Run(|_| descriptors()),
    },
    Attempt {
        name: "make a user namespace",
        make: Run(|_| unshare(UnshareFlags::NEWUSER)),
    },
    Attempt {
        name: "make a network namespace",
        make: Run(|_| unshare(UnshareFlags::NEWNET)),
    },
    Attempt {
        name: "make a mount namespace",
        make: Run(|_| unshare(UnshareFlags::NEWNS)),
    },
    Attempt {
        name: "enter a namespace of process 1 (setns)",
        make: Run(|_| enter()),
    },
    Attempt {
        name: "leave a core of a process behind",
        make: Run(|_| core()),
    },
];

fn namespaces(host: &Host) -> Result {
    if host.namespaces.is_empty() {
        return Result::untried("the host's are not known");
    }
    let shared: Vec<&str> = host
        .namespaces
        .iter()
        .filter(|(name, of_host)| namespace(name).as_ref() == Some(*of_host))
        .map(|(name, _)| name.as_str())
        .collect();
    // Where the host itself has no controllers to offer there is nothing that a namespace of cgroups would hide.
    match shared.as_slice() {
        [] => Result::held("all are its own"),
        ["cgroup"] if !mounted("cgroup") => {
            Result::held("all are its own; cgroups are not mounted")
        }
        shared => Result::open(format!("shared with the host: {}", shared.join(", "))),
    }
}

/// Whether a file system of this kind is mounted.
pub(super) fn mounted(kind: &str) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| {
        let kinds = line.split_once(" - ").map_or("", |(_, rest)| rest);
        kinds.starts_with(kind)
    })
}

/// Kernel threads have no parent and no sandbox.
fn strangers() -> Result {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let kernel =
        std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd");
    match pids.len() {
        0 => Result::open("/proc is not there"),
        _ if kernel => Result::open("the kernel's own threads are seen"),
        1..=16 => Result::held(format!(
            "{} processes are seen, all of the sandbox",
            pids.len()
        )),
        many => Result::open(format!("{many} processes are seen")),
    }
}

fn of_init(name: &str) -> Result {
    let mut byte = [0];
    let read = File::open(format!("/proc/1/{name}")).and_then(|mut file| file.read(&mut byte));
    match read {
        // The first page is never there; that it could be asked for is enough.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Result::open("it can be read"),
        read => Result::of(read, "it can be read"),
    }
}

fn init_root() -> Result {
    Result::of(
        std::fs::read_dir("/proc/1/root/").map(drop),
        "it can be listed",
    )
}

fn descriptors() -> Result {
    let mut found = Vec::new();
    let entries = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    for entry in entries {
        let Some(number) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let to = std::fs::read_link(entry.path()).unwrap_or_else(|_| PathBuf::from("gone"));
        // The directory that is read here is among them.
        let own = to.starts_with("/proc") || to.as_os_str() == "gone";
        if number > 2 && !own {
            found.push(format!("{number} is {}", to.display()));
        }
    }
    if found.is_empty() {
        Result::held("stdin, stdout and stderr, and no more")
    } else {
        Result::open(found.join(", "))
    }
}

fn unshare(flags: UnshareFlags) -> Result {
    Result::of(sys::unshare(flags), "it was made")
}

fn enter() -> Result {
    let mut last = Result::untried("process 1 has no namespaces");
    for name in ["user", "mnt", "net", "pid"] {
        let entered = File::open(format!("/proc/1/ns/{name}")).and_then(|namespace| {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), None)?;
            Ok(())
        });
        last = match entered {
            Ok(()) => return Result::open(format!("`{name}` was entered")),
            // One's own user namespace is entered by nobody, and that says nothing.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last,
            Err(error) => Result::held(error.to_string()),
        };
    }
    last
}

fn core() -> Result {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
    match limit.current {
        Some(0) => Result::held("the limit of cores is 0"),
        limit => Result::open(format!("the limit of cores is {limit:?} bytes")),
    }
}
