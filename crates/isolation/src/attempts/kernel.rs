//! System calls that reach into the kernel.

use std::io;

use super::Make::{Call as Makes, Run};
use super::{Attempt, Result};
use crate::sys::calls::Call;

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "make an io_uring",
        make: Makes(Call::IoUring),
    },
    Attempt {
        name: "load a program into the kernel (bpf)",
        make: Makes(Call::Bpf),
    },
    Attempt {
        name: "trace the machine (perf_event_open)",
        make: Makes(Call::Perf),
    },
    Attempt {
        name: "read the session's keyring (keyctl)",
        make: Makes(Call::Keyctl),
    },
    Attempt {
        name: "add a key",
        make: Makes(Call::AddKey),
    },
    Attempt {
        name: "hold the kernel up (userfaultfd)",
        make: Makes(Call::Userfaultfd),
    },
    Attempt {
        name: "load another kernel (kexec)",
        make: Makes(Call::Kexec),
    },
    Attempt {
        name: "load a kernel module",
        make: Makes(Call::InitModule),
    },
    Attempt {
        name: "remove a kernel module",
        make: Makes(Call::DeleteModule),
    },
    Attempt {
        name: "open files by number (open_by_handle_at)",
        make: Makes(Call::OpenByHandle),
    },
    Attempt {
        name: "restart the machine",
        make: Makes(Call::Reboot),
    },
    Attempt {
        name: "use a file as swap",
        make: Makes(Call::Swapon),
    },
    Attempt {
        name: "set the clock",
        make: Makes(Call::SetTime),
    },
    Attempt {
        name: "set the host name",
        make: Makes(Call::SetHostname),
    },
    Attempt {
        name: "read the kernel's messages",
        make: Makes(Call::Syslog),
    },
    Attempt {
        name: "change quotas",
        make: Makes(Call::Quotactl),
    },
    Attempt {
        name: "have every process recorded (acct)",
        make: Makes(Call::Acct),
    },
    Attempt {
        name: "have capabilities over the machine",
        make: Run(|_| capabilities()),
    },
    Attempt {
        name: "gain rights by a setuid program",
        make: Run(|_| new_privileges()),
    },
];

/// Those that an operation may have: over its own files, users, processes and ports.
const HARMLESS: u64 = protocol::caps::OP_CAPS;

/// A call was refused by who may make it, and not because its arguments make no sense.
pub(super) fn refused(done: io::Result<libc::c_long>) -> Result {
    match done {
        Ok(_) => Result::open("the kernel did it"),
        Err(error) => match error.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => Result::held(error.to_string()),
            _ => Result::open(format!(
                "the kernel let it through to its arguments: {error}"
            )),
        },
    }
}

/// A line of `/proc/self/status`.
pub(super) fn status(name: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(|value| value.trim().to_owned())
}

fn capabilities() -> Result {
    for set in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
        let value = status(set).and_then(|value| u64::from_str_radix(&value, 16).ok());
        let Some(value) = value else {
            return Result::untried("/proc/self/status cannot be read");
        };
        let more = value & !HARMLESS;
        if more != 0 {
            return Result::open(format!(
                "{set} has {more:#x} beyond what an operation may have"
            ));
        }
    }
    Result::held("no capability but those over its own files and processes, in any set")
}

fn new_privileges() -> Result {
    match status("NoNewPrivs").as_deref() {
        Some("1") => Result::held("programs gain nothing by their owner (no_new_privs)"),
        _ => Result::open("no_new_privs is not set"),
    }
}
