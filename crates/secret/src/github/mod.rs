//! GitHub Apps: mints a token for one repository and the permissions that are asked for, good for an hour at most.
//!
//! The app's private key never leaves the host; a token that leaks is good for little and not for long. HTTP is somebody
//! else's: what is sent goes through [`Http`].

mod key;
mod time;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value as Json, json};
use zeroize::{Zeroize as _, Zeroizing};

use crate::flight::Flights;
use crate::value::Value;

/// GitHub's own API. An Enterprise Server's is at `https://HOST/api/v3`.
pub const API: &str = "https://api.github.com";
/// GitHub takes what is signed for ten minutes at most; its clock and ours may differ.
const SIGNED_FOR: Duration = Duration::from_secs(8 * 60);
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// Sends a request and returns the whole answer. Redirects must not be followed: they would take the credential along.
pub trait Http: Send + Sync {
    /// Sends it. The error is for people, and says nothing of the request's headers.
    fn send(
        &self,
        request: Request<Vec<u8>>,
    ) -> BoxFuture<'_, std::result::Result<Response<Vec<u8>>, String>>;
}

/// An app of GitHub's, installed somewhere.
#[derive(Debug, Clone)]
pub struct App {
    /// Its client id (`Iv23…`) or its number.
    pub id: String,
    /// The number of its installation; none to ask for the one of the repository.
    pub installation: Option<u64>,
    /// Its private key, in PEM.
    pub key: Arc<Value>,
    /// Where the API is, without a slash at its end: [`API`], or that of an Enterprise Server.
    pub api: String,
}

/// What a token is to be good for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wanted {
    /// `owner/name`.
    pub repository: String,
    /// What it may do, such as `contents` → `write`. Empty is refused: GitHub would take it for everything.
    pub permissions: BTreeMap<String, String>,
}

/// A token of an installation.
#[derive(Debug, Clone)]
pub struct Token {
    /// The token. With git its user name is `x-access-token`.
    pub value: Arc<Value>,
    /// When it was asked for.
    pub since: SystemTime,
    /// When GitHub stops taking it.
    pub until: SystemTime,
}

/// A token cannot be had. No key and no token is in here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no token of the GitHub App {app} can be had for {repository}: {why}")]
pub struct Error {
    /// The app's id.
    pub app: String,
    /// The repository.
    pub repository: String,
    /// Why, and what to do.
    pub why: Why,
}

