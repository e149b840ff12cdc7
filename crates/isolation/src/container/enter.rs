//! The inside: from the launcher that the daemon spawned to PID 1 of a new sandbox.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use protocol::{Limits, paths};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Gid, Uid};
use rustix::thread::UnshareFlags;

use super::door::{Doors, Net};
use super::plan::{Place, Plan, Tree, TreesCome};
use super::seccomp::Filters;
use super::wire::{Failure, HELLO, Link, ToLauncher};
use super::{harden, special, world};
use crate::{Error, Network, sys};

/// Cgroups, each with the group into which to go before removing it.
type Groups = Vec<(PathBuf, PathBuf)>;

/// What the supervisor gets as PID 1 of a new sandbox. All descriptors are closed on exec.
#[derive(Debug)]
pub struct Entered {
    /// The sandbox's state directory on the host (`O_RDONLY|O_DIRECTORY`); the only way there.
    pub state: OwnedFd,
    /// Listens at `control.sock` in the state directory.
    pub control: UnixListener,
    /// Listens at [`protocol::paths::MODEL_PORT`] on the sandbox's loopback.
    pub model: TcpListener,
    /// Listens at [`protocol::paths::SHIM_SOCKET`].
    pub shim: UnixListener,
    /// Where what leaves the sandbox ends; none where nothing does.
    pub doors: Option<Doors>,
    /// Whether an authority is to be trusted beside those of the image: [`protocol::paths::CA_BUNDLE`] is there then.
    pub has_ca: bool,
    /// Write one byte when serving, then drop it: [`crate::Level::start`] returns then.
    pub ready: OwnedFd,
    /// What the sandbox may use.
    pub limits: Limits,
}

/// Makes this process the launcher of a sandbox; returns only in PID 1 of it.
///
/// Call it first thing in `main`, single-threaded, in the process that [`crate::Level::start`] spawned: its standard input
/// is the way to the daemon, every other descriptor from 3 on is closed.
///
/// # Errors
/// What failed. The daemon has been told; the caller only exits.
pub fn enter() -> Result<Entered, Error> {
    let link = take_stdin()?;
    let steps = || -> Result<Parts, Error> {
        let filters =
            Filters::compile().map_err(|e| Error::step("compile the system call filter", e))?;
        let (groups, network) = wait_to_enter(&link)?;
        become_init()?;
        let net = Net::make(network)?;
        link.send(HELLO, &[])
            .map_err(|e| Error::step("report to the daemon", e))?;
        let (plan, trees) = wait_for_plan(&link, &groups)?;
        build(&plan, trees, net, &filters)
    };
    match steps() {
        Ok(parts) => Ok(Entered {
            state: parts.state,
            control: parts.control,
            model: parts.model,
            shim: parts.shim,
            doors: parts.doors,
            has_ca: parts.has_ca,
            limits: parts.limits,
            ready: link.into_fd(),
        }),
        Err(error) => {
            // Where the daemon is gone nobody is left to be told.
            let _ignored = link.send_json(&Failure::from(&error));
            Err(error)
        }
    }
}

/// [`Entered`] without the way to the daemon, which is lent until the end.
struct Parts {
    state: OwnedFd,
    control: UnixListener,
    model: TcpListener,
    shim: UnixListener,
    doors: Option<Doors>,
    has_ca: bool,
    limits: Limits,
}

fn take_stdin() -> Result<Link, Error> {
    let steps = || -> io::Result<Link> {
        // The connection to a crash test is the one thing that may have been opened before.
        let armed = std::env::var_os("DURABLE_FAILPOINT_SOCKET").is_some();
        sys::from_3_on(if armed {
            sys::Fds::CloseOnExec
        } else {
            sys::Fds::Close
        })?;
        let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        quiet_stdio()?;
        // Signals from the daemon's terminal are not for us.
        rustix::process::setsid()?;
        Ok(Link::new(socket))
    };
    steps().map_err(|e| Error::step("take over standard input", e))
}

