//! The policy of a sandbox: read, put in force, explained.

use std::collections::BTreeSet;
use std::sync::Arc;

use policy::{Carried, Explanation, Policy, Shown};
use protocol::control::MORE_DOORS;
use protocol::egress::{CheckRequest, PolicyText, PolicyView};
use protocol::paths::NO_DOOR;
use protocol::{ApiError, ErrorCode, Event};

use crate::sandbox::{Handle, Request};
use crate::{error, link};

/// Reads a policy that somebody gives.
pub(crate) fn parse(text: &str) -> Result<Policy, ApiError> {
    let unusable = |why: &dyn std::fmt::Display| {
        let what = format!("the policy is not usable: {why}");
        ApiError::new(ErrorCode::Invalid, what).hint("docs/policy.md describes the format")
    };
    let policy = Policy::parse(text).map_err(|wrong| unusable(&wrong))?;
    let ports = policy.ports();
    if let Some(port) = ports.iter().find(|port| NO_DOOR.contains(port)) {
        return Err(unusable(&format!(
            "port {port} is one of the sandbox's own"
        )));
    }
    if ports.len() > MORE_DOORS {
        let many = format!(
            "its rules name {} ports, and a sandbox has doors at {MORE_DOORS} besides the usual ones",
            ports.len()
        );
        return Err(unusable(&many));
    }
    for secret in policy.secrets() {
        let source = secret.from.parse::<secret::Source>();
        source.map_err(|wrong| unusable(&format!("secret `{}`: {wrong}", secret.name)))?;
    }
    let mut files = BTreeSet::new();
    for secret in policy.secrets() {
        if let Some(Shown::File(path)) = &secret.placeholder
            && !files.insert(path)
        {
            return Err(unusable(&format!(
                "two placeholders stand in the file {path}"
            )));
        }
    }
    Ok(policy)
}

/// Reads the policy that a journal holds. One that a later version wrote and this one cannot read allows nothing.
pub(super) fn journaled(policy: Option<&str>) -> Policy {
    let Some(text) = policy else {
        return Policy::empty();
    };
    Policy::parse(text).unwrap_or_else(|wrong| {
        tracing::error!(%wrong, "a journaled policy is not understood, so nothing leaves");
        Policy::empty()
    })
}

impl Handle {
    /// Returns the policy in force.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn policy(&self) -> Result<PolicyView, ApiError> {
        let spec = self.ask(|reply| Request::Spec { reply }).await?;
        let text = spec.policy.unwrap_or_default();
        let read = Policy::parse(&text);
        Ok(PolicyView {
            // One that cannot be read is shown all the same.
            policy: text,
            ..view(&read.unwrap_or_default())
        })
    }

    /// Puts another policy in force, at once: what it does not allow any more is broken off. Answers of people that were made
    /// rules are kept where it would ask for them again, unless they are to be forgotten.
    ///
    /// # Errors
    /// `invalid` for a text that is no policy, with the line; nothing is changed then.
    pub async fn set_policy(&self, ask: PolicyText) -> Result<PolicyView, ApiError> {
        let text = if ask.policy.trim().is_empty() {
            String::new()
        } else {
            ask.policy
        };
        let new = parse(&text)?;
        let current = self.way.policy();
        let Carried { policy, dropped } = if ask.forget {
            current.forget(new)
        } else {
            current.carry(new)
        };
        let policy = Arc::new(policy);
        let set = Event::PolicySet {
            policy: policy.text().to_owned(),
        };
        self.record(vec![set]).await?;
        self.way.set_policy(&policy);
        self.opened(&policy).await;
        Ok(PolicyView {
            forgotten: dropped,
            ..view(&policy)
        })
    }

    /// Gives a policy that was just put in force the doors and placeholders that it wants.
    pub(super) async fn opened(&self, policy: &Policy) {
        let ports: BTreeSet<u16> = policy.ports();
        if !ports.is_empty() {
            let ports: Vec<u16> = ports.into_iter().collect();
            match link::doors::listen(&self.way.dir, self.way.epoch, &ports).await {
                Ok(doors) => {
                    for port in doors.unopened {
                        tracing::warn!(sandbox = %self.name, port = port.port, problem = %port.problem, "a door is missing");
                    }
                    self.way.serve_more(doors.open);
                }
                // Where nothing runs, the next start opens them.
                Err(why) => {
                    tracing::debug!(sandbox = %self.name, why = %error::chain(&why), "no doors were added");
                }
            }
        }
        self.show_placeholders().await;
    }

    /// Says what the policy in force makes of a request.
    #[must_use]
    pub fn check_policy(&self, ask: &CheckRequest) -> Explanation {
        let method = ask.method.as_deref().unwrap_or("GET");
        policy::explain(&self.way.policy(), &ask.url, method)
    }
}

fn view(policy: &Policy) -> PolicyView {
    PolicyView {
        policy: policy.text().to_owned(),
        digest: policy.digest(),
        remembered: policy.remembered().map(str::to_owned).collect(),
        forgotten: Vec::new(),
    }
}
