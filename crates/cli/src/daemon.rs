//! The processes behind the commands: the daemon, and the programs that it starts from this same binary.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Config, Engine, Shared};
use protocol::{ApiError, ErrorCode};
use rustix::process::{Pid, Resource, Rlimit};
use server::Listener;
use tokio::net::UnixListener;

use crate::client::SOCKET;
use crate::failure;

/// Held by the daemon as long as it lives; names a data directory as one.
const LOCK: &str = "daemon.lock";

/// Cuts kept per sandbox. A pool of thousands of snapshots slows down with each (docs/adr/0002).
const KEEP_CUTS: usize = 64;

/// What the daemon is started with.
pub(crate) struct Serve {
    pub(crate) data: PathBuf,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) pid_file: Option<PathBuf>,
    /// Tell on stdout when it serves, then let go of stdout: a command waits for that, and another daemon will do.
    pub(crate) announce: bool,
    pub(crate) pool: workspace::Choice,
}

/// PID 1 of a sandbox.
pub(crate) fn supervise() -> i32 {
    failpoint::arm();
    let entered = match isolation::container::enter() {
        Ok(entered) => entered,
        // The daemon has been told why.
        Err(_told) => return 1,
    };
    supervisor::run(supervisor::Handles {
        state: entered.state,
        control: entered.control,
        model: Some(entered.model),
        shim: entered.shim,
        doors: entered.doors.map(|doors| supervisor::Doors {
            sockets: doors.sockets,
            diag: doors.diag,
        }),
        has_ca: entered.has_ca,
        ready: Some(entered.ready),
        limits: entered.limits,
    })
}

/// The process that owns the connections to model endpoints: `--socket PATH --dir PATH`.
pub(crate) fn relay(args: &[OsString]) -> i32 {
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).map(PathBuf::from)
    };
    let (Some(socket), Some(dir)) = (value("--socket"), value("--dir")) else {
        failure::note("__relay needs --socket and --dir");
        return 2;
    };
    match gateway::relay::main(&gateway::relay::Options::new(socket, dir)) {
        Ok(()) => 0,
        Err(error) => {
            failure::note(&format!("the relay ends: {error}"));
            1
        }
    }
}