/// Puts `/dev/null` on standard input and output.
fn quiet_stdio() -> io::Result<()> {
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// The next message. The daemon's going away ends this process and what was made for it.
fn next(link: &Link, groups: &Groups) -> Result<(ToLauncher, Vec<OwnedFd>), Error> {
    let failed = |e: io::Error| Error::step("hear from the daemon", e);
    let Some(message) = link.receive(None).map_err(failed)? else {
        leave_groups(groups);
        sys::exit_now(0);
    };
    let said = serde_json::from_slice(&message.bytes).map_err(|e| failed(e.into()))?;
    Ok((said, message.fds))
}

/// Waits until this process is in its cgroups; returns these, and the network to make.
fn wait_to_enter(link: &Link) -> Result<(Groups, Network), Error> {
    let mut ours = Groups::new();
    loop {
        match next(link, &ours)?.0 {
            ToLauncher::Park { groups } => ours = groups,
            ToLauncher::Enter { network } => return Ok((ours, network)),
            ToLauncher::Start(_) => return Err(unexpected()),
        }
    }
}

/// Waits for a sandbox to be. Its log becomes standard error.
fn wait_for_plan(link: &Link, groups: &Groups) -> Result<(Box<Plan>, Vec<OwnedFd>), Error> {
    let (ToLauncher::Start(plan), mut fds) = next(link, groups)? else {
        return Err(unexpected());
    };
    if fds.is_empty() {
        return Err(unexpected());
    }
    let log = fds.remove(0);
    rustix::stdio::dup2_stderr(&log).map_err(|e| Error::step("open the log", e))?;
    Ok((plan, fds))
}

fn unexpected() -> Error {
    Error::step("understand the daemon", io::ErrorKind::InvalidData)
}

/// Removes the cgroups of this unused launcher, as many as were made.
fn leave_groups(groups: &Groups) {
    for (group, outside) in groups.iter().filter(|(group, _)| group.exists()) {
        // 0 is whoever writes, under whatever pid. What cannot be removed now is found by the next daemon's sweep.
        let _ignored = fs::write(outside.join("cgroup.procs"), "0");
        // The group, that of the data directory, and `durable`: as far as nobody else is in them.
        for dir in group.ancestors().take(3) {
            let _ignored = fs::remove_dir(dir);
        }
    }
}

/// Goes on as process 1 of new namespaces; the process that entered here ends.
fn become_init() -> Result<(), Error> {
    let all = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS;
    sys::unshare(all).map_err(|e| Error::Step {
        step: "make namespaces".to_owned(),
        remedy: Some(namespace_remedy(e)),
        source: e.into(),
    })?;
    match sys::fork() {
        Ok(Some(_)) => sys::exit_now(0),
        Ok(None) => {}
        Err(error) => return Err(Error::step("fork PID 1", error)),
    }
    rustix::process::setsid().map_err(|e| Error::step("make a session", e))?;
    Ok(())
}

fn namespace_remedy(error: rustix::io::Errno) -> String {
    match error {
        rustix::io::Errno::NOSPC => "raise the sysctl `user.max_user_namespaces`".to_owned(),
        _ => "allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1` on Debian, `kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu, an unconfined seccomp profile in a container; or run the daemon as root".to_owned(),
    }
}

fn build(
    plan: &Plan,
    trees: Vec<OwnedFd>,
    mut net: Net,
    filters: &Filters,
) -> Result<Parts, Error> {
    let failed = |step: &'static str| move |e: rustix::io::Errno| Error::step(step, e);
    net.complete(plan.doors.as_deref())?;
    // The mask of the daemon must not narrow what is made here.
    rustix::process::umask(Mode::empty());
    rustix::system::sethostname(plan.hostname.as_bytes()).map_err(failed("set the host name"))?;
    // Not with the others: an unused launcher must be able to leave its groups again.
    sys::unshare(UnshareFlags::NEWCGROUP).map_err(failed("make a cgroup namespace"))?;
    if plan.ids.has_groups() {
        rustix::thread::set_thread_groups(&[]).map_err(failed("drop groups"))?;
    }
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)
        .map_err(failed("become root's group"))?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
        .map_err(failed("become root"))?;
    // A second lock beside the system call filter; kernels without this setting have only the first.
    let _ignored = fs::write("/proc/sys/user/max_user_namespaces", "0");
    let trees = match plan.trees_come {
        TreesCome::FromDaemon => pair(&plan.trees, trees)?,
        TreesCome::FromPaths => open(&plan.trees)?,
    };
    let shim_dir = world::build(plan, &trees)?;
    let state = trees
        .iter()
        .find(|(place, _)| *place == Place::State)
        .ok_or_else(|| Error::step("find the state directory", io::ErrorKind::NotFound))
        .and_then(|(_, mount)| world::open_directory(mount))?;
    drop(trees);
    quiet_stdio().map_err(|e| Error::step("open /dev/null", e))?;
    let control = listen(&state, Path::new(paths::state::CONTROL), 0o600)?;
    let name = Path::new(paths::SHIM_SOCKET)
        .file_name()
        .map(Path::new)
        .unwrap_or(Path::new("shim.sock"));
    let shim = listen(&shim_dir, name, 0o666)?;
    // Nobody can replace the socket now; connecting needs no writable mount.
    special::seal(shim_dir.as_fd())?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    harden::harden(filters)?;
    Ok(Parts {
        state,
        control,
        model: net.model,
        shim,
        doors: net.doors,
        has_ca: plan.ca.is_some(),
        limits: plan.limits.clone(),
    })
}

fn pair(trees: &[Tree], mounts: Vec<OwnedFd>) -> Result<Vec<(Place, OwnedFd)>, Error> {
    if trees.len() != mounts.len() {
        return Err(Error::step(
            "match trees to mounts",
            io::ErrorKind::InvalidData,
        ));
    }
    Ok(trees.iter().map(|t| t.place.clone()).zip(mounts).collect())
}

fn open(trees: &[Tree]) -> Result<Vec<(Place, OwnedFd)>, Error> {
    trees
        .iter()
        .map(|t| Ok((t.place.clone(), t.open(None)?.mount)))
        .collect()
}

/// Listens at a name in a directory that may be in no place of this root.
fn listen(directory: &OwnedFd, name: &Path, mode: u32) -> Result<UnixListener, Error> {
    let steps = || -> io::Result<UnixListener> {
        rustix::process::fchdir(directory)?;
        match fs::remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        rustix::process::umask(Mode::from_raw_mode(0o777 & !mode));
        let listener = UnixListener::bind(name)?;
        rustix::process::chdir(c"/")?;
        Ok(listener)
    };
    steps().map_err(|e| Error::step(format!("listen at {}", name.display()), e))
}
