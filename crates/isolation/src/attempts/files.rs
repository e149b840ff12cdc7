//! Files, mounts and devices.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::Make::{Call as Makes, Run};
use super::{Attempt, Host, Result, processes};
use crate::sys::calls::Call;

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "find a directory of the host",
        make: Run(host_dir),
    },
    Attempt {
        name: "mount a file system",
        make: Run(|_| mount()),
    },
    Attempt {
        name: "mount in the newer way (fsopen)",
        make: Makes(Call::Fsopen),
    },
    Attempt {
        name: "make what is mounted writable",
        make: Run(|_| remount()),
    },
    Attempt {
        name: "unmount what covers something",
        make: Run(|_| unmount()),
    },
    Attempt {
        name: "climb out of a chroot",
        make: Run(|_| climb()),
    },
    Attempt {
        name: "make a device node",
        make: Run(|_| node()),
    },
    Attempt {
        name: "open a device of the host",
        make: Run(|_| device()),
    },
    Attempt {
        name: "read the machine's memory (kcore)",
        make: Run(|_| read("/proc/kcore")),
    },
    Attempt {
        name: "write a setting of the kernel",
        make: Run(|_| {
            write(&[
                "/proc/sys/kernel/core_pattern",
                "/proc/sys/kernel/modprobe",
                "/proc/sys/kernel/panic",
                "/proc/sys/vm/overcommit_memory",
                "/proc/sys/fs/file-max",
            ])
        }),
    },
    Attempt {
        name: "write to sysrq-trigger",
        make: Run(|_| write(&["/proc/sysrq-trigger"])),
    },
    Attempt {
        name: "write to /sys",
        make: Run(|_| write_sys()),
    },
    Attempt {
        name: "use a cgroup's release_agent",
        make: Run(|_| release_agent()),
    },
    Attempt {
        name: "trace the kernel (debugfs, tracefs)",
        make: Run(|_| tracing()),
    },
    Attempt {
        name: "read the host's shadow passwords",
        make: Run(|_| read("/etc/shadow")),
    },
    Attempt {
        name: "reach a daemon of the host by its socket",
        make: Run(|_| sockets()),
    },
    Attempt {
        name: "change the program that runs as process 1",
        make: Run(|_| write(&["/proc/1/exe", protocol::paths::BIN])),
    },
];

/// Devices that reach the machine.
const DEVICES: [&str; 14] = [
    "mem",
    "kmem",
    "port",
    "kmsg",
    "kvm",
    "fuse",
    "loop-control",
    "loop0",
    "sda",
    "nvme0n1",
    "vda",
    "net/tun",
    "vsock",
    "mapper/control",
];
/// Where daemons of a host usually listen.
const SOCKETS: [&str; 6] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/crio/crio.sock",
];

/// A directory that nobody else knows, gone when this is.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("durable-probe-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left lies in a directory for what is left.
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs what needs a directory of its own.
fn in_scratch(run: impl FnOnce(&Path) -> Result) -> Result {
    match Scratch::new() {
        Ok(scratch) => run(&scratch.0),
        Err(error) => Result::untried(format!("no directory can be made: {error}")),
    }
}

fn host_dir(host: &Host) -> Result {
    if host.dir.as_os_str().is_empty() {
        return Result::untried("none is known");
    }
    Result::of(std::fs::symlink_metadata(&host.dir), "it is there")
}

fn mount() -> Result {
    in_scratch(|dir| {
        let mounted = rustix::mount::mount("none", dir, "tmpfs", MountFlags::empty(), None);
        if mounted.is_ok() {
            // It is in nobody's way for longer than this process.
            let _unmounted = rustix::mount::unmount(dir, UnmountFlags::DETACH);
        }
        Result::of(mounted, "a tmpfs was mounted")
    })
}

fn remount() -> Result {
    in_scratch(|dir| {
        // On a place of one's own: what is asked is whether the kernel would.
        let bound = rustix::mount::mount_bind(dir, dir).and_then(|()| {
            let done = rustix::mount::mount_remount(dir, MountFlags::BIND | MountFlags::RDONLY, "");
            let _unmounted = rustix::mount::unmount(dir, UnmountFlags::DETACH);
            done
        });
        Result::of(bound, "a mount was changed")
    })
}