/// The process that lets sandboxes go on when the daemon that stopped them for a cut is no more.
pub(crate) fn thaw() -> i32 {
    match isolation::container::guard(std::io::stdin()) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

/// Serves until told to end; returns an error where it cannot begin.
pub(crate) fn serve(options: &Serve) -> Result<(), ApiError> {
    failpoint::arm();
    let data = prepare(&options.data)?;
    let Some((lock, starting)) = lock(&data, options)? else {
        // Whoever started us has a daemon.
        return announce("ready").map_err(|e| unusable(&data, "tell who serves", &e));
    };
    // It holds the doors of every sandbox, and what comes through them.
    isolation::container::many_files();
    no_cores();
    // Before there are threads: they inherit the namespace.
    let mounts = workspace::private_mounts().map_err(|e| of_pool(&e))?;
    tracing::debug!(?mounts, "mount namespace");
    // A daemon of its own session does not end with the terminal of whoever started it. A group leader is in one already.
    let _own_session = rustix::process::setsid();
    if let Some(file) = &options.pid_file {
        std::fs::write(file, format!("{}\n", std::process::id()))
            .map_err(|e| unusable(file, "write the pid file", &e))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| unusable(&data, "start a runtime for", &e))?;
    let result = runtime.block_on(run(options, &data, starting));
    drop(lock);
    result
}

/// Forbids cores of this process and of the relay: values of secrets are in their memory while they are used. The limit of one byte
/// is the only one that a core obeys which goes into a pipe.
fn no_cores() {
    let one = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    // It is refused where the limit is lower already.
    let _set = rustix::process::setrlimit(Resource::Core, one);
}

async fn run(options: &Serve, data: &Path, starting: File) -> Result<(), ApiError> {
    let shared = open(options, data)?;
    let mut failed = shared.store.failed();
    let (engine, recovery) = Engine::open(shared).await?;
    tracing::info!(
        data = %data.display(), sandboxes = recovery.sandboxes, damaged = recovery.damaged,
        pool = engine.shared().pool.kind(), "the daemon serves"
    );
    let relay = engine.shared().relay.clone();
    let router = server::router(Arc::new(engine));
    failpoint::hit("before_serving");
    let unix = Listener::Unix(api_socket(data)?);
    // It listens: those who wait for that may look.
    drop(starting);
    if let Some(address) = options.listen {
        let token = token(data)?;
        let tcp = Listener::tcp(address, &token).await.map_err(|e| {
            ApiError::new(
                ErrorCode::Unavailable,
                format!("cannot listen on {address}: {e}"),
            )
            .hint("give another address to `--listen`")
        })?;
        let router = router.clone();
        tokio::spawn(async move {
            if let Err(error) = server::serve(tcp, router).await {
                tracing::error!(%error, "the TCP listener ended");
            }
        });
    }
    if options.announce {
        match announce("ready") {
            // The command that waited was killed; the daemon is there for others too.
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                return Err(unusable(data, "tell that it serves", &e));
            }
            _ => {}
        }
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(|e| unusable(data, "hear signals for", &e))?;
    tokio::select! {
        ended = server::serve(unix, router) => ended.map_err(|e| unusable(data, "serve", &e)),
        failure = failure(&mut failed) => {
            let why = failure.map(|f| f.to_string()).unwrap_or_default();
            // What is on disk is unknown now; the next start finds out.
            Err(ApiError::new(ErrorCode::Internal, format!("the journal failed: {why}")))
        }
        _ = terminate.recv() => {
            tracing::info!("the daemon ends; sandboxes go on");
            // An answer that is still coming is read to its end by the relay; without one it need not stay.
            relay.quit().await;
            Ok(())
        }
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Waits for the journal to fail.
async fn failure(
    failed: &mut tokio::sync::watch::Receiver<Option<journal::Failure>>,
) -> Option<journal::Failure> {
    failed.wait_for(Option::is_some).await.ok()?.clone()
}

/// Opens everything that the engine stands on.
fn open(options: &Serve, data: &Path) -> Result<Shared, ApiError> {
    let binary = std::env::current_exe().map_err(|e| unusable(data, "find the program for", &e))?;
    let store = journal::Sqlite::open(&data.join("journal")).map_err(|e| of_open(&e))?;
    let pool = workspace::open(data, options.pool).map_err(|e| of_pool(&e))?;
    let level = isolation::container::Container::new(data).map_err(|e| {
        ApiError::new(ErrorCode::Unavailable, e.to_string()).hint(
            e.remedy()
                .unwrap_or("`durable doctor` tells what is missing")
                .to_owned(),
        )
    })?;
    level.warm(
        &binary,
        &["__supervisor".to_owned()],
        isolation::Network::Doors,
    );
    level.guard_with(&binary, &["__thaw".to_owned()]);
    let relay_dir = data.join("models");
    let socket = data.join("relay.sock");
    let command = [
        binary.clone().into_os_string(),
        "__relay".into(),
        "--socket".into(),
        socket.clone().into_os_string(),
        "--dir".into(),
        relay_dir.clone().into_os_string(),
    ];
    let relay = gateway::RelayHandle::new(gateway::relay::RelayConfig {
        socket,
        dir: relay_dir,
        command: command.to_vec(),
    });
    let host = rustix::system::uname();
    let node = format!(
        "{}:{}",
        host.nodename().to_string_lossy(),
        std::process::id()
    );
    let images = data.join("images");
    let images = image::Store::open(&images).map_err(|e| {
        ApiError::new(
            ErrorCode::Unavailable,
            format!("cannot open the images in {}: {e}", images.display()),
        )
    })?;
    let authority = data.join("authority");
    let authority = egress::Authority::open(&authority).map_err(|e| {
        let what = format!(
            "cannot open the certificate authority in {}: {e}",
            authority.display()
        );
        ApiError::new(ErrorCode::Unavailable, what)
    })?;
    let secrets = data.join("store");
    let secrets = secret::Secrets::open(&secrets, secret::Env::of_process()).map_err(|e| {
        let what = format!("cannot open the secrets in {}: {e}", secrets.display());
        ApiError::new(ErrorCode::Unavailable, what)
    })?;
    Ok(Shared {
        images,
        authority: Arc::new(authority),
        secrets,
        unpacking: tokio::sync::RwLock::new(()),
        store: Arc::new(store),
        pool: Arc::from(pool),
        level: Arc::new(level),
        stores: Arc::default(),
        relay,
        config: Config {
            data: data.to_owned(),
            binary,
            keep_cuts: KEEP_CUTS,
            node,
        },
    })
}

/// Makes the data directory, closed to others.
fn prepare(data: &Path) -> Result<PathBuf, ApiError> {
    std::fs::create_dir_all(data).map_err(|e| unusable(data, "make the data directory", &e))?;
    let data = data
        .canonicalize()
        .map_err(|e| unusable(data, "resolve the data directory", &e))?;
    refuse_foreign(&data)?;
    // First, so that one that is killed here does not take what it made for somebody else's.
    lock_file(&data, LOCK)?;
    for dir in ["journal", "sandboxes"] {
        let path = data.join(dir);
        std::fs::create_dir_all(&path).map_err(|e| unusable(&path, "make", &e))?;
    }
    // Only now: of a directory that cannot serve nothing is changed.
    let closed = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&data, closed)
        .map_err(|e| unusable(&data, "close the data directory to others", &e))?;
    Ok(data)
}

/// What a data directory may hold before its first daemon: what commands without a daemon leave, and what file systems do.
const BEFORE_FIRST: [&str; 3] = ["daemon.log", "harness", "lost+found"];

/// Refuses a directory of somebody else's: closing `/tmp` or a home to others would do harm.
fn refuse_foreign(data: &Path) -> Result<(), ApiError> {
    if data.join(LOCK).exists() {
        return Ok(());
    }
    let entries = std::fs::read_dir(data).map_err(|e| unusable(data, "list", &e))?;
    for entry in entries {
        let name = entry.map_err(|e| unusable(data, "list", &e))?.file_name();
        if !BEFORE_FIRST.iter().any(|known| name == **known) {
            let what = format!(
                "{} is no data directory: it holds `{}` already",
                data.display(),
                name.to_string_lossy().escape_debug()
            );
            return Err(ApiError::new(ErrorCode::Invalid, what)
                .hint("name a new or an empty directory: --data or DURABLE_DATA"));
        }
    }
    Ok(())
}

/// Takes the data directory for this process; the second lock is held until it serves, and so waited for by whoever wants that.
/// `None`: a command wants a daemon, and there is one that serves.
fn lock(data: &Path, options: &Serve) -> Result<Option<(File, File)>, ApiError> {
    let (path, mut file) = lock_file(data, LOCK)?;
    let (start, starting) = lock_file(data, "daemon.start")?;
    // From here on nobody else is starting: whoever has the first lock serves, or has ended and is not gone yet.
    starting.lock().map_err(|e| unusable(&start, "lock", &e))?;
    let taken = match file.try_lock() {
        Ok(()) => Ok(()),
        Err(std::fs::TryLockError::WouldBlock) => {
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            let holder = holder.trim();
            if !options.announce {
                return Err(ApiError::new(
                    ErrorCode::Conflict,
                    format!("a daemon (pid {holder}) already serves {}", data.display()),
                )
                .hint("use that one, end it first, or name another directory with --data"));
            }
            let dir = File::open(data).map_err(|e| unusable(data, "open", &e))?;
            match UnixStream::connect(socket_in(&dir)) {
                Ok(_) => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::NotFound && is_alive(holder) => {
                    let gone = format!(
                        "the daemon of {} (pid {holder}) has no {SOCKET} there any more",
                        data.display()
                    );
                    return Err(ApiError::new(ErrorCode::Unavailable, gone)
                        .hint("end it; sandboxes run on, and the next command starts it anew"));
                }
                Err(_) => file.lock(),
            }
        }
        Err(std::fs::TryLockError::Error(e)) => Err(e),
    };
    taken.map_err(|e| unusable(&path, "lock", &e))?;
    // In place: a full disk has no block for what was emptied first.
    let text = format!("{}\n", std::process::id());
    file.write_all(text.as_bytes())
        .and_then(|()| file.set_len(text.len() as u64))
        .map_err(|e| unusable(&path, "write", &e))?;
    Ok(Some((file, starting)))
}

fn is_alive(pid: &str) -> bool {
    let pid = pid.parse().ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

fn lock_file(data: &Path, name: &str) -> Result<(PathBuf, File), ApiError> {
    let path = data.join(name);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| unusable(&path, "open", &e))?;
    Ok((path, file))
}

/// Where the socket of a data directory is, by way of a descriptor: its path may be longer than a socket address.
fn socket_in(dir: &File) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd())
}

