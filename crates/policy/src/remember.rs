//! What a person said to one request, made a rule, so that it is not asked again.

use std::fmt::Write as _;

use crate::ask::Request;
use crate::git::GitAct;
use crate::parse;
use crate::path;
use crate::policy::Policy;
use crate::rule::{Action, Asked, Rule};
use crate::verdict::Verdict;

/// What a person said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// Yes, with what the rule that asked grants.
    Allow,
    /// No.
    Deny,
}

/// For what it is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// For the same method and path; for git the same repository and refs.
    Request,
    /// For all that goes to the same host and port.
    Host,
}

/// Why an answer cannot be made a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this answer cannot be remembered: {0}; write a rule by hand")]
pub struct Forgotten(String);

impl Policy {
    /// Returns this policy with one rule more, above all others, that gives the answer of a person to a request that the rule
    /// named `rule` asked about. What that rule injects and limits goes into the new one.
    ///
    /// # Errors
    ///
    /// [`Forgotten`], where no rule can say just that: a path with a star in it, a push whose refs are not given.
    pub fn remember(
        &self,
        rule: &str,
        asked: &Request<'_>,
        says: Says,
        scope: Scope,
    ) -> Result<Self, Forgotten> {
        let no = |why: &str| Forgotten(why.to_owned());
        let asking = |one: &&Rule| one.name == rule && matches!(one.action, Action::Ask(_));
        let asking = self
            .rules()
            .iter()
            .find(asking)
            .ok_or_else(|| no("no rule of this name asks"))?;
        let name = (1..)
            .map(|number| format!("said-{number}"))
            .find(|name| self.rules().iter().all(|rule| rule.name != *name))
            .unwrap_or_default();
        let text = self.text();
        let at = parse::first_table(text).ok_or_else(|| no("the policy has no `[[rule]]`"))?;
        let new = write(&name, asking, asked, says, scope).map_err(no)?;
        let policy = Self::parse(&format!("{}{new}\n{}", &text[..at], &text[at..]))
            .map_err(|error| Forgotten(format!("the policy with it would be none, {error}")))?;
        let answers = match (policy.request(asked), says) {
            (Verdict::Allow { rule, .. }, Says::Allow) => rule == name,
            (Verdict::Deny { rule, .. }, Says::Deny) => rule.as_ref() == Some(&name),
            _ => false,
        };
        match answers {
            true => Ok(policy),
            false => Err(no("the rule would not fit the request")),
        }
    }
}

/// Writes the rule. What is wrong with it beyond is told by reading it.
fn write(
    name: &str,
    asking: &Rule,
    asked: &Request<'_>,
    says: Says,
    scope: Scope,
) -> Result<String, &'static str> {
    let action = match says {
        Says::Allow => Action::Allow,
        Says::Deny => Action::Deny,
    };
    let (host, port) = (asked.host, asked.port);
    let mut text = format!(
        "# An answer of a person.\n[[rule]]\nname = \"{name}\"\nhosts = [\"{host}\"]\nports = [{port}]\n"
    );
    if says == Says::Allow {
        if !asked.tls {
            text += "plain = true\n";
        }
        text += &asking.written;
    }
    if scope == Scope::Request {
        text += &same(asked, says)?;
    }
    // Writing into a string cannot fail.
    let _ = writeln!(text, "remembered = true\naction = \"{}\"", action.word());
    Ok(text)
}

/// Writes the conditions that this request meets and hardly another.
fn same(asked: &Request<'_>, says: Says) -> Result<String, &'static str> {
    match Asked::new(asked) {
        Asked {
            git: Some(GitAct::Fetch { repo }),
            ..
        } => Ok(format!("git = {{ fetch = [{}] }}\n", quoted(&repo)?)),
        Asked {
            git: Some(GitAct::Push { repo, refs }),
            refs_known: true,
            ..
        } if !refs.is_empty() => {
            let refs: Vec<_> = refs
                .iter()
                .map(|name| quoted(name))
                .collect::<Result<_, _>>()?;
            Ok(format!(
                "git = {{ push = [{}], refs = [{}] }}\n",
                quoted(&repo)?,
                refs.join(", ")
            ))
        }
        Asked {
            git: Some(GitAct::Push { .. }),
            ..
        } => Err("the refs of the push are not given"),
        Asked { git, .. } => {
            let segments =
                path::segments(asked.path).map_err(|_| "its path can be read in two ways")?;
            let decoded =
                String::from_utf8(segments.join(&b'/')).map_err(|_| "its path is no text")?;
            let mut text = format!(
                "methods = [{}]\npaths = [{}]\n",
                quoted(asked.method)?,
                quoted(&format!("/{decoded}"))?
            );
            if asked.websocket && says == Says::Allow {
                text += "websocket = true\n";
            }
            if let Some(GitAct::Advertise { push, .. }) = git {
                let service = if push {
                    "git-receive-pack"
                } else {
                    "git-upload-pack"
                };
                // Writing into a string cannot fail.
                let _ = writeln!(text, "query = {{ service = \"{service}\" }}");
            }
            Ok(text)
        }
    }
}

/// Returns a pattern that means this text alone, quoted.
fn quoted(text: &str) -> Result<String, &'static str> {
    match text.contains(|c: char| matches!(c, '*' | '%' | '\\') || c.is_control()) {
        true => Err("it has a character that patterns cannot have"),
        false => Ok(format!("\"{}\"", text.replace('"', "\\\""))),
    }
}
