//! One request: judged, journaled, sent, and its answer brought back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use policy::{GitAct, Grant, Host, Policy, Verdict};
use protocol::{DenyReason, EffectKind, Outgoing};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use crate::body::{Body, Download, Peeked, Upload, keeping};
use crate::connection::{Busy, BusyOne, Client, Refused as Barred, outline};
use crate::deny::Denial;
use crate::effect::Effect;
use crate::flow::Ticket;
use crate::front::Switch;
use crate::github;
use crate::head;
use crate::inject::{self, Giving, Injected};
use crate::placeholder::{self, Watch};
use crate::scrub::Scrub;
use crate::seam::{Approval, Ask, Placeholder};
use crate::upstream::{self, Place, Target};
use crate::websocket;

/// How much of a body is looked at before it goes on: the commands of a push, a GraphQL document.
const MAX_PEEK: usize = 64 << 10;
const PEEK_TIMEOUT: Duration = Duration::from_secs(30);
/// What of a refused body is read away for a client that listens only then.
const MAX_DRAIN: u64 = 16 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// What all requests of one connection have in common.
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    /// Whether the client spoke TLS to us; then we speak it to the upstream.
    secure: bool,
    /// The one name that requests may be for; any, where nothing said it before.
    name: Option<Host>,
    /// The one port.
    port: Option<u16>,
    /// Whether any of them can be allowed.
    barred: Barred,
    /// Whether a request came, so that its refusal was journaled.
    told: AtomicBool,
    pub(crate) busy: Arc<Busy>,
}

impl Session {
    /// Requests without TLS.
    pub(crate) fn plain(client: Arc<Client>, name: Option<Host>, port: Option<u16>) -> Self {
        Self {
            client,
            secure: false,
            name,
            port,
            barred: Barred::Not,
            told: AtomicBool::new(false),
            busy: Arc::default(),
        }
    }

    /// Requests behind TLS that we answered in the name of `host`.
    pub(crate) fn secure(client: Arc<Client>, host: Host, port: u16, barred: Barred) -> Self {
        Self {
            client,
            secure: true,
            name: Some(host),
            port: Some(port),
            barred,
            told: AtomicBool::new(false),
            busy: Arc::default(),
        }
    }

    /// What is known of the connection for the journal.
    pub(crate) fn outline(&self) -> Outgoing {
        let protocol = if self.secure { "https" } else { "http" };
        match &self.name {
            Some(host) => outline(protocol, host, self.port.unwrap_or_default()),
            None => Outgoing {
                op: None,
                protocol: protocol.to_owned(),
                host: String::new(),
                port: self.port.unwrap_or_default(),
                method: None,
                path: None,
            },
        }
    }

    /// Journals the refusal of a connection on which no request came.
    pub(crate) async fn tell_if_silent(&self) {
        if let Barred::ByPolicy(denial) | Barred::ForGood(denial) = &self.barred
            && !self.told.load(Ordering::Acquire)
        {
            let mut request = self.outline();
            request.protocol = "tls".to_owned();
            self.client.deny(request, denial).await;
        }
    }

    /// Returns whom a request is for, if it may be.
    fn aim<B>(&self, request: &Request<B>) -> Result<(Host, u16), Denial> {
        if let Some(scheme) = request.uri().scheme_str() {
            let expected = if self.secure { "https" } else { "http" };
            if scheme != expected {
                return Err(Denial::malformed(format!(
                    "a request for {scheme}:// cannot come over a connection for {expected}://; use CONNECT"
                )));
            }
        } else if self.port.is_none() {
            return Err(Denial::malformed(
                "this is a proxy: it takes CONNECT, and requests with a whole URL",
            ));
        }
        let usual = if self.secure { 443 } else { 80 };
        let (host, port) = head::named(request, self.port.unwrap_or(usual))?;
        if let Some(name) = &self.name
            && *name != host
        {
            return Err(Denial::mismatch(format!(
                "the request is for {host}, and its connection is to {name}"
            )));
        }
        if self.port.is_some_and(|expected| expected != port) {
            return Err(Denial::mismatch(format!(
                "the request is for port {port} of {host}, and its connection is to port {}",
                self.port.unwrap_or_default()
            )));
        }
        Ok((host, port))
    }
}