/// The API's Unix socket; only our own user gets through the directory around it.
fn api_socket(data: &Path) -> Result<UnixListener, ApiError> {
    let path = data.join(SOCKET);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(unusable(&path, "replace", &e));
        }
        _ => {}
    }
    let dir = File::open(data).map_err(|e| unusable(data, "open", &e))?;
    UnixListener::bind(socket_in(&dir)).map_err(|e| unusable(&path, "listen on", &e))
}

/// Reads the token for TCP clients; makes it the first time.
fn token(data: &Path) -> Result<String, ApiError> {
    let path = data.join("token");
    match std::fs::read_to_string(&path) {
        Ok(token) if token.trim().len() >= 32 => return Ok(token.trim().to_owned()),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(unusable(&path, "read", &e)),
    }
    let bytes: [u8; 32] = rand::random();
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| unusable(&path, "make", &e))?;
    writeln!(file, "{token}").map_err(|e| unusable(&path, "write", &e))?;
    Ok(token)
}

/// Writes the one line that the starting command waits for, and lets go of stdout.
pub(crate) fn announce(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let told = writeln!(out, "{line}").and_then(|()| out.flush());
    let null = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    told
}

fn unusable(path: &Path, verb: &str, error: &io::Error) -> ApiError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "take a directory that you may write to: --data or DURABLE_DATA"
        }
        io::ErrorKind::StorageFull => {
            "free space, or take a directory on another disk: --data or DURABLE_DATA"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "take a directory on a writable disk: --data or DURABLE_DATA"
        }
        _ => "take another directory: --data or DURABLE_DATA",
    };
    ApiError::new(
        ErrorCode::Unavailable,
        format!("cannot {verb} {}: {error}", path.display()),
    )
    .hint(hint)
}

