//! The model gateway of a sandbox: its journal, its socket, and the endpoint with the key that stays on the host.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use gateway::{BoxFuture, Gateway, Ledger, Secret, Sender, Upstream};
use protocol::api::StartSession;
use protocol::{ApiError, ErrorCode, Event, Seq, Stored};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::sync::watch;

use crate::error;
use crate::sandbox::{Handle, Request};

/// Events read at a time for a client that comes back.
const PAGE: usize = 256;

/// The endpoint and its key, as kept in the data directory with mode 0600.
#[derive(Serialize, Deserialize)]
struct Endpoint {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl Endpoint {
    fn upstream(&self) -> Result<Upstream, ApiError> {
        Upstream::new(&self.url, self.key.as_deref().map(Secret::new))
            .map_err(|e| ApiError::new(ErrorCode::Invalid, error::chain(&e)))
    }
}

/// The sandbox's own task is the only writer of its journal, so the gateway writes through it.
struct Writer {
    handle: Handle,
    sender: watch::Receiver<Sender>,
}

impl Writer {
    async fn record(&self, events: Vec<Event>) -> Result<Seq, String> {
        self.handle.record(events).await.map_err(|e| e.message)
    }
}

impl Ledger for Writer {
    fn append(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(self.record(events))
    }

    // A group commit costs less than the wait between two pieces of a model's answer, so nothing is gained by less.
    fn append_relaxed(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(self.record(events))
    }

    fn read(&self, from: Seq, to: Seq) -> BoxFuture<'_, Result<Vec<Stored>, String>> {
        let limit = usize::try_from(to.0.saturating_sub(from.0) + 1)
            .unwrap_or(PAGE)
            .min(PAGE);
        let read = self.handle.shared.store.read(self.handle.id, from, limit);
        Box::pin(async move {
            let mut events = read.await.map_err(|e| error::chain(&e))?;
            events.retain(|stored| stored.seq <= to);
            Ok(events)
        })
    }

    fn sender(&self) -> Sender {
        self.sender.borrow().clone()
    }
}

impl Handle {
    /// Opens the gateway and its socket. A failure is logged: the sandbox works without, its models do not.
    pub(crate) async fn serve_models(&self) {
        match self.ask(|reply| Request::Models { reply }).await {
            Ok(models) => self.serve_these_models(models),
            Err(problem) => no_gateway(self, &problem),
        }
    }

    /// The same where it is known what the journal holds of them.
    pub(crate) fn serve_these_models(&self, models: gateway::Models) {
        if let Err(problem) = self.try_serve_models(models) {
            no_gateway(self, &problem);
        }
    }

    fn try_serve_models(&self, models: gateway::Models) -> Result<(), ApiError> {
        let path = self.shared.secret_file(self.id);
        let upstream = match std::fs::read(&path) {
            Ok(bytes) => {
                let endpoint: Endpoint = serde_json::from_slice(&bytes)
                    .map_err(|e| error::internal("the endpoint file is not readable", &e))?;
                Some(endpoint.upstream()?)
            }
            Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => None,
            Err(other) => return Err(error::internal("the endpoint file is not readable", &other)),
        };
        let listener = listen(&self.state_dir())
            .map_err(|e| error::internal("no gateway socket can be made", &e))?;
        let ledger = Writer {
            // Without the gateway, which holds this: each would keep the other for ever.
            handle: Self {
                gateway: Arc::default(),
                ..self.clone()
            },
            sender: self.sender.subscribe(),
        };
        let gateway = Gateway::open(
            Arc::new(ledger),
            self.shared.relay.clone(),
            models,
            upstream,
        );
        let serving = gateway.clone();
        if self.gateway.set(gateway).is_ok() {
            tokio::spawn(serving.serve(listener));
        }
        Ok(())
    }

    /// Keeps the endpoint that a session names, and uses it from now on.
    pub(crate) async fn configure_models(&self, ask: &StartSession) -> Result<(), ApiError> {
        let Some(url) = ask.model_url.clone() else {
            if ask.model_key.is_some() {
                return Err(
                    ApiError::new(ErrorCode::Invalid, "a model key without a model URL")
                        .hint("give both"),
                );
            }
            return Ok(());
        };
        let endpoint = Endpoint {
            url,
            key: ask.model_key.clone(),
        };
        let upstream = endpoint.upstream()?;
        let path = self.shared.secret_file(self.id);
        let saved = tokio::task::spawn_blocking(move || save(&path, &endpoint)).await;
        saved
            .map_err(|e| error::internal("the save was abandoned", &e))?
            .map_err(|e| error::internal("the model endpoint cannot be kept", &e))?;
        if let Some(gateway) = self.gateway.get() {
            gateway.configure(Some(upstream));
        }
        Ok(())
    }
}

/// Gives a fork the endpoint of its source, in a file of its own.
pub(crate) fn copy_endpoint(from: &Path, to: &Path) -> Result<(), ApiError> {
    let unusable =
        |e: &dyn std::error::Error| error::internal("the model endpoint cannot be copied", e);
    let bytes = match std::fs::read(from) {
        Ok(bytes) => bytes,
        Err(absent) if absent.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(other) => return Err(unusable(&other)),
    };
    let endpoint: Endpoint = serde_json::from_slice(&bytes).map_err(|e| unusable(&e))?;
    save(to, &endpoint).map_err(|e| unusable(&e))
}

fn no_gateway(handle: &Handle, problem: &ApiError) {
    tracing::error!(sandbox = %handle.name, error = %problem.message, "no model gateway");
}

/// Listens in the state directory, whose path may be longer than a socket address.
fn listen(dir: &Path) -> std::io::Result<UnixListener> {
    let path = dir.join(protocol::paths::state::GATEWAY);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let handle = std::fs::File::open(dir)?;
    let short = format!(
        "/proc/self/fd/{}/{}",
        handle.as_raw_fd(),
        protocol::paths::state::GATEWAY
    );
    let listener = UnixListener::bind(short)?;
    // PID 1 has another uid in another user namespace; the directory around it is closed to everybody else.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

fn save(path: &Path, endpoint: &Endpoint) -> std::io::Result<()> {
    let json = serde_json::to_vec(endpoint)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    let temporary = path.with_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(&json)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    std::fs::File::open(dir)?.sync_all()
}