fn unmount() -> Result {
    // Not without a mount namespace of one's own, which is itself refused: where it is not, nothing of anybody's is touched.
    match crate::sys::unshare(rustix::thread::UnshareFlags::NEWNS) {
        Ok(()) => Result::open("in a mount namespace of one's own"),
        Err(namespace) => {
            match rustix::mount::unmount("/durable-probe-nothing", UnmountFlags::DETACH) {
                Err(rustix::io::Errno::PERM) => Result::held("refused"),
                Err(error) => Result::open(format!(
                    "the kernel looked for the place: {error} (and {namespace})"
                )),
                Ok(()) => Result::open("done"),
            }
        }
    }
}

fn climb() -> Result {
    in_scratch(|dir| {
        let of = |path: &str| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
        let climbed = || -> io::Result<bool> {
            let before = of("/")?;
            let held: OwnedFd =
                rustix::fs::open("/", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())?;
            rustix::process::chroot(dir)?;
            rustix::process::fchdir(&held)?;
            for _ in 0..64 {
                rustix::process::chdir("..")?;
            }
            rustix::process::chroot(".")?;
            Ok(of("/")? != before)
        };
        match climbed() {
            Ok(false) => Result::held("it leads to the sandbox's own root"),
            Ok(true) => Result::open("it leads to another root"),
            Err(error) => Result::held(error.to_string()),
        }
    })
}

fn node() -> Result {
    in_scratch(|dir| {
        let memory = rustix::fs::makedev(1, 1);
        let made = rustix::fs::mknodat(
            CWD,
            dir.join("mem"),
            FileType::CharacterDevice,
            Mode::RUSR,
            memory,
        );
        let opened = made
            .map_err(io::Error::from)
            .and_then(|()| File::open(dir.join("mem")));
        Result::of(opened, "/dev/mem was made and opened")
    })
}

fn device() -> Result {
    let found = DEVICES.iter().find(|name| {
        let path = Path::new("/dev").join(name);
        File::open(&path).is_ok() || OpenOptions::new().write(true).open(path).is_ok()
    });
    match found {
        Some(name) => Result::open(format!("/dev/{name} can be opened")),
        None => Result::held("none of them is there, or none can be opened"),
    }
}

fn read(path: &str) -> Result {
    use std::io::Read as _;
    let mut byte = [0];
    match File::open(path).and_then(|mut file| file.read(&mut byte)) {
        Ok(0) => Result::held("it is empty"),
        read => Result::of(read, "it can be read"),
    }
}

/// Opens for writing; nothing is written.
fn write(paths: &[&str]) -> Result {
    let mut refused = None;
    for path in paths {
        match OpenOptions::new().write(true).open(path) {
            Ok(_) => return Result::open(format!("{path} can be opened for writing")),
            Err(error) => refused = Some(error),
        }
    }
    Result::held(refused.map_or_else(String::new, |error| error.to_string()))
}

fn write_sys() -> Result {
    let files = [
        "/sys/kernel/uevent_helper",
        "/sys/power/state",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/kexec_crash_size",
    ];
    match write(&files) {
        Result {
            outcome: super::Outcome::Held,
            ..
        } if std::fs::create_dir("/sys/durable-probe").is_ok() => {
            let _removed = std::fs::remove_dir("/sys/durable-probe");
            Result::open("a directory can be made there")
        }
        told => told,
    }
}

fn release_agent() -> Result {
    if !processes::mounted("cgroup") {
        return Result::held("no cgroup file system is mounted");
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = table
        .lines()
        .filter(|line| line.contains(" - cgroup "))
        .filter_map(|line| line.split(' ').nth(4));
    for place in places {
        let file = Path::new(place).join("release_agent");
        if OpenOptions::new().write(true).open(&file).is_ok() {
            return Result::open(format!("{} can be written", file.display()));
        }
    }
    Result::held("none can be written")
}

fn tracing() -> Result {
    if processes::mounted("debugfs") || processes::mounted("tracefs") {
        return Result::open("it is mounted");
    }
    Result::held("neither is mounted")
}

fn sockets() -> Result {
    let reached = SOCKETS
        .iter()
        .find(|path| std::os::unix::net::UnixStream::connect(path).is_ok());
    match reached {
        Some(path) => Result::open(format!("{path} answers")),
        None => Result::held("no usual one is there"),
    }
}
