//! Where the value of a secret goes in a request. The value itself is never seen here.

use std::collections::BTreeMap;

/// One secret that a request carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    /// The secret's name in the policy; [`crate::Policy::secret`] has what it refers to.
    pub secret: String,
    /// Where its value goes.
    pub how: How,
}

/// Where a value goes. Whatever the client had in that place is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// `Authorization: Bearer VALUE`.
    Bearer,
    /// `Authorization: Basic …`, the value as the password.
    Basic {
        /// The user.
        user: String,
    },
    /// A header of any other name.
    Header {
        /// Its name, in lower case.
        name: String,
        /// What it says: `{}` in it, once, stands for the value.
        format: String,
    },
    /// A parameter of the query.
    Query {
        /// Its key, not encoded.
        key: String,
    },
    /// The client writes a placeholder, and only in these places it is replaced.
    Placeholder {
        /// The places.
        places: Vec<Place>,
    },
    /// The request is signed as AWS does (SigV4), the client's own signature thrown away.
    SigV4 {
        /// `s3`, `execute-api` …
        service: String,
        /// `us-east-1` …
        region: String,
    },
    /// The secret is the private key of a GitHub App; what goes in is a token for one repository, of an hour at most.
    GitHubApp {
        /// The app's id or client id.
        app: String,
        /// The installation's id.
        installation: u64,
        /// The one repository, without its owner.
        repository: String,
        /// Permissions of the token, `contents = "write"`: one at least.
        permissions: BTreeMap<String, String>,
        /// The API of an Enterprise Server, `https://HOST/api/v3`; GitHub's own where there is none.
        api: Option<String>,
        /// How the token goes in.
        place: TokenPlace,
    },
}

/// How a minted token goes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenPlace {
    /// As `Bearer`, for the API.
    Bearer,
    /// As `Basic` with the user `x-access-token`, for git: the default of a rule with `git`.
    Basic,
}

/// A place in which a placeholder is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A header by its name in lower case; in `authorization` inside of `Basic` as well.
    Header(String),
    /// A parameter of the query by its key, not encoded.
    Query(String),
}

impl How {
    /// Returns the place that is written, to tell two injections into one place; none where the client chooses it.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Self::Bearer | Self::Basic { .. } | Self::SigV4 { .. } | Self::GitHubApp { .. } => {
                Some(Place::Header("authorization".to_owned()))
            }
            Self::Header { name, .. } => Some(Place::Header(name.clone())),
            Self::Query { key } => Some(Place::Query(key.clone())),
            Self::Placeholder { .. } => None,
        }
    }
}
