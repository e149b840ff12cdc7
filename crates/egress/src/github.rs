//! Tokens of GitHub Apps, minted where a request needs one: asked for over connections of our own, never over a sandbox's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use http::uri::PathAndQuery;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Limited};
use policy::{GitAct, How, Policy};
use secret::Value;
use secret::github::{self, App, Tokens, Wanted};
use tokio::time::timeout;

use crate::seam::Resolver;
use crate::upstream::{self, Dialer, Target};

/// Apps whose tokens are kept; a policy names one or two.
const MAX_APPS: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(30);
const MAX_ANSWER: usize = 256 << 10;

/// The apps of one sandbox.
pub(crate) struct Apps {
    dialer: Arc<Dialer>,
    resolver: Arc<dyn Resolver>,
    apps: Mutex<HashMap<Named, Arc<Tokens>>>,
}

/// Key, app, installation and API.
type Named = (String, String, u64, Option<String>);

impl Apps {
    pub(crate) fn new(dialer: Arc<Dialer>, resolver: Arc<dyn Resolver>) -> Self {
        Self {
            dialer,
            resolver,
            apps: Mutex::default(),
        }
    }

    /// Forgets all tokens: those of an Enterprise Server were asked for under a policy that is another now.
    pub(crate) fn clear(&self) {
        let mut apps = self.apps.lock().unwrap_or_else(PoisonError::into_inner);
        apps.clear();
    }

    /// Returns a token for what an injection says. `fingerprint` is that of the key: another key is another app.
    pub(crate) async fn token(
        &self,
        how: &How,
        owner: Option<&str>,
        key: Arc<Value>,
        fingerprint: &str,
        policy: &Policy,
    ) -> Result<Arc<Value>, String> {
        let How::GitHubApp {
            app,
            installation,
            repository,
            permissions,
            api,
            ..
        } = how
        else {
            return Err("this is no GitHub App".to_owned());
        };
        let owner = owner.ok_or("the request names no repository that a token could be for")?;
        let tokens = {
            let mut apps = self.apps.lock().unwrap_or_else(PoisonError::into_inner);
            if apps.len() >= MAX_APPS {
                apps.clear();
            }
            let named = (
                fingerprint.to_owned(),
                app.clone(),
                *installation,
                api.clone(),
            );
            let made = apps.entry(named).or_insert_with(|| {
                let app = App {
                    id: app.clone(),
                    installation: Some(*installation),
                    key,
                    api: api.as_deref().unwrap_or(github::API).to_owned(),
                };
                // GitHub itself has public addresses and the usual authorities, whatever rules say; an Enterprise Server
                // may have those that the policy names for it.
                let policy = match api {
                    Some(_) => policy.clone(),
                    None => Policy::empty(),
                };
                let http = Api {
                    dialer: self.dialer.clone(),
                    resolver: self.resolver.clone(),
                    policy,
                };
                Arc::new(Tokens::new(Arc::new(http), app))
            });
            made.clone()
        };
        let wanted = Wanted {
            repository: format!("{owner}/{repository}"),
            permissions: permissions.clone(),
        };
        let token = tokens.get(&wanted, SystemTime::now()).await;
        token
            .map(|token| token.value)
            .map_err(|error| error.to_string())
    }
}

/// Returns the owner of the repository that a request is about.
pub(crate) fn owner<'a>(git: Option<&'a GitAct>, path: &'a str) -> Option<&'a str> {
    let of_git = git.map(|act| match act {
        GitAct::Advertise { repo, .. } | GitAct::Fetch { repo } | GitAct::Push { repo, .. } => {
            repo.as_str()
        }
    });
    let of_api = || path.strip_prefix("/api/v3").unwrap_or(path);
    let named = of_git.or_else(|| of_api().strip_prefix("/repos/"))?;
    let (owner, _) = named.split_once('/')?;
    (!owner.is_empty()).then_some(owner)
}

/// GitHub's API, as `secret` asks it.
struct Api {
    dialer: Arc<Dialer>,
    resolver: Arc<dyn Resolver>,
    policy: Policy,
}

impl github::Http for Api {
    fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, String>> {
        Box::pin(async move {
            let sent = timeout(TIMEOUT, self.exchange(request)).await;
            sent.map_err(|_| "there was no answer in time".to_owned())?
        })
    }
}

impl Api {
    async fn exchange(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, String> {
        let (parts, body) = request.into_parts();
        let authority = parts.uri.authority().ok_or("its address names no host")?;
        let (host, port) =
            policy::authority(authority.as_str(), Some(443)).map_err(|error| error.to_string())?;
        let target = Target {
            host,
            port,
            tls: true,
            h2: false,
            rule: String::new(),
            policy: 0,
            secrets: Vec::new(),
        };
        let connected = self
            .dialer
            .connect(&target, &self.policy, self.resolver.as_ref())
            .await;
        let mut sender = connected.map_err(|denial| denial.message)?;
        let path = parts.uri.path_and_query().cloned();
        let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let mut request = Request::new(crate::body::full(body.into()));
        *request.method_mut() = parts.method;
        *request.headers_mut() = parts.headers;
        upstream::fit(&mut request, &target, &path, sender.is_h2());
        let sent = sender.send(request).await;
        let answer = sent.map_err(|unsent| upstream::with_causes(&unsent.error))?;
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok(Response::from_parts(parts, body.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_that_of_the_repository_asked_about() {
        let push = GitAct::Push {
            repo: "acme/app".into(),
            refs: Vec::new(),
        };
        assert_eq!(
            owner(Some(&push), "/acme/app.git/git-receive-pack"),
            Some("acme")
        );
        assert_eq!(owner(None, "/repos/acme/app/pulls"), Some("acme"));
        assert_eq!(owner(None, "/api/v3/repos/acme/app/pulls"), Some("acme"));
        assert_eq!(owner(None, "/user"), None);
        assert_eq!(owner(None, "/repos//app"), None);
    }
}
