//! What a policy says of a secret: by which name rules call it, and where its value is to be found. Never the value.

/// The kinds of references that there are; crate `secret` knows what they mean.
pub const SCHEMES: [&str; 7] = ["age", "command", "env", "file", "keyring", "op", "vault"];

/// One `[[secret]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRef {
    /// The name that rules call it by.
    pub name: String,
    /// Where its value is: `env:GITHUB_TOKEN`.
    pub from: String,
    /// Where programs inside find a placeholder for it.
    pub placeholder: Option<Shown>,
    /// Whether a request with another credential in the place of this one is refused.
    pub require: bool,
}

/// Where programs inside find the placeholder of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// In a variable of their environment.
    Env(String),
    /// In a file, by its absolute path.
    File(String),
}
