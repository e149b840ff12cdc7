//! A request that may be sent: its secrets, its connection, its effect, and the answer to it.

use std::sync::{Arc, OnceLock};

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use policy::{Grant, Policy};
use protocol::{DenyReason, EffectKind, Outgoing};
use tokio_util::sync::CancellationToken;

use super::asked::Asked;
use super::repeat::{Fate, fate};
use super::{Session, refuse};
use crate::body::{Body, Download, Peeked, Upload, empty, keeping};
use crate::connection::{BusyOne, Client};
use crate::deny::{Denial, Listener};
use crate::effect::Effect;
use crate::egress::{Core, Current};
use crate::flow::Ticket;
use crate::github;
use crate::head;
use crate::inject::{self, Giving, Injected};
use crate::placeholder::Watch;
use crate::record::{self, ALONE, Keep, Passage};
use crate::scrub::Scrub;
use crate::seam::{Pass, Placeholder};
use crate::upstream::{self, Place, Sender, Target};
use crate::websocket;

/// A request that may be sent.
pub(super) struct Allowed {
    pub(super) asked: Asked,
    pub(super) body: Peeked,
    /// The policy that allowed it.
    pub(super) policy: Arc<Current>,
    pub(super) rule: String,
    pub(super) grant: Grant,
    /// The word that it may leave by, where it was asked for.
    pub(super) pass: Option<Pass>,
    pub(super) kind: EffectKind,
    pub(super) outgoing: Outgoing,
    pub(super) placeholders: Vec<Placeholder>,
    pub(super) ticket: Ticket,
    pub(super) upgrade: Option<OnUpgrade>,
}

