//! System calls that a sandbox refuses, made with arguments that change nothing where somebody lets them through.

use std::io;

use libc::c_long;

/// One of them. What is tried passes no memory: a kernel that looks at the arguments fails with another error than one that refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// `io_uring_setup`: system calls that no filter sees.
    IoUring,
    /// `bpf`: programs in the kernel.
    Bpf,
    /// `perf_event_open`: counters and traces of the whole machine.
    Perf,
    /// `keyctl`, of the session's keyring.
    Keyctl,
    /// `add_key`.
    AddKey,
    /// `userfaultfd`: holds the kernel up at a page.
    Userfaultfd,
    /// `kexec_load`, with flags that do not exist.
    Kexec,
    /// `init_module`, of nothing.
    InitModule,
    /// `delete_module`, of no name.
    DeleteModule,
    /// `open_by_handle_at`: files by number, past every directory.
    OpenByHandle,
    /// `reboot`, without its magic numbers.
    Reboot,
    /// `swapon`, of no file.
    Swapon,
    /// `settimeofday`, of no time.
    SetTime,
    /// `sethostname`, of a length that there is not.
    SetHostname,
    /// `ptrace`, of process 1.
    PtraceInit,
    /// `pidfd_getfd`, of process 1's first descriptor.
    StealDescriptor,
    /// `syslog`: the kernel's messages.
    Syslog,
    /// `quotactl`, of no device.
    Quotactl,
    /// `fsopen`, of no name: mounts in the newer way.
    Fsopen,
    /// `acct`, of a file whose name lies nowhere: a record of every process.
    Acct,
}

impl Call {
    /// Makes it.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn attempt(self) -> io::Result<c_long> {
        const SEIZE: c_long = 0x4206;
        const SESSION: c_long = -3;
        const READ_ALL: c_long = 3;
        const INIT: c_long = 1;
        // No page can be mapped there; null would be an order to record nothing.
        const NOWHERE: c_long = 1;
        let (number, args): (c_long, [c_long; 5]) = match self {
            Self::IoUring => (libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
            Self::Bpf => (libc::SYS_bpf, [-1, 0, 0, 0, 0]),
            Self::Perf => (libc::SYS_perf_event_open, [0, 0, -1, -1, 0]),
            Self::Keyctl => (libc::SYS_keyctl, [0, SESSION, 0, 0, 0]),
            Self::AddKey => (libc::SYS_add_key, [0, 0, 0, 0, SESSION]),
            Self::Userfaultfd => (libc::SYS_userfaultfd, [1, 0, 0, 0, 0]),
            Self::Kexec => (libc::SYS_kexec_load, [0, 0, 0, 0xffff, 0]),
            Self::InitModule => (libc::SYS_init_module, [0, 0, 0, 0, 0]),
            Self::DeleteModule => (libc::SYS_delete_module, [0, 0, 0, 0, 0]),
            Self::OpenByHandle => (libc::SYS_open_by_handle_at, [-100, 0, 0, 0, 0]),
            Self::Reboot => (libc::SYS_reboot, [0, 0, 0, 0, 0]),
            Self::Swapon => (libc::SYS_swapon, [0, 0, 0, 0, 0]),
            Self::SetTime => (libc::SYS_settimeofday, [0, 0, 0, 0, 0]),
            Self::SetHostname => (libc::SYS_sethostname, [0, -1, 0, 0, 0]),
            Self::PtraceInit => (libc::SYS_ptrace, [SEIZE, INIT, 0, 0, 0]),
            Self::StealDescriptor => {
                // SAFETY: as below.
                let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, INIT, 0) };
                (libc::SYS_pidfd_getfd, [pidfd, 0, 0, 0, 0])
            }
            Self::Syslog => (libc::SYS_syslog, [READ_ALL, 0, 0, 0, 0]),
            Self::Quotactl => (libc::SYS_quotactl, [0, 0, 0, 0, 0]),
            Self::Fsopen => (libc::SYS_fsopen, [0, 0, 0, 0, 0]),
            Self::Acct => (libc::SYS_acct, [NOWHERE, 0, 0, 0, 0]),
        };
        let [a, b, c, d, e] = args;
        // SAFETY: every pointer among the arguments is null or to where nothing can be, so the kernel neither reads nor writes memory of ours; a descriptor
        // that may come back is nobody else's.
        let done = unsafe { libc::syscall(number, a, b, c, d, e) };
        if done >= 0 {
            Ok(done)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}
