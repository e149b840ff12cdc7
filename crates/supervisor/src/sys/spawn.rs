//! Starts a program the way `vfork` does: the child borrows our memory until it executes, so nothing is copied.
//!
//! While the child lives on our memory the calling thread is suspended. The child only makes system calls: it allocates
//! nothing, takes no lock, and what it cannot do it writes into [`Report`], which we read when we are woken.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Pid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Whom the program runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
    pub(crate) groups: Vec<Gid>,
}

/// Everything the child needs, prepared beforehand.
pub(crate) struct Launch<'a> {
    /// Files to try in this order, as `execvp` does.
    pub(crate) programs: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: CString,
    /// `None` keeps what the supervisor is.
    pub(crate) identity: Option<Identity>,
    /// What root keeps of its capabilities.
    pub(crate) capabilities: CapabilitySet,
    /// Descriptors 0, 1 and 2. Not below 3 themselves.
    pub(crate) stdio: [BorrowedFd<'a>; 3],
    /// Whether descriptor 0 becomes the controlling terminal.
    pub(crate) terminal: bool,
    /// The limit of open files to go back to.
    pub(crate) nofile: Rlimit,
}

/// What failed in the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Clone,
    Session,
    Stdio,
    Terminal,
    Groups,
    Group,
    User,
    Capabilities,
    Cwd,
    Program,
}

/// The failure of one start; nothing of the program ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    pub(crate) errno: Errno,
}

/// The memory the child runs on. One is enough: the thread that starts children waits for each.
pub(crate) struct Stack {
    base: *mut c_void,
}

const STACK_SIZE: usize = 128 << 10;
const GUARD_SIZE: usize = 4096;

impl Stack {
    /// Maps it, with a page below that faults instead of running into other memory.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping; nothing else points into it.
        unsafe {
            let base = libc::mmap(
                ptr::null_mut(),
                STACK_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
                -1,
                0,
            );
            if base == libc::MAP_FAILED || libc::mprotect(base, GUARD_SIZE, libc::PROT_NONE) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { base })
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; no child runs on it, as `run` waits for each.
        unsafe {
            libc::munmap(self.base, STACK_SIZE);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Execute,
    /// Do everything but execute, and look whether that would work.
    Check,
}

struct Shared<'a> {
    launch: &'a Launch<'a>,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    purpose: Purpose,
    report: Cell<Option<Failure>>,
}

/// Starts the program; returns the process that runs it, leader of a session of its own.
pub(crate) fn start(launch: &Launch<'_>, stack: &mut Stack) -> Result<Pid, Failure> {
    run(launch, stack, Purpose::Execute)
}

/// Tells whether [`start`] would work, by doing it up to the execution in a child that ends there.
pub(crate) fn check(launch: &Launch<'_>, stack: &mut Stack) -> Result<(), Failure> {
    run(launch, stack, Purpose::Check).map(|_| ())
}

fn run(launch: &Launch<'_>, stack: &mut Stack, purpose: Purpose) -> Result<Pid, Failure> {
    let pointers = |list: &[CString]| -> Vec<*const c_char> {
        list.iter()
            .map(|s| s.as_ptr())
            .chain([ptr::null()])
            .collect()
    };
    let shared = Shared {
        launch,
        argv: pointers(&launch.argv),
        env: pointers(&launch.env),
        purpose,
        report: Cell::new(None),
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is STACK_SIZE bytes that nobody else uses. CLONE_VFORK keeps this thread, and so every borrow in
    // `shared`, as it is until the child has executed or ended. All signals are blocked meanwhile, so that no handler of
    // ours runs in the child. Other threads go on; the child touches nothing of theirs.
    let pid = unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let pid = libc::clone(
            child,
            stack.base.byte_add(STACK_SIZE),
            flags,
            (&raw const shared).cast_mut().cast(),
        );
        let failed = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        Pid::from_raw(pid.max(0)).ok_or(Failure {
            stage: Stage::Clone,
            errno: Errno::from_io_error(&failed).unwrap_or(Errno::AGAIN),
        })?
    };
    let failure = shared.report.get();
    if failure.is_some() || purpose == Purpose::Check {
        // It ended by itself already; taking it here keeps it out of the reaper's sight.
        let options = rustix::process::WaitOptions::empty();
        while let Err(Errno::INTR) = rustix::process::waitpid(Some(pid), options) {}
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(pid),
    }
}

