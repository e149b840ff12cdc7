//! What a policy answers.

use std::time::Duration;

use protocol::{DenyReason, EffectKind};

use crate::inject::Injection;
use crate::rule::Budget;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict<T> {
    /// It is allowed.
    Allow {
        /// The rule that says so.
        rule: String,
        /// What is granted.
        grant: T,
    },
    /// A person must say so first. Never said of a connection.
    Ask {
        /// The rule that says so.
        rule: String,
        /// How long to wait for a word.
        timeout: Duration,
        /// What is granted then.
        grant: T,
    },
    /// It is not allowed.
    Deny {
        /// The rule that says so; none where no rule allows it.
        rule: Option<String>,
        /// Why.
        reason: DenyReason,
        /// Why, for the program inside and whoever reads its output.
        message: String,
    },
}

/// What a request is granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Secrets that go into it.
    pub inject: Vec<Injection>,
    /// What the rule grants at most, to be counted under the rule's name.
    pub budget: Budget,
    /// Whether it only reads, as far as method and path tell; [`crate::kind`] tells better with the headers and the body.
    pub kind: EffectKind,
}

/// What to do with a connection that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// Pass its bytes on, as they are.
    PassThrough,
    /// Look at each request of it, and ask for each.
    Inspect,
}
