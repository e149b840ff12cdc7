//! The way out of a sandbox: its policy, the gateway at its doors, secrets under its lease, and the words of people.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use egress::{
    Approval, Approver, Ask, BoxFuture, Doors, Egress, Ledger, Owners, Parts, Placeholder, Secrets,
};
use policy::{Explanation, Host, Policy, Says, Scope, Shown};
use protocol::control::{Door, DoorKind};
use protocol::egress::{
    ApprovalView, CheckRequest, DecideApproval, DenialView, EffectState, EffectView, PolicyView,
    SecretView,
};
use protocol::{
    ApiError, ApprovalId, EffectId, Epoch, ErrorCode, Event, OpId, Outgoing, Passed, SandboxId,
    Seq, Stored,
};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::engine::Engine;
use crate::models::Writer;
use crate::sandbox::{Handle, Question, Request};
use crate::shared::Shared;
use crate::{error, link};

/// Events read at a time.
const PAGE: usize = 1024;
/// Placeholders of a sandbox, in its state directory.
const PLACEHOLDERS: &str = "placeholders.json";
/// What became of a request whose daemon was killed.
const LOST: &str = "the daemon was lost while it was under way";

/// The gateway of one sandbox, from the start of its task to its end. A boot's doors are given to it when they are there.
pub(crate) struct Way {
    dir: PathBuf,
    epoch: Epoch,
    egress: watch::Sender<Option<Arc<Egress>>>,
    policy: Mutex<Arc<Policy>>,
    serving: Mutex<Option<AbortHandle>>,
    /// Placeholders by the names of their secrets, once they were read or made.
    shown: Mutex<Option<BTreeMap<String, String>>>,
}

impl Way {
    pub(crate) fn new(dir: PathBuf, epoch: Epoch) -> Self {
        Self {
            dir,
            epoch,
            egress: watch::Sender::new(None),
            policy: Mutex::new(Arc::new(Policy::empty())),
            serving: Mutex::default(),
            shown: Mutex::default(),
        }
    }

    /// Takes the doors of the boot that was just reached, and serves them until the next one is, or the way is closed.
    pub(crate) fn serve(self: &Arc<Self>) {
        let way = Arc::clone(self);
        let task = tokio::spawn(async move {
            let mut opened = way.egress.subscribe();
            let egress = match opened.wait_for(Option::is_some).await {
                Ok(opened) => opened.clone(),
                Err(_) => None,
            };
            let Some(egress) = egress else { return };
            match link::doors::doors(&way.dir, way.epoch).await {
                Ok(open) => egress.serve(sorted(open)).await,
                Err(why) => {
                    // Nothing leaves then, which is what an empty policy says.
                    tracing::warn!(why = %error::chain(&why), dir = %way.dir.display(), "a sandbox has no way out");
                }
            }
        });
        self.replace(Some(task.abort_handle()));
    }

    /// Nothing leaves any more.
    pub(crate) fn close(&self) {
        self.replace(None);
        if let Some(egress) = self.egress.send_replace(None) {
            tokio::spawn(async move { egress.close().await });
        }
    }

    fn replace(&self, task: Option<AbortHandle>) {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut *serving, task) {
            before.abort();
        }
    }

    /// Returns what operations find in their environment in place of secrets.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let policy = self.policy();
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(texts) = &*shown else {
            return BTreeMap::new();
        };
        let named = policy.secrets().filter_map(|secret| {
            let Some(Shown::Env(variable)) = &secret.placeholder else {
                return None;
            };
            Some((variable.clone(), texts.get(&secret.name)?.clone()))
        });
        named.collect()
    }

    fn placeholders(&self) -> Vec<Placeholder> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let texts = shown.iter().flatten();
        texts
            .map(|(secret, text)| Placeholder {
                secret: secret.clone(),
                text: text.clone(),
            })
            .collect()
    }

    fn policy(&self) -> Arc<Policy> {
        let policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&policy)
    }

    fn set_policy(&self, policy: &Arc<Policy>) {
        let mut current = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::clone(policy);
        drop(current);
        if let Some(egress) = &*self.egress.borrow() {
            egress.set_policy(Arc::clone(policy));
        }
    }
}