extern "C" fn child(argument: *mut c_void) -> c_int {
    // SAFETY: `run` passes a `Shared` that outlives the child's time on our memory.
    let shared = unsafe { &*argument.cast_const().cast::<Shared<'_>>() };
    if let Err(failure) = become_program(shared) {
        shared.report.set(Some(failure));
    }
    // SAFETY: ends this process only, without running anything registered with the C library.
    unsafe { libc::_exit(127) }
}

fn at<T>(stage: Stage) -> impl FnOnce(Errno) -> Result<T, Failure> {
    move |errno| Err(Failure { stage, errno })
}

/// Returns only with a failure, or in a check.
fn become_program(shared: &Shared<'_>) -> Result<(), Failure> {
    let launch = shared.launch;
    rustix::process::setsid().or_else(at(Stage::Session))?;
    default_dispositions();
    for (number, fd) in (0..).zip(&launch.stdio) {
        // SAFETY: plain descriptors; the child has a table of its own.
        if unsafe { libc::dup2(fd.as_raw_fd(), number) } < 0 {
            return at(Stage::Stdio)(last_errno());
        }
    }
    if launch.terminal {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).or_else(at(Stage::Terminal))?;
    }
    // From the moment it is of the operation's rights others of its kind may look into this process: it must not even hold
    // what is ours. Its memory is ours as well; that is closed to them because we are not dumpable.
    // SAFETY: closes descriptors of this process's own table, none of which is used by number hereafter.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
    }
    set_limits(launch);
    set_identity(launch)?;
    enter_cwd(&launch.cwd).or_else(at(Stage::Cwd))?;
    unblock_signals();
    let errno = match shared.purpose {
        Purpose::Execute => execute(shared),
        Purpose::Check => match try_programs(launch, executable) {
            Ok(()) => return Ok(()),
            Err(errno) => errno,
        },
    };
    at(Stage::Program)(errno)
}

/// Ignored signals would stay ignored through the execution; ours must not leak into it.
fn default_dispositions() {
    // The kernel's own layout: handler, flags, restorer, mask. All zero is the default disposition.
    let default = [0u64; 4];
    for signal in 1..=64 {
        // SAFETY: the kernel reads 32 bytes of `default` and writes nothing. SIGKILL and SIGSTOP are refused, as wanted.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null_mut::<c_void>(),
                8,
            );
        }
    }
}

fn unblock_signals() {
    let none = 0u64;
    // SAFETY: the kernel reads eight bytes of `none`.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            ptr::null_mut::<c_void>(),
            8,
        );
    }
}

/// Best effort: a limit that cannot be set is no reason not to run.
fn set_limits(launch: &Launch<'_>) {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _core: Result<_, Errno> = rustix::process::setrlimit(Resource::Core, none);
    let _nofile: Result<_, Errno> = rustix::process::setrlimit(Resource::Nofile, launch.nofile);
}

fn set_identity(launch: &Launch<'_>) -> Result<(), Failure> {
    let Some(identity) = &launch.identity else {
        return Ok(());
    };
    match rustix::thread::set_thread_groups(&identity.groups) {
        // A user namespace of an ordinary user forbids this call to everybody.
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return at(Stage::Groups)(errno),
    }
    let (uid, gid) = (identity.uid, identity.gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid).or_else(at(Stage::Group))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).or_else(at(Stage::User))?;
    if uid.is_root() {
        // Before the first look at a path of the sandbox: with PID 1's own capabilities, links in /proc would let the
        // operation through to PID 1's descriptors.
        let have = rustix::thread::capabilities(None).or_else(at(Stage::Capabilities))?;
        let keep = have.permitted & launch.capabilities;
        let sets = CapabilitySets {
            effective: keep,
            permitted: keep,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets).or_else(at(Stage::Capabilities))?;
    }
    Ok(())
}

fn enter_cwd(cwd: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = open_plain(cwd, flags)?;
    rustix::process::fchdir(&fd)
}

fn open_plain(path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// Looks through the candidates as `execvp` does: what may not be executed is remembered, what is not there is passed over.
fn try_programs(
    launch: &Launch<'_>,
    mut attempt: impl FnMut(&CStr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut found = Errno::NOENT;
    for program in &launch.programs {
        match attempt(program) {
            Ok(()) => return Ok(()),
            Err(errno @ (Errno::NOENT | Errno::NOTDIR)) if launch.programs.len() == 1 => {
                found = errno;
            }
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno @ (Errno::ACCESS | Errno::ISDIR)) => found = errno,
            Err(errno) => return Err(errno),
        }
    }
    Err(found)
}

fn execute(shared: &Shared<'_>) -> Errno {
    let result = try_programs(shared.launch, |program| {
        // SAFETY: all pointers are to terminated strings and end with a null; `run` keeps them alive.
        unsafe {
            libc::execve(program.as_ptr(), shared.argv.as_ptr(), shared.env.as_ptr());
        }
        Err(last_errno())
    });
    result.err().unwrap_or(Errno::NOENT)
}

fn executable(program: &CStr) -> Result<(), Errno> {
    let fd = open_plain(program, OFlags::PATH | OFlags::CLOEXEC)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    if kind != FileType::RegularFile {
        return Err(Errno::ACCESS);
    }
    let flags = (AtFlags::EMPTY_PATH | AtFlags::EACCESS).bits();
    // SAFETY: an empty string and a descriptor; nothing is written.
    let result = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::X_OK,
            flags,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

fn last_errno() -> Errno {
    // SAFETY: the location is this thread's, which the child shares while its parent waits.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}
