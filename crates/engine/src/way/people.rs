//! Words of people: asked for by the gateway, given over the API, and made rules of the policy where they are to last.

use std::sync::Arc;

use egress::{Approval, Approver, Ask, BoxFuture};
use policy::{Host, Policy, Says, Scope};
use protocol::egress::{ApprovalView, DecideApproval};
use protocol::{ApiError, ApprovalId, ErrorCode, Outgoing};

use crate::error;
use crate::sandbox::approvals::{Remember, Word};
use crate::sandbox::{Handle, Request};

/// Asks people.
pub(super) struct People {
    pub(super) handle: Handle,
}

impl Approver for People {
    fn ask(&self, ask: Ask) -> BoxFuture<'_, Approval> {
        Box::pin(async move {
            let patience = ask.timeout;
            let asked = self.handle.ask(|reply| Request::Approval { ask, reply });
            let word = match asked.await {
                Ok(word) => word,
                Err(problem) => {
                    return Approval::Refused {
                        why: problem.message,
                    };
                }
            };
            failpoint::hit("egress_parked");
            match tokio::time::timeout(patience, word).await {
                Ok(Ok(Word::Allowed(pass))) => Approval::Allowed(pass),
                Ok(Ok(Word::Refused)) => Approval::Refused {
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
        let mut unusable = None;
        let mut remember = None;
        if word.remember {
            let views = self.approvals().await?;
            // One that is not there is refused by whoever takes the word.
            if let Some(view) = views.into_iter().find(|view| view.id == approval) {
                match remembering(&self.way.policy(), &view.rule, &view.request, allow) {
                    Ok(policy) => remember = Some(Arc::new(policy)),
                    Err(why) => unusable = Some(why),
                }
            }
        }
        let policy = remember.clone();
        let decided = self.ask(|reply| Request::Decide {
            approval,
            allow,
            remember: remember.map(|policy| Remember { policy }),
            reply,
        });
        decided.await?;
        if let Some(policy) = policy {
            self.opened(&policy).await;
        }
        unusable.map_or(Ok(()), Err)
    }
}

/// Makes a person's word a rule of a policy, and returns its text.
fn remembering(
    policy: &Policy,
    rule: &str,
    asked: &Outgoing,
    allow: bool,
) -> Result<Policy, ApiError> {
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
    remembered.map_err(|why| {
        ApiError::new(
            ErrorCode::Invalid,
            format!("the word was given, and holds once: {why}"),
        )
    })
}