/// A request with what was found out about it.
struct Asked {
    parts: Parts,
    host: Host,
    port: u16,
    secure: bool,
    websocket: bool,
    git: Option<GitAct>,
}

impl Asked {
    fn path(&self) -> &str {
        self.parts.uri.path()
    }

    fn judged_by(&self, policy: &Policy) -> Verdict<Grant> {
        policy.request(&policy::Request {
            host: &self.host,
            port: self.port,
            tls: self.secure,
            method: self.parts.method.as_str(),
            path: self.path(),
            query: self.parts.uri.query(),
            websocket: self.websocket,
            git: self.git.as_ref(),
        })
    }

    fn outgoing(&self, placeholders: &[Placeholder]) -> Outgoing {
        let protocol = match (self.websocket, self.secure) {
            (false, false) => "http",
            (false, true) => "https",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        let mut outgoing = outline(protocol, &self.host, self.port);
        outgoing.method = Some(method_text(&self.parts.method));
        let path = self
            .parts
            .uri
            .path_and_query()
            .map_or("/", PathAndQuery::as_str);
        outgoing.path = Some(placeholder::shown(placeholders, path));
        outgoing
    }

    /// Of everything that a person is asked about.
    fn digest(&self, rule: &str) -> String {
        let mut hash = blake3::Hasher::new();
        let header = |name| {
            self.parts
                .headers
                .get(name)
                .map_or(&b""[..], |value| value.as_bytes())
        };
        let refs = match &self.git {
            Some(GitAct::Push { refs, .. }) => refs.join("\n"),
            _ => String::new(),
        };
        let authority = head::authority(&self.host, self.port, self.secure);
        let path = self
            .parts
            .uri
            .path_and_query()
            .map_or("/", PathAndQuery::as_str);
        for part in [
            rule.as_bytes(),
            if self.secure { b"https" } else { b"http" },
            authority.as_bytes(),
            self.parts.method.as_str().as_bytes(),
            path.as_bytes(),
            header(CONTENT_TYPE),
            header(CONTENT_LENGTH),
            refs.as_bytes(),
        ] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().to_hex().to_string()
    }
}

/// Answers one request. Whatever goes wrong is an answer too.
pub(crate) async fn handle(
    session: Arc<Session>,
    mut request: Request<Incoming>,
    switch: Option<Arc<Switch>>,
) -> Response<Body> {
    let busy = session.busy.enter();
    let busy = Arc::new(busy.wait_for_room(&session.client.core).await);
    let switch = switch.filter(|_| head::may_switch(&request));
    let upgrade = switch.is_some().then(|| hyper::upgrade::on(&mut request));
    let listens = request.version() == Version::HTTP_2 || request.headers().contains_key(EXPECT);
    let is_head = request.method() == Method::HEAD;
    let response = match judge(&session, request, upgrade.clone()).await {
        Ok(allowed) => Box::pin(allowed.send(&session, &busy)).await,
        Err(Refused {
            denial,
            outgoing,
            body,
        }) => {
            session.client.deny(outgoing, &denial).await;
            refuse(&denial, body.filter(|_| !listens), &busy).await
        }
    };
    // hyper sends what it is given, and an answer to HEAD has no body.
    let response = if is_head {
        response.map(|_| keeping(crate::body::empty(), busy.clone()))
    } else {
        response
    };
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let Some(switch) = switch {
        switch.decide(switched);
    }
    if let Some(upgrade) = upgrade.filter(|_| !switched) {
        end_later(&session.client, upgrade);
    }
    response
}

/// After a request that asked to switch, hyper gives the connection away at its end, also where nothing was switched; then nobody
/// but us can close it properly.
fn end_later(client: &Arc<Client>, upgrade: OnUpgrade) {
    let closing = client.core.closing.clone();
    let end = async move {
        if let Ok(connection) = upgrade.await
            && let Err(error) = TokioIo::new(connection).shutdown().await
        {
            tracing::debug!(%error, "a client's connection was not closed properly");
        }
    };
    client.core.tasks.spawn(async move {
        closing.run_until_cancelled(end).await;
    });
}

/// A request that is not sent.
struct Refused {
    denial: Denial,
    outgoing: Outgoing,
    /// What of it is still to be read.
    body: Option<Peeked>,
}

async fn refuse(denial: &Denial, body: Option<Peeked>, busy: &Arc<BusyOne>) -> Response<Body> {
    if let Some(body) = body.filter(|body| !body.is_end_stream()) {
        // A client that is still sending when the connection is closed does not get to hear why.
        if timeout(DRAIN_TIMEOUT, body.drain(MAX_DRAIN)).await.is_err() {
            tracing::debug!("a refused body did not end in time");
        }
    }
    denial.response().map(|body| keeping(body, busy.clone()))
}

/// A request that may be sent.
struct Allowed {
    asked: Asked,
    body: Peeked,
    rule: String,
    grant: Grant,
    kind: EffectKind,
    outgoing: Outgoing,
    placeholders: Vec<Placeholder>,
    ticket: Ticket,
    upgrade: Option<OnUpgrade>,
}

async fn judge(
    session: &Arc<Session>,
    request: Request<Incoming>,
    upgrade: Option<OnUpgrade>,
) -> Result<Box<Allowed>, Refused> {
    let core = &session.client.core;
    let placeholders = core.secrets.placeholders();
    let aimed = session.aim(&request);
    let websocket = head::is_websocket(&request);
    let (parts, body) = request.into_parts();
    let mut body = Peeked::new(body);
    let (host, port, misaimed) = match aimed {
        Ok((host, port)) => (Some(host), port, None),
        Err(denial) => (
            session.name.clone(),
            session.port.unwrap_or_default(),
            Some(denial),
        ),
    };
    let Some(host) = host else {
        let mut outgoing = session.outline();
        outgoing.method = Some(method_text(&parts.method));
        let denial = misaimed.unwrap_or_else(|| Denial::malformed("the request names no host"));
        return Err(Refused {
            denial,
            outgoing,
            body: Some(body),
        });
    };
    let mut asked = Asked {
        parts,
        host,
        port,
        secure: session.secure,
        websocket,
        git: None,
    };
    let outgoing = asked.outgoing(&placeholders);
    let verdict = async {
        if let Some(denial) = misaimed {
            return Err(denial);
        }
        if let Barred::ForGood(denial) = &session.barred {
            return Err(denial.clone());
        }
        if asked.parts.method == Method::CONNECT {
            return Err(Denial::forbidden(
                DenyReason::Protocol,
                "CONNECT inside of a connection leads nowhere",
            ));
        }
        let head = look_into(&mut asked, &mut body).await?;
        let policy = core.policy();
        let verdict = asked.judged_by(&policy);
        if asked.secure && !matches!(verdict, Verdict::Deny { .. }) {
            connected(&asked, &policy)?;
        }
        let (rule, grant) = match verdict {
            Verdict::Allow { rule, grant } => (rule, grant),
            Verdict::Ask {
                rule,
                timeout,
                grant,
            } => {
                let mut request = outgoing.clone();
                request.op = session.client.op().await;
                let ask = Ask {
                    request,
                    digest: asked.digest(&rule),
                    rule: rule.clone(),
                    timeout,
                };
                approved(core.approver.ask(ask).await).map_err(|denial| denial.by_rule(&rule))?;
                (rule, grant)
            }
            Verdict::Deny {
                rule,
                reason,
                message,
            } => return Err(Denial::of_policy(rule, reason, message)),
        };
        if let Some(most) = grant.budget.requests_per_minute
            && !core.budgets.take(&rule, most, Instant::now())
        {
            let message =
                format!("rule `{rule}` allows {most} requests a minute, and they are used up");
            let denial = Denial::new(StatusCode::TOO_MANY_REQUESTS, DenyReason::Budget, message);
            return Err(denial.by_rule(&rule));
        }
        if let (Some(most), Some(length)) = (grant.budget.upload, body.size_hint().exact())
            && length > most
        {
            let message = format!("the body has {length} bytes, and rule `{rule}` allows {most}");
            let denial = Denial::new(StatusCode::PAYLOAD_TOO_LARGE, DenyReason::Budget, message);
            return Err(denial.by_rule(&rule));
        }
        Ok((rule, grant, head))
    };
    let verdict = verdict.await;
    session.told.store(true, Ordering::Release);
    let (rule, grant, head) = match verdict {
        Ok(allowed) => allowed,
        Err(denial) => {
            return Err(Refused {
                denial,
                outgoing,
                body: Some(body),
            });
        }
    };
    let kind = match grant.kind {
        EffectKind::Read => EffectKind::Read,
        EffectKind::Write => kind(&asked, &body, head.as_deref()),
    };
    let again = Asked {
        parts: bare(&asked.parts),
        host: asked.host.clone(),
        port: asked.port,
        secure: asked.secure,
        websocket: asked.websocket,
        git: asked.git.clone(),
    };
    let ticket = core.enter(move |policy| !matches!(again.judged_by(policy), Verdict::Deny { .. }));
    Ok(Box::new(Allowed {
        asked,
        body,
        rule,
        grant,
        kind,
        outgoing,
        placeholders,
        ticket,
        upgrade,
    }))
}

/// What the policy says of the connection holds for its requests.
fn connected(asked: &Asked, policy: &Policy) -> Result<(), Denial> {
    let connect = policy::Connect {
        host: &asked.host,
        port: asked.port,
        protocol: policy::Wire::Tls,
    };
    match policy.connect(&connect) {
        Verdict::Deny {
            rule,
            reason,
            message,
        } => Err(Denial::of_policy(rule, reason, message)),
        Verdict::Allow { .. } | Verdict::Ask { .. } => Ok(()),
    }
}

/// A method for the journal: in HTTP/2 nothing else limits its length.
fn method_text(method: &Method) -> String {
    method.as_str().chars().take(32).collect()
}

/// Method and target alone: what a policy is asked about.
fn bare(parts: &Parts) -> Parts {
    let mut bare = Request::new(()).into_parts().0;
    bare.method = parts.method.clone();
    bare.uri = parts.uri.clone();
    bare
}

fn approved(approval: Approval) -> Result<(), Denial> {
    match approval {
        Approval::Allowed => Ok(()),
        Approval::Refused { why } => Err(Denial::forbidden(
            DenyReason::Approval,
            format!("a person was asked and said no: {why}"),
        )),
        Approval::TimedOut => Err(Denial::forbidden(
            DenyReason::Approval,
            "a person was asked and did not answer in time; ask again later",
        )),
    }
}

/// Reads what a decision needs of the body: a push's commands, a GraphQL document. Returns it where it is the whole body.
async fn look_into(asked: &mut Asked, body: &mut Peeked) -> Result<Option<Vec<u8>>, Denial> {
    let uri = &asked.parts.uri;
    asked.git = policy::git_act(asked.parts.method.as_str(), uri.path(), uri.query());
    let too_slow = |_| {
        Denial::new(
            StatusCode::REQUEST_TIMEOUT,
            DenyReason::Protocol,
            "the body did not come in time",
        )
    };
    let broken = |_| Denial::malformed("the body broke off");
    if let Some(GitAct::Push { repo, .. }) = &asked.git {
        if asked.parts.headers.contains_key(CONTENT_ENCODING) {
            return Err(Denial::malformed(
                "a push with a Content-Encoding cannot be looked into",
            ));
        }
        let mut found = Ok(None);
        let enough = |bytes: &[u8]| {
            found = policy::push_commands(bytes);
            !matches!(found, Ok(None))
        };
        timeout(PEEK_TIMEOUT, body.peek(MAX_PEEK, enough))
            .await
            .map_err(too_slow)?
            .map_err(broken)?;
        let commands = found
            .map_err(|error| Denial::malformed(format!("this is no push: {}", error.0)))?
            .ok_or_else(|| Denial::malformed("the push ends before its commands do"))?;
        let refs = commands.into_iter().map(|command| command.name).collect();
        let repo = repo.clone();
        asked.git = Some(GitAct::Push { repo, refs });
        return Ok(None);
    }
    let is_text = asked.parts.headers.get(CONTENT_TYPE).is_some_and(|kind| {
        kind.as_bytes().starts_with(b"application/json")
            || kind.as_bytes().starts_with(b"application/graphql")
    });
    if asked.parts.method == Method::POST && is_text && asked.path().contains("graphql") {
        let (bytes, whole) = timeout(PEEK_TIMEOUT, body.peek(MAX_PEEK, |_| false))
            .await
            .map_err(too_slow)?
            .map_err(broken)?;
        return Ok(whole.then_some(bytes));
    }
    Ok(None)
}

/// Whether a request only reads, now that its headers and body are known.
fn kind(asked: &Asked, body: &Peeked, whole: Option<&[u8]>) -> EffectKind {
    if asked.websocket {
        return EffectKind::Write;
    }
    let some: &[u8] = if body.is_end_stream() { b"" } else { b"?" };
    let headers = asked.parts.headers.iter();
    policy::kind(
        asked.parts.method.as_str(),
        asked.path(),
        headers.map(|(name, value)| (name.as_str(), value.as_bytes())),
        Some(whole.unwrap_or(some)),
    )
}

impl Allowed {
    async fn send(mut self, session: &Arc<Session>, busy: &Arc<BusyOne>) -> Response<Body> {
        let client = &session.client;
        self.outgoing.op = client.op().await;
        let outgoing = self.outgoing.clone();
        let rule = self.rule.clone();
        let listens = self.asked.parts.version == Version::HTTP_2
            || self.asked.parts.headers.contains_key(EXPECT);
        let sent = tokio::select! {
            sent = self.exchange(client, busy.clone()) => sent,
            () = client.core.closing.cancelled() => Err((Denial::upstream("the sandbox's gateway was closed"), None)),
        };
        match sent {
            Ok(response) => response,
            Err((denial, body)) => {
                let denial = if denial.rule.is_none() {
                    denial.by_rule(&rule)
                } else {
                    denial
                };
                client.deny(outgoing, &denial).await;
                refuse(&denial, body.filter(|_| !listens), busy).await
            }
        }
    }