/// Sorts a boot's doors by what arrives there.
fn sorted(open: Vec<(Door, OwnedFd)>) -> Doors {
    let mut doors = Doors::default();
    for (door, socket) in open {
        match door.kind {
            DoorKind::Tcp => doors.tcp.push(socket.into()),
            DoorKind::Udp => doors.dns = Some(socket.into()),
            DoorKind::Proxy => doors.proxy = Some(socket.into()),
        }
    }
    doors
}

/// Reads a policy that somebody gives.
pub(crate) fn parse(text: &str) -> Result<Policy, ApiError> {
    let unusable = |why: &dyn std::fmt::Display| {
        let what = format!("the policy is not usable: {why}");
        ApiError::new(ErrorCode::Invalid, what).hint("docs/policy.md describes the format")
    };
    let policy = Policy::parse(text).map_err(|wrong| unusable(&wrong))?;
    for secret in policy.secrets() {
        let source = secret.from.parse::<secret::Source>();
        source.map_err(|wrong| unusable(&format!("secret `{}`: {wrong}", secret.name)))?;
        if matches!(secret.placeholder, Some(Shown::File(_))) {
            let files = format!(
                "secret `{}`: a placeholder can stand in a variable only, not in a file",
                secret.name
            );
            return Err(unusable(&files));
        }
    }
    Ok(policy)
}

/// Returns the ports at which a policy wants doors, besides those that every sandbox has.
pub(crate) fn ports(policy: Option<&str>) -> Vec<u16> {
    journaled(policy).ports().into_iter().collect()
}

/// Reads the policy that a journal holds. One that a later version wrote and this one cannot read allows nothing.
fn journaled(policy: Option<&str>) -> Policy {
    let Some(text) = policy else {
        return Policy::empty();
    };
    Policy::parse(text).unwrap_or_else(|wrong| {
        tracing::error!(%wrong, "a journaled policy is not understood, so nothing leaves");
        Policy::empty()
    })
}

impl Ledger for Writer {
    fn append(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(self.record(events))
    }

    fn append_relaxed(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(self.record(events))
    }
}

/// Asks the supervisor whose connection it is.
struct Supervisor {
    dir: PathBuf,
    epoch: Epoch,
}

impl Owners for Supervisor {
    fn owner(&self, client: SocketAddr, server: SocketAddr) -> BoxFuture<'_, Option<OpId>> {
        Box::pin(async move {
            let owner = link::doors::owner(&self.dir, self.epoch, client, server).await;
            owner.unwrap_or_else(|why| {
                tracing::debug!(why = %error::chain(&why), "nobody says whose connection it is");
                None
            })
        })
    }
}

/// Resolves what the policy in force refers to, as long as the way is open: a sandbox that was fenced or removed has none.
struct Released {
    shared: Arc<Shared>,
    way: Arc<Way>,
}

impl Secrets for Released {
    fn resolve(&self, name: &str) -> BoxFuture<'_, Result<Arc<secret::Value>, String>> {
        let name = name.to_owned();
        Box::pin(async move {
            if self.way.egress.borrow().is_none() {
                return Err("this sandbox may not use secrets any more".to_owned());
            }
            let policy = self.way.policy();
            let source = policy.secrets().find(|secret| secret.name == name);
            let source = source.ok_or_else(|| format!("the policy names no secret `{name}`"))?;
            let source: secret::Source = source
                .from
                .parse()
                .map_err(|wrong: secret::SourceError| wrong.to_string())?;
            let value = self.shared.secrets.resolve(&source).await;
            value.map_err(|why| error::chain(&why))
        })
    }

    fn fingerprint(&self, value: &secret::Value) -> String {
        value.fingerprint(self.shared.secrets.fingerprint_key())
    }

    fn placeholders(&self) -> Vec<Placeholder> {
        self.way.placeholders()
    }
}

/// Asks people.
struct People {
    handle: Handle,
}

