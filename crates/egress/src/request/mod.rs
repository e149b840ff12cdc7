//! One request: judged, journaled, sent, and its answer brought back.

mod asked;
mod escape;
mod exchange;
mod repeat;
mod session;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::EXPECT;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use policy::{Grant, Policy, Verdict};
use protocol::{DenyReason, EffectKind, Outgoing};
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use crate::body::{Body, Peeked, keeping};
use crate::connection::{BusyOne, Client, Refused as Barred};
use crate::deny::{Denial, Listener};
use crate::egress::Current;
use crate::front::Switch;
use crate::head;
use crate::seam::{Approval, Ask, Pass, Placeholder};

pub(crate) use repeat::connection;
pub(crate) use session::Session;

use asked::{Asked, asked_body, kind, look_into, method_text};
use exchange::Allowed;

/// What of a refused body is read away for a client that listens only then.
const MAX_DRAIN: u64 = 16 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

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
    let listener = Listener::of(request.headers());
    let response = match judge(&session, request, upgrade.clone()).await {
        Ok(allowed) => Box::pin(allowed.send(&session, &busy)).await,
        Err(Refused {
            denial,
            outgoing,
            body,
        }) => {
            session.client.deny(outgoing, &denial).await;
            refuse(&denial, listener, body.filter(|_| !listens), &busy).await
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
    let ended = client.life.ended.clone();
    let end = async move {
        if let Ok(connection) = upgrade.await
            && let Err(error) = TokioIo::new(connection).shutdown().await
        {
            tracing::debug!(%error, "a client's connection was not closed properly");
        }
    };
    client.core.tasks.spawn(async move {
        ended.run_until_cancelled(end).await;
    });
}

/// A request that is not sent.
struct Refused {
    denial: Denial,
    outgoing: Outgoing,
    /// What of it is still to be read.
    body: Option<Peeked>,
}

async fn refuse(
    denial: &Denial,
    listener: Listener,
    body: Option<Peeked>,
    busy: &Arc<BusyOne>,
) -> Response<Body> {
    if let Some(body) = body.filter(|body| !body.is_end_stream()) {
        // A client that is still sending when the connection is closed does not get to hear why.
        if timeout(DRAIN_TIMEOUT, body.drain(MAX_DRAIN)).await.is_err() {
            tracing::debug!("a refused body did not end in time");
        }
    }
    denial
        .response(listener)
        .map(|body| keeping(body, busy.clone()))
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
    let instead = asked::instead(&parts.headers);
    let mut asked = Asked {
        parts,
        host,
        port,
        secure: session.secure,
        websocket,
        git: None,
        instead,
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
        let (policy, rule, grant, pass) =
            allowed(session, &asked, &mut body, &placeholders).await?;
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
        Ok((policy, rule, grant, pass, head))
    };
    let verdict = verdict.await;
    session.heard();
    let (policy, rule, grant, pass, head) = match verdict {
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
    let again = asked.bare();
    let ticket = core.enter(move |policy| !matches!(again.judged_by(policy), Verdict::Deny { .. }));
    Ok(Box::new(Allowed {
        asked,
        body,
        policy,
        rule,
        grant,
        pass,
        kind,
        outgoing,
        placeholders,
        ticket,
        upgrade,
    }))
}

/// Returns the rule that allows a request, after a person said so where that is wanted, and that word.
async fn allowed(
    session: &Session,
    asked: &Asked,
    body: &mut Peeked,
    placeholders: &[Placeholder],
) -> Result<(Arc<Current>, String, Grant, Option<Pass>), Denial> {
    let client = &session.client;
    let (rule, timeout) = match judged(client, asked)? {
        Word::Allowed(policy, rule, grant) => return Ok((policy, rule, grant, None)),
        Word::Ask(_, rule, _, timeout) => (rule, timeout),
    };
    let mut request = asked.outgoing(placeholders);
    request.op = client.op().await;
    let body = asked_body(asked, body, placeholders).await?;
    let ask = Ask {
        request,
        digest: asked.digest(&rule, body.as_ref()),
        rule: rule.clone(),
        body,
        timeout,
    };
    let word = approved(client.core.approver.ask(ask).await);
    let pass = word.map_err(|denial| denial.by_rule(&rule))?;
    failpoint::hit("egress_approved");
    // That may have taken long, and the policy be another by now; what was approved is approved under the same rule only.
    match judged(client, asked)? {
        Word::Allowed(policy, now, grant) => Ok((policy, now, grant, pass)),
        Word::Ask(policy, now, grant, _) if now == rule => Ok((policy, now, grant, pass)),
        Word::Ask(..) => Err(Denial::forbidden(
            DenyReason::Approval,
            "the policy was changed while a person was asked; send the request again",
        )),
    }
}

/// What a policy says of a request that it does not deny.
enum Word {
    Allowed(Arc<Current>, String, Grant),
    Ask(Arc<Current>, String, Grant, Duration),
}

fn judged(client: &Client, asked: &Asked) -> Result<Word, Denial> {
    let policy = client.core.policy();
    let verdict = asked.judged_by(&policy);
    if asked.secure && !matches!(verdict, Verdict::Deny { .. }) {
        connected(asked, &policy)?;
    }
    match verdict {
        Verdict::Allow { rule, grant } => Ok(Word::Allowed(policy, rule, grant)),
        Verdict::Ask {
            rule,
            timeout,
            grant,
        } => Ok(Word::Ask(policy, rule, grant, timeout)),
        Verdict::Deny {
            rule,
            reason,
            message,
        } => Err(Denial::of_policy(rule, reason, message)),
    }
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

fn approved(approval: Approval) -> Result<Option<Pass>, Denial> {
    match approval {
        Approval::Allowed(pass) => Ok(pass),
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