impl Allowed {
    pub(super) async fn send(
        mut self,
        session: &Arc<Session>,
        busy: &Arc<BusyOne>,
    ) -> Response<Body> {
        let client = &session.client;
        self.outgoing.op = client.op().await;
        let outgoing = self.outgoing.clone();
        let rule = self.rule.clone();
        let listener = Listener::of(&self.asked.parts.headers);
        let listens = self.asked.parts.version == Version::HTTP_2
            || self.asked.parts.headers.contains_key(EXPECT);
        let fate = match self.kind {
            EffectKind::Read => Ok(Fate::Leaves(Keep::Nothing)),
            EffectKind::Write => fate(client, &self.asked, &outgoing, &mut self.body).await,
        };
        let sent = match fate {
            Ok(Fate::Leaves(keep)) => self.leave(client, busy, keep).await,
            Ok(Fate::Answered(recorded)) => {
                return record::answer(recorded).map(|body| keeping(body, busy.clone()));
            }
            Err(denial) => Err((denial, Some(self.body))),
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
                refuse(&denial, listener, body.filter(|_| !listens), busy).await
            }
        }
    }

    /// Sends it. One whose answer is recorded is seen to its end also where nobody waits for that any more.
    async fn leave(
        self,
        client: &Arc<Client>,
        busy: &Arc<BusyOne>,
        keep: Keep,
    ) -> Result<Response<Body>, (Denial, Option<Peeked>)> {
        let is_kept = matches!(keep, Keep::Answer(_));
        let (core, of, busy) = (client.core.clone(), client.clone(), busy.clone());
        let waited_for = CancellationToken::new();
        let _waits = waited_for.clone().drop_guard();
        let sending = async move {
            let alone = async {
                waited_for.cancelled().await;
                tokio::time::sleep(ALONE).await;
            };
            tokio::select! {
                sent = self.exchange(&of, busy, keep) => sent,
                () = alone => Err((Denial::upstream("nobody waits for the answer any more"), None)),
                () = of.life.given_up.cancelled() => {
                    Err((Denial::upstream("the sandbox's gateway was closed"), None))
                }
            }
        };
        if !is_kept {
            return sending.await;
        }
        match core.tasks.spawn(Box::pin(sending)).await {
            Ok(sent) => sent,
            Err(failure) => {
                tracing::error!(%failure, "a request was not sent to its end");
                Err((Denial::upstream("the gateway failed"), None))
            }
        }
    }

    async fn exchange(
        self,
        client: &Arc<Client>,
        busy: Arc<BusyOne>,
        keep: Keep,
    ) -> Result<Response<Body>, (Denial, Option<Peeked>)> {
        let core = &client.core;
        let Self {
            asked,
            mut body,
            policy,
            rule,
            grant,
            pass,
            kind,
            outgoing,
            placeholders,
            ticket,
            upgrade,
        } = self;
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
            headers,
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
            policy: policy.number,
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
        let (sender, reused) = match connected {
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
        let begun = Effect::begin(client, outgoing, kind, &rule, uses, pass, keep);
        let mut effect = match begun.await {
            Ok(effect) => effect,
            Err(denial) => return Err((denial, Some(body))),
        };
        let scrub = core.scrubs.of(&values);
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
        if !has_body {
            effect.sent.end();
        }
        let stopped = Arc::new(OnceLock::new());
        let upload = Upload {
            body,
            meter: effect.sent.clone(),
            limit: grant.budget.upload,
            watch: Watch::new(&placeholders),
            sent: 0,
            stopped: stopped.clone(),
        };
        let sending = Sending {
            core,
            policy: &policy,
            target: &target,
            method: asked.parts.method.clone(),
            path,
            again: (!has_body && kind == EffectKind::Read).then(|| headers.clone()),
        };
        let mut request = Request::new(upload.boxed_unsync());
        *request.headers_mut() = headers;
        let sent = tokio::select! {
            sent = sending.run(request, sender, reused) => sent,
            () = ticket.ended.cancelled() => {
                Err(Denial::forbidden(DenyReason::NoRule, "the policy does not allow it any more"))
            }
        };
        let (answer, sender) = match sent {
            Ok(answered) => answered,
            Err(denial) => {
                // Where we stopped it ourselves, that is the reason and not what the upstream made of it.
                let denial = stopped.get().cloned().unwrap_or(denial);
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
        let coding = answer.headers().get(CONTENT_ENCODING);
        if scrub.is_some()
            && let Some(coding) = coding.filter(|coding| *coding != "identity")
        {
            // It would carry the secret in a form that nobody looks for.
            let denial = Denial::upstream(format!(
                "{} answered in the coding {coding:?} although it was asked for none, and an answer to a request with a secret is looked through",
                asked.host
            ));
            effect.settle(Some(denial.message.clone()));
            return Err((denial, None));
        }
        let place = core.pool.give_back(target, sender);
        Ok(returned(client, answer, effect, scrub, ticket, (busy, place)).await)
    }
}

/// How a request is sent, and sent again where that is safe.
struct Sending<'a> {
    core: &'a Core,
    policy: &'a Policy,
    target: &'a Target,
    method: Method,
    path: PathAndQuery,
    /// The headers of a request that only reads and has no body.
    again: Option<HeaderMap>,
}

impl Sending<'_> {
    async fn run(
        &self,
        mut request: Request<Body>,
        mut sender: Sender,
        mut reused: bool,
    ) -> Result<(Response<Incoming>, Sender), Denial> {
        loop {
            *request.method_mut() = self.method.clone();
            upstream::fit(&mut request, self.target, &self.path, sender.is_h2());
            let unsent = match sender.send(request).await {
                Ok(answer) => return Ok((answer, sender)),
                Err(unsent) => unsent,
            };
            // A kept connection may have been closed by the other side at this moment. What was not sent can be sent, and what
            // only reads may be asked again; nothing else is.
            request = match (reused, unsent.request, &self.again) {
                (true, Some(request), _) => request,
                (true, None, Some(headers)) => {
                    let mut request = Request::new(empty());
                    *request.headers_mut() = headers.clone();
                    request
                }
                _ => {
                    let (host, words) = (&self.target.host, upstream::with_causes(&unsent.error));
                    return Err(Denial::upstream(format!(
                        "{host} broke off before it answered: {words}"
                    )));
                }
            };
            reused = false;
            let resolver = self.core.resolver.as_ref();
            sender = self
                .core
                .dialer
                .connect(self.target, self.policy, resolver)
                .await?;
        }
    }
}

/// Turns an upstream's answer into ours.
async fn returned(
    client: &Arc<Client>,
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
    let body = if effect.recorder.is_some() {
        let busy = kept.0.clone();
        let kept = Box::new(kept);
        let (passage, passing) =
            Passage::new(parts.status, &headers, body, effect, scrub, ticket, kept);
        if passage.has_body() {
            client.core.tasks.spawn(passage.run());
            keeping(passing.boxed_unsync(), busy)
        } else {
            // Its head is all there is of it, so the record comes first.
            passage.run().await;
            keeping(empty(), busy)
        }
    } else {
        Download::new(body, effect, scrub, ticket, Box::new(kept)).boxed_unsync()
    };
    let mut response = Response::new(body);
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers;
    response
}
