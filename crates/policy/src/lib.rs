//! What may leave a sandbox: names in one canonical form, addresses that are never dialled, the format of a policy, and what
//! its rules say of a connection and of a request.
//!
//! Everything here is a function of its arguments. An empty [`Policy`] allows nothing, a text that cannot be read is no
//! policy, and whatever is asked and fits no rule is denied. This crate never does I/O, never reads a clock, never sees the
//! value of a secret, and counts nothing: keeping a [`Budget`] and looking into bytes is the business of who asks.
//!
//! The format is described at [`Policy::parse`].

mod ask;
mod carry;
mod effect;
mod explain;
mod git;
mod glob;
mod graphql;
mod guard;
mod host;
mod inject;
mod net;
mod parse;
mod path;
mod pattern;
mod pkt;
mod policy;
mod presets;
mod query;
mod remember;
mod rule;
mod say;
mod secret;
mod shown;
mod suffixes;
mod verdict;

pub use ask::{Connect, Request, Wire};
pub use carry::Carried;
pub use effect::kind;
pub use explain::{Decision, Explanation, Looked, explain};
pub use git::{GitAct, git_act};
pub use guard::{Refused, vet};
pub use host::{Host, HostError, authority};
pub use inject::{How, Injection, Place, TokenPlace};
pub use parse::{MAX_TEXT, PolicyError};
pub use pkt::{MAX_COMMANDS, Malformed, PushCommand, push_commands};
pub use policy::Policy;
pub use presets::{Preset, presets};
pub use remember::{Forgotten, Says, Scope};
pub use rule::Budget;
pub use secret::{SCHEMES, SecretRef, Shown};
pub use verdict::{Channel, Grant, Verdict};