    async fn exchange(
        self,
        client: &Arc<Client>,
        busy: Arc<BusyOne>,
    ) -> Result<Response<Body>, (Denial, Option<Peeked>)> {
        let core = &client.core;
        let policy = core.policy();
        let Self {
            asked,
            mut body,
            rule,
            grant,
            kind,
            outgoing,
            placeholders,
            ticket,
            upgrade,
        } = self;
        let method = asked.parts.method.clone();
        let h2 = asked.parts.version == Version::HTTP_2;
        let giving = Giving {
            core,
            policy: &policy,
            placeholders: &placeholders,
            authority: head::authority(&asked.host, asked.port, asked.secure),
            secure: asked.secure,
            owner: github::owner(asked.git.as_ref(), asked.path()),
        };
        let injected = inject::inject(&giving, &grant.inject, &asked.parts, &mut body).await;
        let Injected {
            mut headers,
            path,
            uses,
            values,
        } = match injected {
            Ok(injected) => injected,
            Err(denial) => return Err((denial, Some(body))),
        };
        let target = Target {
            host: asked.host.clone(),
            port: asked.port,
            tls: asked.secure,
            h2: h2 && !asked.websocket,
            rule: rule.clone(),
            secrets: uses.iter().map(|one| one.fingerprint.clone()).collect(),
        };
        let dial = core
            .dialer
            .connect(&target, &policy, core.resolver.as_ref());
        let connected = if asked.websocket {
            dial.await.map(|fresh| (fresh, false))
        } else {
            core.pool.connect(&target, dial).await
        };
        let (mut sender, mut reused) = match connected {
            Ok(connected) => connected,
            Err(denial) => return Err((denial, Some(body))),
        };
        let is_grpc = headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if is_grpc && !sender.is_h2() {
            let denial = Denial::upstream(format!(
                "{} does not speak HTTP/2, which gRPC needs",
                asked.host
            ));
            return Err((denial, Some(body)));
        }
        if ticket.ended.is_cancelled() {
            let denial =
                Denial::forbidden(DenyReason::NoRule, "the policy does not allow it any more");
            return Err((denial, Some(body)));
        }
        let mut effect = match Effect::begin(core, outgoing, kind, &rule, uses).await {
            Ok(effect) => effect,
            Err(denial) => return Err((denial, Some(body))),
        };
        let scrub = Scrub::of(&values);
        if asked.websocket {
            return websocket::exchange(
                client,
                sender,
                target,
                headers,
                &path,
                effect,
                scrub,
                ticket,
                upgrade,
                grant.budget.upload,
            )
            .await
            .map_err(|denial| (denial, Some(body)));
        }
        let has_body = !body.is_end_stream();
        let stopped = Arc::new(OnceLock::new());
        let upload = Upload {
            body,
            meter: effect.sent.clone(),
            limit: grant.budget.upload,
            watch: Watch::new(&placeholders),
            sent: 0,
            stopped: stopped.clone(),
        };
        let mut request = Request::new(upload.boxed_unsync());
        *request.method_mut() = method.clone();
        std::mem::swap(request.headers_mut(), &mut headers);
        let again = (!has_body && kind == EffectKind::Read).then(|| request.headers().clone());
        let answered = loop {
            upstream::fit(&mut request, &target, &path, sender.is_h2());
            let sent = tokio::select! {
                sent = sender.send(request) => sent,
                () = ticket.ended.cancelled() => {
                    let why = "the policy does not allow it any more";
                    effect.settle(Some(why.to_owned()));
                    return Err((Denial::forbidden(DenyReason::NoRule, why), None));
                }
            };
            let unsent = match sent {
                Ok(answer) => break Ok(answer),
                Err(unsent) => unsent,
            };
            // A kept connection may have been closed by the other side at this moment. What was not sent can be sent, and what
            // only reads may be asked again; nothing else is.
            request = match (reused, unsent.request, &again) {
                (true, Some(request), _) => request,
                (true, None, Some(headers)) => {
                    let mut request = Request::new(crate::body::empty());
                    *request.method_mut() = method.clone();
                    *request.headers_mut() = headers.clone();
                    request
                }
                _ => break Err(unsent.error),
            };
            reused = false;
            sender = match core
                .dialer
                .connect(&target, &policy, core.resolver.as_ref())
                .await
            {
                Ok(sender) => sender,
                Err(denial) => {
                    effect.settle(Some(denial.message.clone()));
                    return Err((denial, None));
                }
            };
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(error) => {
                let denial = stopped.get().cloned().unwrap_or_else(|| {
                    let words = upstream::with_causes(&error);
                    Denial::upstream(format!(
                        "{} broke off before it answered: {words}",
                        asked.host
                    ))
                });
                effect.settle(Some(denial.message.clone()));
                return Err((denial, None));
            }
        };
        effect.status = Some(answer.status().as_u16());
        if answer.status().is_informational() {
            // Nobody asked for another protocol: the client's connection must not become one.
            let denial = Denial::upstream(format!(
                "{} changed the protocol without being asked",
                asked.host
            ));
            effect.settle(Some(denial.message.clone()));
            return Err((denial, None));
        }
        let place = core.pool.give_back(target, sender);
        Ok(returned(answer, effect, scrub, ticket, (busy, place)))
    }
}

/// Turns an upstream's answer into ours.
fn returned(
    answer: Response<Incoming>,
    effect: Effect,
    scrub: Option<Scrub>,
    ticket: Ticket,
    kept: (Arc<BusyOne>, Option<Place>),
) -> Response<Body> {
    let (parts, body) = answer.into_parts();
    let mut headers = head::returned(&parts.headers);
    if let Some(scrub) = &scrub {
        scrub.headers(&mut headers);
    }
    let download = Download::new(body, effect, scrub, ticket, Box::new(kept));
    let mut response = Response::new(download.boxed_unsync());
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers;
    response
}