impl Approver for People {
    fn ask(&self, ask: Ask) -> BoxFuture<'_, Approval> {
        Box::pin(async move {
            let question = Question {
                request: ask.request,
                rule: ask.rule,
                digest: ask.digest,
            };
            let asked = self
                .handle
                .ask(|reply| Request::Approval { question, reply });
            let word = match asked.await {
                Ok(word) => word,
                Err(problem) => {
                    return Approval::Refused {
                        why: problem.message,
                    };
                }
            };
            match tokio::time::timeout(ask.timeout, word).await {
                Ok(Ok(true)) => Approval::Allowed,
                Ok(Ok(false)) => Approval::Refused {
                    why: "a person refused it".to_owned(),
                },
                Ok(Err(_)) => Approval::Refused {
                    why: "the sandbox is gone".to_owned(),
                },
                Err(_) => Approval::TimedOut,
            }
        })
    }
}

impl Handle {
    /// Opens the way out of a sandbox that a daemon before this one served: what that one had under way was broken off.
    pub(crate) async fn open_way_again(&self) {
        let open = self.ask(|reply| Request::OpenEffects { reply }).await;
        let policy = self.ask(|reply| Request::Spec { reply }).await;
        let (Ok(open), Ok(spec)) = (open, policy) else {
            return;
        };
        let broken = open.into_iter().map(|effect| Event::EffectSettled {
            effect,
            status: None,
            sent: Passed::default(),
            received: Passed::default(),
            millis: 0,
            error: Some(LOST.to_owned()),
        });
        let broken: Vec<Event> = broken.collect();
        if !broken.is_empty()
            && let Err(problem) = self.record(broken).await
        {
            tracing::warn!(sandbox = %self.name, error = %problem.message, "effects stay open");
        }
        self.open_way(spec.policy.as_deref());
    }

    /// Opens the way out.
    pub(crate) fn open_way(&self, policy: Option<&str>) {
        let policy = Arc::new(journaled(policy));
        self.way.set_policy(&policy);
        let egress = Egress::open(Parts {
            authority: Arc::clone(&self.shared.authority),
            policy,
            ledger: Arc::new(Writer::new(self)),
            owners: Arc::new(Supervisor {
                dir: self.way.dir.clone(),
                epoch: self.way.epoch,
            }),
            secrets: Arc::new(Released {
                shared: self.shared.clone(),
                way: Arc::clone(&self.way),
            }),
            approver: Arc::new(People {
                handle: self.clone(),
            }),
            resolver: Arc::new(egress::SystemResolver),
        });
        self.way.egress.send_replace(Some(egress));
    }

