//! Ids and counters as types of their own, so that two of them cannot be swapped by accident.
//!
//! What a caller chooses (`SandboxName`, `OpId`, `SessionId`) is checked on the way in; everything else is ours.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is no id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} is not usable: {why}")]
pub struct IdError {
    /// What was asked for, such as `sandbox name`.
    pub what: &'static str,
    /// What was given, cut to 64 characters.
    pub text: String,
    /// The rule that it breaks.
    pub why: &'static str,
}

fn refuse(what: &'static str, text: &str, why: &'static str) -> IdError {
    IdError {
        what,
        text: text.chars().take(64).collect(),
        why,
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
            utoipa::ToSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Returns the one after this.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                text.parse().map(Self).map_err(|_| refuse(stringify!($name), text, "it must be a whole number"))
            }
        }
    };
}

counter! {
    /// A place in one sandbox's journal. The first event is 1; 0 is the head of an empty journal.
    Seq
}
counter! {
    /// The fencing number of the right to write one journal. Grows by one with each lease.
    Epoch
}
counter! {
    /// A byte position in one stream of one operation.
    Offset
}
counter! {
    /// How often the sandbox's supervisor has been started. The first boot is 1.
    Boot
}
counter! {
    /// A sandbox's number on this data directory; never used twice.
    SandboxId
}
counter! {
    /// Wall-clock milliseconds since 1970. For people only: nothing is decided by it.
    UnixMillis
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schema(value_type = String)]
        pub struct $name(String);

        impl $name {
            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let check: fn(&str) -> Option<&'static str> = $check;
                match check(text) {
                    Some(why) => Err(refuse($what, text, why)),
                    None => Ok(Self(text.to_owned())),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// Names become directory names and host names, so they keep to what both allow.
fn name_rule(text: &str) -> Option<&'static str> {
    let mut bytes = text.bytes();
    match bytes.next() {
        None => return Some("it is empty"),
        Some(b'a'..=b'z' | b'0'..=b'9') => {}
        Some(_) => return Some("it must start with a lower-case letter or a digit"),
    }
    if text.len() > 63 {
        return Some("it must not be longer than 63 characters");
    }
    if !bytes.all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.')) {
        return Some("only lower-case letters, digits, `-`, `_` and `.` are allowed");
    }
    None
}

/// Harness tool-call ids must pass unchanged (`toolu_…`, `call_…|fc_…`); `/` may not, ids become file names.
fn op_rule(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.len() > 128 {
        return Some("it must not be longer than 128 characters");
    }
    if text.starts_with(['-', '.']) {
        return Some("it must not start with `-` or `.`");
    }
    if !text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"_.:~|=+@,-".contains(&b))
    {
        return Some("only letters, digits and `_ . : ~ | = + @ , -` are allowed");
    }
    None
}

text_id! {
    /// What people call a sandbox.
    SandboxName, "sandbox name", name_rule
}
text_id! {
    /// The id of one operation, chosen by the caller; unique in its sandbox for ever.
    OpId, "operation id", op_rule
}
text_id! {
    /// The id of one durable agent conversation in a sandbox.
    SessionId, "session id", op_rule
}
text_id! {
    /// One cut of a workspace, named by us.
    CutId, "cut id", op_rule
}
text_id! {
    /// One writable head in the pool, named by us.
    WorkspaceId, "workspace id", op_rule
}
text_id! {
    /// One request to a model, named by us.
    ModelRequestId, "model request id", op_rule
}
text_id! {
    /// One request that left through the egress gateway, or was to; named by us.
    EffectId, "effect id", op_rule
}
text_id! {
    /// One request that waits for a person's word; named by us.
    ApprovalId, "approval id", op_rule
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_odd_characters_is_refused() {
        for bad in [
            "",
            "A",
            "-a",
            "a/b",
            "a b",
            "ä",
            "a\0",
            "../x",
            &"x".repeat(64),
        ] {
            assert!(bad.parse::<SandboxName>().is_err(), "{bad:?} was accepted");
        }
        for good in ["a", "ada", "0-a_b.c", &"x".repeat(63)] {
            assert!(good.parse::<SandboxName>().is_ok(), "{good:?} was refused");
        }
    }

    #[test]
    fn tool_call_ids_of_harnesses_are_operation_ids() {
        for good in ["toolu_01A09q90qw90lq917835lq9", "call_9f|fc_68b", "build-1"] {
            assert!(good.parse::<OpId>().is_ok(), "{good:?} was refused");
        }
        for bad in ["", "a/b", "-x", "..", "a b", "a\nb"] {
            assert!(bad.parse::<OpId>().is_err(), "{bad:?} was accepted");
        }
    }
}
