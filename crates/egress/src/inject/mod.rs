//! Secrets put into a request, where the policy says so and nowhere else.
//!
//! Nothing here is done before the policy has allowed the request, and only behind TLS. What the client had in the place of a
//! secret is taken away, whether or not there is one to put there.

mod query;
mod room;
mod sign;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use policy::{How, Injection, Place, Policy, TokenPlace};
use protocol::{DenyReason, SecretUse};
use secret::Value;
use zeroize::Zeroizing;

use crate::body::Peeked;
use crate::deny::Denial;
use crate::egress::Core;
use crate::head;
use crate::placeholder::replace;
use crate::seam::Placeholder;

use query::Encoded;

/// A request's head as it goes on.
pub(crate) struct Injected {
    pub(crate) headers: HeaderMap,
    pub(crate) path: PathAndQuery,
    /// For the journal.
    pub(crate) uses: Vec<SecretUse>,
    /// What must not come back.
    pub(crate) values: Vec<Arc<Value>>,
}

/// What an injection needs to know.
pub(crate) struct Giving<'a> {
    pub(crate) core: &'a Core,
    pub(crate) policy: &'a Policy,
    pub(crate) placeholders: &'a [Placeholder],
    /// `host[:port]`, as it is sent.
    pub(crate) authority: String,
    pub(crate) secure: bool,
    /// Whose repository it is about, on a forge.
    pub(crate) owner: Option<&'a str>,
}

/// Puts the secrets in that are granted, and refuses placeholders that stand anywhere else.
pub(crate) async fn inject(
    giving: &Giving<'_>,
    injections: &[Injection],
    client: &Parts,
    body: &mut Peeked,
) -> Result<Injected, Denial> {
    let mut work = Work {
        headers: head::outgoing(&client.headers),
        path: client.uri.path().to_owned(),
        query: client.uri.query().map(str::to_owned),
        given: Vec::new(),
        uses: Vec::new(),
        values: Vec::new(),
    };
    if !giving.secure && !injections.is_empty() {
        return Err(Denial::forbidden(
            DenyReason::Secret,
            "a secret is sent over TLS only; use https",
        ));
    }
    for injection in injections {
        work.make_room(giving, injection)?;
    }
    work.look_for_others(giving.placeholders)?;
    let mut signing = None;
    for injection in injections {
        match &injection.how {
            How::SigV4 { service, region } => signing = Some((injection, service, region)),
            _ => work.give(giving, injection).await?,
        }
    }
    if let Some((injection, service, region)) = signing {
        let value = work.resolve(giving, &injection.secret).await?;
        work.sign(giving, client, body, &value, service, region)
            .await?;
    }
    work.finish()
}

/// A placeholder in its place, until its value takes that.
struct Given {
    secret: String,
    place: Place,
    text: String,
    /// What the client wrote there.
    original: Vec<u8>,
    is_basic: bool,
}

struct Work {
    headers: HeaderMap,
    path: String,
    query: Option<String>,
    given: Vec<Given>,
    uses: Vec<SecretUse>,
    values: Vec<Arc<Value>>,
}

