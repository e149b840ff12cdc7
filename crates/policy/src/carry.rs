//! What becomes of the answers of people where another policy is put in the place of the one that asked.

use crate::ask::Request;
use crate::git::GitAct;
use crate::host::Host;
use crate::pattern::HostPattern;
use crate::policy::Policy;
use crate::remember::{Says, Scope};
use crate::rule::{GitRule, Rule};
use crate::verdict::Verdict;

/// A policy with the answers of people that were given under another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carried {
    /// The policy.
    pub policy: Policy,
    /// The answers that are not in it any more, each with the reason.
    pub dropped: Vec<String>,
}

impl Policy {
    /// Returns the names of the rules that answers of people were made.
    pub fn remembered(&self) -> impl Iterator<Item = &str> {
        let answers = self.rules().iter().filter(|rule| rule.remembered);
        answers.map(|rule| rule.name.as_str())
    }

    /// Takes the answers of people along into another policy: those to what it would ask again, with what the rule that asks
    /// grants there. One that it has itself, as a rule of the same name, is its own business.
    #[must_use]
    pub fn carry(&self, new: Self) -> Carried {
        self.take_along(new, |policy, rule| match answer(rule) {
            Some(answer) => again(policy, rule, &answer),
            None => Err("it is not for one request".to_owned()),
        })
    }

    /// Leaves the answers of people behind, and says which.
    #[must_use]
    pub fn forget(&self, new: Self) -> Carried {
        self.take_along(new, |_, _| Err("it was to be forgotten".to_owned()))
    }

    fn take_along(
        &self,
        new: Self,
        take: impl Fn(&Self, &Rule) -> Result<Self, String>,
    ) -> Carried {
        let own: Vec<String> = new.remembered().map(str::to_owned).collect();
        let mut carried = Carried {
            policy: new,
            dropped: Vec::new(),
        };
        let answers = self.rules().iter().filter(|rule| rule.remembered);
        // Each is put above the others: the last one first, so that their order stays.
        let answers: Vec<&Rule> = answers.filter(|rule| !own.contains(&rule.name)).collect();
        for rule in answers.into_iter().rev() {
            match take(&carried.policy, rule) {
                Ok(policy) => carried.policy = policy,
                Err(why) => {
                    let (name, action) = (&rule.name, rule.action.word());
                    carried.dropped.push(format!("{name} ({action}): {why}"));
                }
            }
        }
        carried
    }
}

/// The request that was answered.
struct Answer {
    host: Host,
    port: u16,
    method: String,
    path: String,
    query: Option<String>,
    websocket: bool,
    git: Option<GitAct>,
}

/// Reads it from the rule, as `remember` wrote it; none where somebody wrote another one.
fn answer(rule: &Rule) -> Option<Answer> {
    let [HostPattern::Exact(host)] = &rule.hosts[..] else {
        return None;
    };
    let mut answer = Answer {
        host: host.clone(),
        port: *rule.ports.as_ref()?.first()?,
        method: "POST".to_owned(),
        path: String::new(),
        query: None,
        websocket: rule.websocket == Some(true),
        git: None,
    };
    if let Some(GitRule { fetch, push, refs }) = &rule.git {
        let (act, repo, service) = match (&fetch[..], &push[..]) {
            ([repo], []) => {
                let repo = repo.text().to_owned();
                (
                    GitAct::Fetch { repo: repo.clone() },
                    repo,
                    "git-upload-pack",
                )
            }
            ([], [repo]) => {
                let repo = repo.text().to_owned();
                let refs = refs.as_ref()?.iter().map(|name| name.text().to_owned());
                let refs = refs.collect();
                let push = GitAct::Push {
                    repo: repo.clone(),
                    refs,
                };
                (push, repo, "git-receive-pack")
            }
            _ => return None,
        };
        answer.path = format!("/{repo}.git/{service}");
        answer.git = Some(act);
        return Some(answer);
    }
    let ([method], [path]) = (&rule.methods.as_ref()?[..], &rule.paths.as_ref()?[..]) else {
        return None;
    };
    answer.method.clone_from(method);
    path.text().clone_into(&mut answer.path);
    answer.query = match &rule.query[..] {
        [] => None,
        [(key, values)] => Some(format!("{key}={}", values.first()?)),
        _ => return None,
    };
    Some(answer)
}

fn again(policy: &Policy, rule: &Rule, answer: &Answer) -> Result<Policy, String> {
    let says = if rule.denies() {
        Says::Deny
    } else {
        Says::Allow
    };
    // A rule that denies does not say whether it was without TLS.
    let with = |tls| Request {
        host: &answer.host,
        port: answer.port,
        tls,
        method: &answer.method,
        path: &answer.path,
        query: answer.query.as_deref(),
        websocket: answer.websocket,
        git: answer.git.as_ref(),
    };
    let ways: &[bool] = match (rule.denies(), rule.plain) {
        (true, _) => &[true, false],
        (false, plain) => &[!plain],
    };
    let mut why = String::new();
    for tls in ways {
        let asked = with(*tls);
        match policy.request(&asked) {
            Verdict::Ask { rule, .. } => {
                let remembered = policy.remember(&rule, &asked, says, Scope::Request);
                return remembered.map_err(|why| why.to_string());
            }
            Verdict::Allow { rule, .. } => why = format!("rule `{rule}` allows it without asking"),
            Verdict::Deny { .. } if why.is_empty() => {
                "the policy denies it now".clone_into(&mut why);
            }
            Verdict::Deny { .. } => {}
        }
    }
    Err(why)
}