fn of_pool(error: &workspace::Error) -> ApiError {
    let mut text = error.to_string();
    if let Some(cause) = std::error::Error::source(error) {
        text = format!("{text}: {cause}");
    }
    let api = ApiError::new(error.code(), text);
    match error.hint() {
        Some(hint) => api.hint(hint),
        None => api.hint("`durable doctor` tells what this machine can do"),
    }
}

fn of_open(error: &journal::OpenError) -> ApiError {
    let code = match error {
        journal::OpenError::InUse { .. } => ErrorCode::Conflict,
        journal::OpenError::Newer { .. } | journal::OpenError::NotAJournal { .. } => {
            ErrorCode::Invalid
        }
        journal::OpenError::DamagedWal { .. } => ErrorCode::Corrupt,
        _ => ErrorCode::Unavailable,
    };
    let mut text = error.to_string();
    if let Some(cause) = std::error::Error::source(error) {
        text = format!("{text}: {cause}");
    }
    ApiError::new(code, text)
        .hint("nothing was changed; --data or DURABLE_DATA names another directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(dir: &Path) -> u32 {
        std::fs::metadata(dir).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("thesis"), "").unwrap();
        assert_eq!(prepare(dir.path()).unwrap_err().code, ErrorCode::Invalid);
        assert_eq!(mode(dir.path()), 0o755);
        std::fs::remove_file(dir.path().join("thesis")).unwrap();
        std::fs::write(dir.path().join("daemon.log"), "").unwrap();
        prepare(dir.path()).unwrap();
        assert_eq!(mode(dir.path()), 0o700);
        // Whose it is was seen, and is so for the next one.
        prepare(dir.path()).unwrap();
    }
}