impl Work {
    async fn give(&mut self, giving: &Giving<'_>, injection: &Injection) -> Result<(), Denial> {
        let secret = injection.secret.as_str();
        match &injection.how {
            How::Bearer => {
                let value = self.resolve(giving, secret).await?;
                self.put_header(AUTHORIZATION, bearer(&value), secret)
            }
            How::Basic { user } => {
                let value = self.resolve(giving, secret).await?;
                let pair = Zeroizing::new([user.as_bytes(), b":", value.expose()].concat());
                self.put_header(AUTHORIZATION, basic(&pair), secret)
            }
            How::Header { name, format } => {
                let value = self.resolve(giving, secret).await?;
                let text = match format.split_once("{}") {
                    Some((before, after)) => {
                        [before.as_bytes(), value.expose(), after.as_bytes()].concat()
                    }
                    None => value.expose().to_vec(),
                };
                self.put_header(header_name(name)?, Zeroizing::new(text), secret)
            }
            How::Query { key } => {
                let value = self.resolve(giving, secret).await?;
                self.add_query(key, value.expose(), Encoded::No);
                Ok(())
            }
            How::Placeholder { .. } => {
                let given = std::mem::take(&mut self.given).into_iter();
                let (mine, others): (Vec<_>, Vec<_>) = given.partition(|one| one.secret == secret);
                self.given = others;
                if mine.is_empty() {
                    return Ok(());
                }
                let value = self.resolve(giving, secret).await?;
                for given in mine {
                    self.put_given(&given, &value)?;
                }
                Ok(())
            }
            How::GitHubApp { place, .. } => {
                let key = self.resolve(giving, secret).await?;
                let fingerprint = giving.core.secrets.fingerprint(&key);
                let made = giving.core.apps.token(
                    &injection.how,
                    giving.owner,
                    key,
                    &fingerprint,
                    giving.policy,
                );
                let token = made.await.map_err(|error| unusable(secret, &error))?;
                self.values.push(token.clone());
                let text = match place {
                    TokenPlace::Bearer => bearer(&token),
                    TokenPlace::Basic => basic(&Zeroizing::new(
                        [b"x-access-token:", token.expose()].concat(),
                    )),
                };
                self.put_header(AUTHORIZATION, text, secret)
            }
            // After everything else, since it signs it.
            How::SigV4 { .. } => Ok(()),
        }
    }

    fn put_given(&mut self, given: &Given, value: &Value) -> Result<(), Denial> {
        let text = replace(&given.original, &given.text, value.expose()).unwrap_or_default();
        let text = Zeroizing::new(text);
        match &given.place {
            Place::Header(name) if given.is_basic => {
                self.put_header(header_name(name)?, basic(&text), &given.secret)
            }
            Place::Header(name) => self.put_header(header_name(name)?, text, &given.secret),
            Place::Query(key) => {
                self.add_query(key, &text, Encoded::No);
                Ok(())
            }
        }
    }

    async fn resolve(&mut self, giving: &Giving<'_>, secret: &str) -> Result<Arc<Value>, Denial> {
        let secrets = &giving.core.secrets;
        let value = secrets
            .resolve(secret)
            .await
            .map_err(|error| unusable(secret, &error))?;
        let fingerprint = secrets.fingerprint(&value);
        if !self.uses.iter().any(|one| one.name == secret) {
            self.uses.push(SecretUse {
                name: secret.to_owned(),
                fingerprint,
            });
            self.values.push(value.clone());
        }
        Ok(value)
    }

    fn put_header(
        &mut self,
        name: HeaderName,
        text: Zeroizing<Vec<u8>>,
        secret: &str,
    ) -> Result<(), Denial> {
        // Not copied, and wiped with the request.
        let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(text))
            .map_err(|_| unusable(secret, "it holds characters that cannot stand in a header"))?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(())
    }

    fn finish(mut self) -> Result<Injected, Denial> {
        if !self.values.is_empty() {
            // What comes back is looked through, and so must not be packed.
            self.headers
                .insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        Ok(Injected {
            path: self.path_and_query()?,
            headers: self.headers,
            uses: self.uses,
            values: self.values,
        })
    }
}

fn bearer(token: &Value) -> Zeroizing<Vec<u8>> {
    Zeroizing::new([b"Bearer ", token.expose()].concat())
}

fn basic(pair: &[u8]) -> Zeroizing<Vec<u8>> {
    let encoded = Zeroizing::new(STANDARD.encode(pair));
    Zeroizing::new([b"Basic ", encoded.as_bytes()].concat())
}

fn header_name(name: &str) -> Result<HeaderName, Denial> {
    name.parse().map_err(|_| {
        Denial::forbidden(
            DenyReason::Secret,
            format!("the rule's header {name:?} is none"),
        )
    })
}

fn unusable(secret: &str, why: &str) -> Denial {
    Denial::forbidden(
        DenyReason::Secret,
        format!("secret `{secret}` cannot be used: {why}"),
    )
}
