//! The way out of a sandbox: what comes through its doors is understood, judged, journaled and sent on, or refused in words.
//!
//! Accepted connections are named by what they say (SNI, Host, CONNECT, the address that their name was given), never by the
//! address they dial; the name is resolved, vetted and dialled here, after the policy has allowed it. TLS is opened only where
//! a rule must see into it. A request that may change something is durable in the journal before its first byte leaves.
//!
//! This crate decides nothing that `policy` decides, keeps no secret longer than a request needs it, and knows no engine: it
//! sees the world through the traits in `seam`.

mod authority;
mod body;
mod budget;
mod connection;
mod deny;
mod dns;
mod effect;
mod egress;
mod flow;
mod front;
mod github;
mod head;
mod inject;
mod life;
mod placeholder;
mod record;
mod request;
mod scrub;
mod seam;
mod sniff;
mod stream;
mod tunnel;
mod upstream;
mod websocket;

pub use authority::{Authority, AuthorityError};
pub use dns::{Answerer, answer_dns};
pub use effect::effect_id;
pub use egress::{Boot, Doors, Egress, Parts};
pub use front::{Front, Step, Violation};
pub use seam::{
    Approval, Approver, Ask, BoxFuture, Ledger, Owners, Pass, Placeholder, Recorded, Records,
    Resolver, Secrets, SystemResolver, Word, Write,
};
