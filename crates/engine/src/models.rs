//! The model gateway of a sandbox: its journal, its socket, and the endpoint with the key that stays on the host.

use std::collections::HashSet;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use gateway::{BoxFuture, Gateway, Ledger, Secret, Sender, Upstream};
use protocol::api::StartSession;
use protocol::{ApiError, ErrorCode, Event, SandboxId, Seq, SessionId, Stored};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::sync::watch;

use crate::error;
use crate::sandbox::{Handle, Request};
use crate::shared::{Shared, sync_dir, write_private};

/// Events read at a time for a client that comes back.
const PAGE: usize = 256;

/// The endpoint and its key, as kept in the data directory with mode 0600.
#[derive(Serialize, Deserialize)]
pub(crate) struct Endpoint {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl Endpoint {
    /// Returns the endpoint of a session in a fork: what is asked for, and what is not as the source has it. A key is for
    /// the address that it was given with, and no other.
    pub(crate) fn of_fork(
        source: Option<Self>,
        url: Option<String>,
        key: Option<String>,
    ) -> Result<Option<Self>, ApiError> {
        let endpoint = match (source, url, key) {
            (_, Some(url), key) => Self { url, key },
            (Some(source), None, Some(key)) => Self {
                key: Some(key),
                ..source
            },
            (source, None, None) => return Ok(source),
            (None, None, Some(_)) => return Err(no_url()),
        };
        // An address that cannot be one is told of before anything is made.
        endpoint.upstream()?;
        Ok(Some(endpoint))
    }

    /// Returns what a sandbox uses, where it uses any.
    pub(crate) fn of(shared: &Shared, sandbox: SandboxId) -> Result<Option<Self>, ApiError> {
        load(&shared.secret_file(sandbox))
    }

    /// Keeps it for a session that is about to be journaled with its sandbox. Durable on return.
    pub(crate) fn keep_for(&self, shared: &Shared, session: &SessionId) -> Result<(), ApiError> {
        save(&shared.session_secret_file(session), self)
            .map_err(|e| error::internal("the model endpoint cannot be kept", &e))
    }

    fn upstream(&self) -> Result<Upstream, ApiError> {
        Upstream::new(&self.url, self.key.as_deref().map(Secret::new))
            .map_err(|e| ApiError::new(ErrorCode::Invalid, error::chain(&e)))
    }
}

/// The sandbox's own task is the only writer of its journal, so the gateways write through it.
pub(crate) struct Writer {
    handle: Handle,
    sender: watch::Receiver<Sender>,
}

impl Writer {
    /// Makes one. It keeps neither gateway: each would keep the other for ever.
    pub(crate) fn new(handle: &Handle) -> Self {
        let handle = Handle {
            gateway: Arc::default(),
            ..handle.clone()
        };
        let sender = handle.sender.subscribe();
        Self { handle, sender }
    }

    pub(crate) async fn record(&self, events: Vec<Event>) -> Result<Seq, String> {
        self.handle.record(events).await.map_err(|e| e.message)
    }

    pub(crate) async fn note(&self, events: Vec<Event>) -> Result<Seq, String> {
        self.handle.note(events).await.map_err(|e| e.message)
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
        let endpoint = Endpoint::of(&self.shared, self.id)?;
        let upstream = endpoint.map(|e| e.upstream()).transpose()?;
        let listener = listen(&self.state_dir())
            .map_err(|e| error::internal("no gateway socket can be made", &e))?;
        let gateway = Gateway::open(
            Arc::new(Writer::new(self)),
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
                return Err(no_url());
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

    /// Uses the endpoint from now on that was kept for a session, where one was.
    pub(crate) async fn take_endpoint(&self, session: &SessionId) -> Result<(), ApiError> {
        let kept = self.shared.session_secret_file(session);
        let own = self.shared.secret_file(self.id);
        let taken = tokio::task::spawn_blocking(move || -> Result<_, ApiError> {
            let endpoint = load(&kept)?;
            if endpoint.is_some() {
                std::fs::rename(&kept, &own)
                    .and_then(|()| sync_dir(&own))
                    .map_err(|e| error::internal("the model endpoint cannot be taken", &e))?;
            }
            Ok(endpoint)
        });
        let taken = taken
            .await
            .map_err(|e| error::internal("the model endpoint cannot be taken", &e))??;
        if let (Some(endpoint), Some(gateway)) = (taken, self.gateway.get()) {
            gateway.configure(Some(endpoint.upstream()?));
        }
        Ok(())
    }
}

fn no_url() -> ApiError {
    ApiError::new(ErrorCode::Invalid, "a model key without a model URL").hint("give both")
}

/// Removes the endpoint that was kept for a session which was not made, or is not to be.
pub(crate) fn drop_kept(shared: &Shared, session: &SessionId) {
    let path = shared.session_secret_file(session);
    match std::fs::remove_file(&path) {
        Err(left) if left.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%session, %left, "the endpoint of a session that is none stays");
        }
        _ => {}
    }
}

/// Removes what was kept for sessions that do not go on: a daemon died before it had journaled them.
pub(crate) fn sweep_kept(shared: &Shared, going_on: &HashSet<SessionId>) {
    let entries = std::fs::read_dir(shared.config.data.join("secrets"));
    for entry in entries.into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let session = name.to_str().and_then(Shared::session_of_secret);
        if let Some(session) = session.filter(|id| !going_on.contains(id)) {
            drop_kept(shared, &session);
        }
    }
}

fn load(path: &Path) -> Result<Option<Endpoint>, ApiError> {
    let unreadable =
        |e: &dyn std::error::Error| error::internal("the endpoint file is not readable", e);
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|e| unreadable(&e)),
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(other) => Err(unreadable(&other)),
    }
}

/// Gives a fork the endpoint of its source, in a file of its own.
pub(crate) fn copy_endpoint(from: &Path, to: &Path) -> Result<(), ApiError> {
    let unusable =
        |e: &dyn std::error::Error| error::internal("the model endpoint cannot be copied", e);
    match load(from)? {
        Some(endpoint) => save(to, &endpoint).map_err(|e| unusable(&e)),
        None => Ok(()),
    }
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
    write_private(path, &json)
}