    /// Returns the policy in force.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn policy(&self) -> Result<PolicyView, ApiError> {
        let spec = self.ask(|reply| Request::Spec { reply }).await?;
        Ok(view(spec.policy.unwrap_or_default()))
    }

    /// Puts another policy in force, at once: what it does not allow any more is broken off.
    ///
    /// # Errors
    /// `invalid` for a text that is no policy, with the line; nothing is changed then.
    pub async fn set_policy(&self, text: String) -> Result<PolicyView, ApiError> {
        let text = if text.trim().is_empty() {
            String::new()
        } else {
            text
        };
        let policy = Arc::new(parse(&text)?);
        let set = Event::PolicySet {
            policy: text.clone(),
        };
        self.record(vec![set]).await?;
        self.way.set_policy(&policy);
        let ports: BTreeSet<u16> = policy.ports();
        if !ports.is_empty() {
            let ports: Vec<u16> = ports.into_iter().collect();
            match link::doors::listen(&self.way.dir, self.way.epoch, &ports).await {
                Ok(doors) => {
                    for port in doors.unopened {
                        tracing::warn!(sandbox = %self.name, port = port.port, problem = %port.problem, "a door is missing");
                    }
                    self.way.serve();
                }
                // Where nothing runs, the next start opens them.
                Err(why) => {
                    tracing::debug!(sandbox = %self.name, why = %error::chain(&why), "no doors were added");
                }
            }
        }
        self.show_placeholders().await;
        Ok(view(text))
    }

    /// Makes the placeholders that the policy wants shown and that this sandbox has none of yet. They stay what they are, whatever
    /// becomes of the secrets: a program that runs for days goes on with what it found.
    pub(crate) async fn show_placeholders(&self) {
        let policy = self.way.policy();
        let wanted = policy
            .secrets()
            .filter(|secret| secret.placeholder.is_some());
        let wanted: Vec<(String, String)> = wanted
            .map(|secret| (secret.name.clone(), secret.from.clone()))
            .collect();
        if wanted.is_empty() {
            return;
        }
        let file = self.way.dir.join(PLACEHOLDERS);
        let known = {
            let shown = self.way.shown.lock();
            shown.unwrap_or_else(PoisonError::into_inner).clone()
        };
        let mut texts = match known {
            Some(known) => known,
            None => std::fs::read(&file)
                .ok()
                .and_then(|text| serde_json::from_slice(&text).ok())
                .unwrap_or_default(),
        };
        let before = texts.len();
        for (name, from) in wanted {
            if texts.contains_key(&name) {
                continue;
            }
            let Ok(source) = from.parse::<secret::Source>() else {
                continue;
            };
            match self.shared.secrets.resolve(&source).await {
                Ok(value) => {
                    let text = secret::placeholder(&value, &rand::random());
                    texts.insert(name, text);
                }
                Err(why) => {
                    tracing::warn!(sandbox = %self.name, secret = name, why = %error::chain(&why), "no placeholder is shown");
                }
            }
        }
        if texts.len() > before
            && let Err(why) = keep_placeholders(&file, &texts)
        {
            tracing::warn!(sandbox = %self.name, %why, "the placeholders will be others after a restart of the daemon");
        }
        let mut shown = self
            .way
            .shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *shown = Some(texts);
    }

    /// Says what the policy in force makes of a request.
    #[must_use]
    pub fn check_policy(&self, ask: &CheckRequest) -> Explanation {
        let method = ask.method.as_deref().unwrap_or("GET");
        policy::explain(&self.way.policy(), &ask.url, method)
    }

    /// Lists the requests that left, oldest first; of one operation where one is named.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn effects(&self, op: Option<&OpId>) -> Result<Vec<EffectView>, ApiError> {
        let mut effects: BTreeMap<Seq, EffectView> = BTreeMap::new();
        let mut begun: BTreeMap<EffectId, Seq> = BTreeMap::new();
        each_event(&self.shared, self.id, |stored| {
            let at = stored.at;
            match stored.event {
                Event::EffectBegun {
                    effect,
                    request,
                    class,
                    rule,
                    secrets,
                } if op.is_none() || request.op.as_ref() == op => {
                    begun.insert(effect.clone(), stored.seq);
                    let view = EffectView {
                        id: effect,
                        seq: stored.seq,
                        at_ms: at,
                        request,
                        class,
                        rule,
                        secrets,
                        state: EffectState::Open,
                        status: None,
                        sent: Passed::default(),
                        received: Passed::default(),
                        millis: None,
                        error: None,
                    };
                    effects.insert(stored.seq, view);
                }
                Event::EffectSettled {
                    effect,
                    status,
                    sent,
                    received,
                    millis,
                    error,
                } => {
                    let known = begun.get(&effect).and_then(|seq| effects.get_mut(seq));
                    if let Some(view) = known {
                        view.state = if error.is_some() {
                            EffectState::Broken
                        } else {
                            EffectState::Done
                        };
                        view.status = status;
                        view.sent = sent;
                        view.received = received;
                        view.millis = Some(millis);
                        view.error = error;
                    }
                }
                _ => {}
            }
        })
        .await?;
        Ok(effects.into_values().collect())
    }

    /// Lists what was to leave and did not, oldest first.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn denials(&self) -> Result<Vec<DenialView>, ApiError> {
        let mut denials = Vec::new();
        each_event(&self.shared, self.id, |stored| {
            if let Event::EgressDenied {
                request,
                reason,
                rule,
                message,
                times,
            } = stored.event
            {
                denials.push(DenialView {
                    seq: stored.seq,
                    at_ms: stored.at,
                    request,
                    reason,
                    rule,
                    message,
                    times,
                });
            }
        })
        .await?;
        Ok(denials)
    }

    /// Lists the requests that wait for a person's word, oldest first.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn approvals(&self) -> Result<Vec<ApprovalView>, ApiError> {
        self.ask(|reply| Request::Approvals { reply }).await
    }

    /// Gives the word for a request.
    ///
    /// # Errors
    /// `not_found` where nothing of that id waits.
    pub async fn decide(&self, approval: ApprovalId, word: DecideApproval) -> Result<(), ApiError> {
        let allow = word.allow;
        let decided = self.ask(|reply| Request::Decide {
            approval,
            allow,
            reply,
        });
        let (request, rule) = decided.await?;
        if word.remember {
            let policy = remembering(&self.way.policy(), &rule, &request, allow)?;
            self.set_policy(policy).await?;
        }
        Ok(())
    }
}