/// Why a token cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The key is none.
    #[error(
        "its private key is none: {0}; download a new one from the app's settings and keep it as it is (PEM)"
    )]
    Key(&'static str),
    /// The repository is not `owner/name`.
    #[error("a repository is written owner/name")]
    Repository,
    /// No permission is asked for.
    #[error("no permission is named; name those that are needed, such as contents = \"read\"")]
    NoPermissions,
    /// The address of the API is none.
    #[error("the address of the API is none; write https://HOST or https://HOST/api/v3")]
    Address,
    /// The clock is before 1970.
    #[error("the clock of this machine is wrong")]
    Clock,
    /// It was not sent, or there was no answer.
    #[error("GitHub cannot be asked: {0}")]
    Http(String),
    /// GitHub said no.
    #[error("GitHub answered {status} to {asked}; {}", advice(*status))]
    Refused {
        /// The status.
        status: u16,
        /// Method and path.
        asked: String,
    },
    /// The answer cannot be read.
    #[error("GitHub's answer is not understood: {0}")]
    Answer(&'static str),
    /// The token is good for more than was asked for.
    #[error("GitHub gave a token for more than was asked ({0}), which is not used")]
    Wider(&'static str),
}

fn advice(status: u16) -> &'static str {
    match status {
        401 => {
            "look whether the private key is one of this app, whether its id is right, and whether this machine's clock is"
        }
        403 => {
            "the installation is suspended, or GitHub limits requests; look at the app's settings"
        }
        404 => {
            "look whether the app is installed for the repository and the installation's number is right"
        }
        422 => {
            "look whether the app has these permissions, and the installation has the repository and accepted the permissions"
        }
        500.. => "GitHub has trouble of its own; try again later",
        _ => "look at the app's settings",
    }
}

impl Token {
    /// Tells whether it should be replaced: four fifths of its life are over.
    #[must_use]
    pub fn is_stale(&self, now: SystemTime) -> bool {
        let life = self.until.duration_since(self.since).unwrap_or_default();
        now >= self.since + life * 4 / 5
    }
}

/// Mints a token.
///
/// # Errors
/// The key is none, GitHub cannot be asked or refuses, or gives more than was wanted.
pub async fn installation_token(
    http: &dyn Http,
    app: &App,
    wanted: &Wanted,
    now: SystemTime,
) -> Result<Token, Error> {
    mint(http, app, wanted, now).await.map_err(|why| Error {
        app: app.id.clone(),
        repository: wanted.repository.clone(),
        why,
    })
}

/// Tokens of one app: one for each thing wanted, minted once and again when four fifths of its life are over.
pub struct Tokens {
    http: Arc<dyn Http>,
    app: App,
    minted: Flights<Wanted, Token, Error>,
}

impl Tokens {
    /// Begins without any.
    #[must_use]
    pub fn new(http: Arc<dyn Http>, app: App) -> Self {
        Self {
            http,
            app,
            minted: Flights::new(),
        }
    }

    /// Returns a token that is good now. Those who ask at the same time get the same one.
    ///
    /// # Errors
    /// As for [`installation_token`].
    pub async fn get(&self, wanted: &Wanted, now: SystemTime) -> Result<Token, Error> {
        let good = |token: &Token| !token.is_stale(now);
        let ask = || {
            let (http, app, wanted) = (self.http.clone(), self.app.clone(), wanted.clone());
            let minting: BoxFuture<'static, Result<Token, Error>> =
                Box::pin(
                    async move { installation_token(http.as_ref(), &app, &wanted, now).await },
                );
            minting
        };
        self.minted.get(wanted, good, ask).await
    }

    /// Forgets a token that GitHub did not take: it was revoked, and the next request gets a new one.
    pub fn refused(&self, wanted: &Wanted) {
        self.minted.forget(wanted);
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens")
            .field("app", &self.app)
            .finish_non_exhaustive()
    }
}

async fn mint(http: &dyn Http, app: &App, wanted: &Wanted, now: SystemTime) -> Result<Token, Why> {
    let name = match wanted.repository.split('/').collect::<Vec<_>>()[..] {
        [owner, name] if is_name(owner) && is_name(name) => name,
        _ => return Err(Why::Repository),
    };
    if wanted.permissions.is_empty() {
        return Err(Why::NoPermissions);
    }
    let bearer = bearer(app, now)?;
    let installation = match app.installation {
        Some(installation) => installation,
        None => {
            let path = format!("/repos/{}/installation", wanted.repository);
            let found = ask(http, app, &bearer, Method::GET, &path, None).await?;
            found["id"].as_u64().ok_or(Why::Answer("it has no id"))?
        }
    };
    let path = format!("/app/installations/{installation}/access_tokens");
    let body = json!({"repositories": [name], "permissions": wanted.permissions});
    let mut told = ask(http, app, &bearer, Method::POST, &path, Some(&body)).await?;
    let value = match told.get_mut("token").map(Json::take) {
        Some(Json::String(token)) if !token.is_empty() => Arc::new(Value::new(token)),
        _ => return Err(Why::Answer("it has no token")),
    };
    no_wider(&told, wanted)?;
    let until = told["expires_at"].as_str().and_then(time::parse);
    Ok(Token {
        value,
        since: now,
        until: until.ok_or(Why::Answer("it says no end of the token's life"))?,
    })
}

/// What is said of the token's reach must be what was asked for. An old Enterprise Server says less, which is let be.
fn no_wider(told: &Json, wanted: &Wanted) -> Result<(), Why> {
    if told["repository_selection"] == "all" {
        return Err(Why::Wider("all repositories"));
    }
    let same = |name: &Json| {
        name.as_str()
            .is_some_and(|name| name.eq_ignore_ascii_case(&wanted.repository))
    };
    let repositories = told["repositories"].as_array();
    if repositories.is_some_and(|all| !all.iter().all(|one| same(&one["full_name"]))) {
        return Err(Why::Wider("another repository"));
    }
    let Some(permissions) = told["permissions"].as_object() else {
        return Ok(());
    };
    for (name, level) in permissions {
        let level = level.as_str().unwrap_or_default();
        let asked = wanted.permissions.get(name).map(String::as_str);
        // Reading what is public about a repository comes with everything.
        let implied = name == "metadata" && level == "read";
        if !implied && rank(level) > rank(asked.unwrap_or_default()) {
            return Err(Why::Wider("another permission"));
        }
    }
    Ok(())
}

fn rank(level: &str) -> u8 {
    match level {
        "" => 0,
        "read" => 1,
        "write" => 2,
        _ => 3,
    }
}

fn is_name(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    !text.is_empty() && text.bytes().all(fine) && text != "." && text != ".."
}

/// Signs who we are: a JSON web token with RS256.
fn bearer(app: &App, now: SystemTime) -> Result<HeaderValue, Why> {
    let key = key::read(&app.key).map_err(Why::Key)?;
    let now = now.duration_since(UNIX_EPOCH).map_err(|_| Why::Clock)?;
    let claims = json!({
        "iat": now.saturating_sub(CLOCKS_DIFFER).as_secs(),
        "exp": (now + SIGNED_FOR).as_secs(),
        "iss": app.id,
    });
    let encode = |json: Json| BASE64_URL_SAFE_NO_PAD.encode(json.to_string());
    let head = encode(json!({"alg": "RS256", "typ": "JWT"}));
    let text = format!("{head}.{}", encode(claims));
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(
        &ring::signature::RSA_PKCS1_SHA256,
        &ring::rand::SystemRandom::new(),
        text.as_bytes(),
        &mut signature,
    )
    .map_err(|_| Why::Key("it does not sign"))?;
    let signed = BASE64_URL_SAFE_NO_PAD.encode(&signature);
    let bearer = Zeroizing::new(format!("Bearer {text}.{signed}"));
    let mut bearer = HeaderValue::from_str(&bearer).map_err(|_| Why::Key("it does not sign"))?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

async fn ask(
    http: &dyn Http,
    app: &App,
    bearer: &HeaderValue,
    method: Method,
    path: &str,
    body: Option<&Json>,
) -> Result<Json, Why> {
    let asked = format!("{method} {path}");
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", app.api))
        .header(ACCEPT, "application/vnd.github+json")
        .header(USER_AGENT, "durable-sandbox")
        .header("x-github-api-version", "2022-11-28")
        .header(AUTHORIZATION, bearer);
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let body = body.map(|body| body.to_string().into_bytes());
    let request = request.body(body.unwrap_or_default());
    let request = request.map_err(|_| Why::Address)?;
    // A test's server is on this machine; anything else would carry the credential in the open.
    let local = |host: &str| matches!(host, "127.0.0.1" | "localhost" | "[::1]");
    match (request.uri().scheme_str(), request.uri().host()) {
        (Some("https"), Some(_)) => {}
        (Some("http"), Some(host)) if local(host) => {}
        _ => return Err(Why::Address),
    }
    let (head, mut body) = http.send(request).await.map_err(Why::Http)?.into_parts();
    if head.status != StatusCode::OK && head.status != StatusCode::CREATED {
        return Err(Why::Refused {
            status: head.status.as_u16(),
            asked,
        });
    }
    let told = serde_json::from_slice(&body);
    // A token is in it.
    body.zeroize();
    told.map_err(|_| Why::Answer("it is no JSON"))
}

#[cfg(test)]
mod tests;
