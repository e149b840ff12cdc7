//! Proving to a registry who asks: Basic, or a token from the service that the registry names.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;

use super::credentials::{self, Credentials};
use super::error::RegistryError;
use super::http::Http;
use crate::reference::Reference;

const CLIENT_ID: &str = "durable-sandbox";
const MAX_TOKEN: u64 = 1 << 20;

/// What one registry is shown with each request.
pub(super) struct Auth {
    registry: String,
    repository: String,
    docker_config: Option<PathBuf>,
    header: Mutex<Option<HeaderValue>>,
}

impl Auth {
    pub(super) fn new(reference: &Reference, docker_config: Option<PathBuf>) -> Self {
        Self {
            registry: reference.registry().to_owned(),
            repository: reference.repository().to_owned(),
            docker_config,
            header: Mutex::new(None),
        }
    }

    pub(super) fn header(&self) -> Option<HeaderValue> {
        self.header
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Does what a refusal asks for. Without credentials a token service is asked all the same: many give tokens to all.
    pub(super) async fn answer(
        &self,
        http: &Http,
        headers: &HeaderMap,
    ) -> Result<(), RegistryError> {
        let host = || self.registry.clone();
        let challenges: Vec<Challenge> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| Challenge::parse(value.to_str().ok()?))
            .collect();
        let credentials = credentials::find(&self.registry, self.docker_config.as_deref()).await?;
        let of = |scheme: &str| {
            challenges
                .iter()
                .find(|c| c.scheme.eq_ignore_ascii_case(scheme))
        };
        let value = if let Some(Credentials::RegistryToken(token)) = &credentials {
            format!("Bearer {token}")
        } else if let Some(bearer) = of("bearer") {
            let token = self.token(http, bearer, credentials.as_ref()).await?;
            format!("Bearer {token}")
        } else if of("basic").is_some() {
            match &credentials {
                Some(Credentials::Password { user, password }) => basic(user, password),
                _ => {
                    let said = ": there are no credentials for it on this machine".to_owned();
                    let repository = self.repository.clone();
                    return Err(RegistryError::Denied {
                        host: host(),
                        repository,
                        said,
                    });
                }
            }
        } else {
            return Err(RegistryError::Challenge { host: host() });
        };
        let mut value =
            HeaderValue::from_str(&value).map_err(|_| RegistryError::Challenge { host: host() })?;
        value.set_sensitive(true);
        *self.header.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        Ok(())
    }

    async fn token(
        &self,
        http: &Http,
        challenge: &Challenge,
        credentials: Option<&Credentials>,
    ) -> Result<String, RegistryError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default)]
            token: Option<String>,
            #[serde(default)]
            access_token: Option<String>,
        }
        let bad = || RegistryError::Challenge {
            host: self.registry.clone(),
        };
        let realm = challenge.get("realm").ok_or_else(bad)?;
        let service = challenge.get("service").unwrap_or_default();
        // What we need, whatever the registry would like us to ask for.
        let scope = format!("repository:{}:pull", self.repository);
        let response = match credentials {
            Some(Credentials::IdentityToken(refresh)) => {
                let form = [
                    ("grant_type", "refresh_token"),
                    ("service", service),
                    ("client_id", CLIENT_ID),
                    ("scope", &scope),
                    ("refresh_token", refresh),
                ];
                http.post(realm, encoded(&form)).await?
            }
            _ => {
                let query = encoded(&[
                    ("service", service),
                    ("scope", &scope),
                    ("client_id", CLIENT_ID),
                ]);
                let separator = if realm.contains('?') { '&' } else { '?' };
                let header = match credentials {
                    Some(Credentials::Password { user, password }) => {
                        let mut value =
                            HeaderValue::from_str(&basic(user, password)).map_err(|_| bad())?;
                        value.set_sensitive(true);
                        Some(value)
                    }
                    _ => None,
                };
                let url = format!("{realm}{separator}{query}");
                http.get(&url, &HeaderMap::new(), header.as_ref()).await?
            }
        };
        let status = response.status();
        if !status.is_success() {
            let (host, repository) = (self.registry.clone(), self.repository.clone());
            let said = format!(
                ": its token service answers with status {}",
                status.as_u16()
            );
            return Err(match status.as_u16() {
                429 | 500.. => RegistryError::Status {
                    host,
                    status: status.as_u16(),
                    said,
                },
                _ => RegistryError::Denied {
                    host,
                    repository,
                    said,
                },
            });
        }
        let body = http.body(response, MAX_TOKEN).await?;
        let body = body.map_err(|why| RegistryError::Unreachable {
            host: self.registry.clone(),
            why,
        })?;
        let answer: Answer = serde_json::from_slice(&body).map_err(|_| bad())?;
        answer
            .token
            .or(answer.access_token)
            .filter(|token| !token.is_empty())
            .ok_or_else(bad)
    }
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// One `WWW-Authenticate` header: a scheme, and parameters.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, mut rest) = match text.trim().split_once(' ') {
            Some((scheme, rest)) => (scheme, rest),
            None => (text.trim(), ""),
        };
        let mut parameters = Vec::new();
        loop {
            rest = rest.trim_start_matches([' ', ',']);
            if rest.is_empty() {
                break;
            }
            let (key, after) = rest.split_once('=')?;
            let value;
            if let Some(quoted) = after.trim_start().strip_prefix('"') {
                let mut text = String::new();
                let mut chars = quoted.char_indices();
                let end = loop {
                    match chars.next()? {
                        (at, '"') => break at + 1,
                        (_, '\\') => text.push(chars.next()?.1),
                        (_, c) => text.push(c),
                    }
                };
                (value, rest) = (text, &quoted[end..]);
            } else {
                let end = after.find(',').unwrap_or(after.len());
                (value, rest) = (after[..end].trim().to_owned(), &after[end..]);
            }
            parameters.push((key.trim().to_ascii_lowercase(), value));
        }
        Some(Self {
            scheme: scheme.to_owned(),
            parameters,
        })
    }

    fn get(&self, key: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }
}

/// Writes a form, or the query of a URL.
fn encoded(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let escape = |text: &mut String, value: &str| {
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    text.push(char::from(byte))
                }
                byte => text.push_str(&format!("%{byte:02X}")),
            }
        }
    };
    for (key, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        escape(&mut text, key);
        text.push('=');
        escape(&mut text, value);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_with_quotes_and_commas_in_its_values() {
        let text = r#"Bearer realm="https://auth.example/token",service="a, \"b\"",scope=repository:x:pull"#;
        let challenge = Challenge::parse(text).expect("parses");
        assert_eq!(challenge.scheme, "Bearer");
        assert_eq!(challenge.get("realm"), Some("https://auth.example/token"));
        assert_eq!(challenge.get("service"), Some("a, \"b\""));
        assert_eq!(challenge.get("scope"), Some("repository:x:pull"));
        assert_eq!(Challenge::parse(r#"Bearer realm="open"#), None);
    }

    #[test]
    fn what_goes_into_a_query_is_escaped() {
        assert_eq!(
            encoded(&[("scope", "repository:a/b:pull"), ("x", "ä&")]),
            "scope=repository%3Aa%2Fb%3Apull&x=%C3%A4%26"
        );
    }
}