/// Makes a person's word a rule of a policy, and returns its text.
fn remembering(
    policy: &Policy,
    rule: &str,
    asked: &Outgoing,
    allow: bool,
) -> Result<String, ApiError> {
    let host =
        Host::parse(&asked.host).map_err(|e| error::internal("no host was asked for", &e))?;
    let (path, query) = match asked.path.as_deref().unwrap_or("/").split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (asked.path.as_deref().unwrap_or("/"), None),
    };
    let method = asked.method.as_deref().unwrap_or("GET");
    let act = policy::git_act(method, path, query);
    let request = policy::Request {
        host: &host,
        port: asked.port,
        tls: matches!(asked.protocol.as_str(), "https" | "wss"),
        method,
        path,
        query,
        websocket: matches!(asked.protocol.as_str(), "ws" | "wss"),
        git: act.as_ref(),
    };
    let says = if allow { Says::Allow } else { Says::Deny };
    let remembered = policy.remember(rule, &request, says, Scope::Request);
    let remembered = remembered.map_err(|why| {
        ApiError::new(
            ErrorCode::Invalid,
            format!("the word was given, and holds once: {why}"),
        )
    })?;
    Ok(remembered.text().to_owned())
}

fn view(policy: String) -> PolicyView {
    let digest = blake3::hash(policy.as_bytes()).to_hex().to_string();
    PolicyView { policy, digest }
}

impl Engine {
    /// Keeps a secret in the daemon's own store, or gives it another value: the next request uses that.
    ///
    /// # Errors
    /// `invalid` for a name or value that cannot be one.
    pub async fn set_secret(
        &self,
        name: String,
        value: secret::Value,
    ) -> Result<SecretView, ApiError> {
        let set = self.shared.secrets.set(&name, value).await;
        set.map_err(|e| of_secret(&e))?;
        let all = self.secrets().await?;
        let set = all.into_iter().find(|view| view.name == name);
        set.ok_or_else(|| no_secret(&name))
    }

    /// Lists the secrets in the daemon's own store: their names, never their values.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn secrets(&self) -> Result<Vec<SecretView>, ApiError> {
        let entries = self
            .shared
            .secrets
            .list()
            .await
            .map_err(|e| of_secret(&e))?;
        let views = entries.into_iter().map(|entry| SecretView {
            name: entry.name,
            changed_at_ms: entry.changed,
            fingerprint: entry
                .fingerprint
                .unwrap_or_else(|why| format!("(cannot be opened: {})", error::chain(&why))),
        });
        Ok(views.collect())
    }

    /// Takes a secret out of the daemon's own store: no request gets it from now on.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn remove_secret(&self, name: String) -> Result<(), ApiError> {
        match self.shared.secrets.remove(&name).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(no_secret(&name)),
            Err(why) => Err(of_secret(&why)),
        }
    }
}

fn keep_placeholders(
    file: &std::path::Path,
    texts: &BTreeMap<String, String>,
) -> std::io::Result<()> {
    let fresh = file.with_extension("new");
    let mut options = std::fs::File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut to = options.open(&fresh)?;
    to.write_all(serde_json::to_string(texts)?.as_bytes())?;
    to.sync_all()?;
    std::fs::rename(fresh, file)
}

fn no_secret(name: &str) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("there is no secret `{name}`"))
        .hint("`durable secret ls` lists them")
}

fn of_secret(why: &secret::Error) -> ApiError {
    ApiError::new(ErrorCode::Invalid, error::chain(why))
}

/// Goes through a journal from its first event on.
async fn each_event(
    shared: &Shared,
    id: SandboxId,
    mut see: impl FnMut(Stored),
) -> Result<(), ApiError> {
    let mut next = Seq(1);
    loop {
        let events = shared.store.read(id, next, PAGE).await;
        let events = events.map_err(|e| error::of_journal(&e))?;
        let Some(last) = events.last() else {
            return Ok(());
        };
        next = last.seq.next();
        events.into_iter().for_each(&mut see);
    }
}
