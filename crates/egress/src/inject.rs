//! Secrets put into a request, where the policy says so and nowhere else.
//!
//! Nothing here is done before the policy has allowed the request, and only behind TLS. What the client had in the place of a
//! secret is taken away, whether or not there is one to put there.

use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use policy::{How, Injection, Place, Policy, TokenPlace};
use protocol::{DenyReason, SecretUse};
use secret::{Value, sigv4};

use crate::body::Peeked;
use crate::deny::Denial;
use crate::egress::Core;
use crate::head;
use crate::placeholder::{
    basic, in_header, in_text, misplaced, percent_decode, percent_encode, replace,
};
use crate::seam::Placeholder;

/// A body that is signed as a whole is read before; AWS's services other than S3 take no longer ones.
const MAX_SIGNED: usize = 1 << 20;

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
    /// Takes out of the request what stands in the place of a secret.
    fn make_room(&mut self, giving: &Giving<'_>, injection: &Injection) -> Result<(), Denial> {
        let secret = &injection.secret;
        let declared = giving.policy.secret(secret);
        let require = declared.is_some_and(|declared| declared.require);
        let own = giving.placeholders.iter().find(|one| one.secret == *secret);
        match &injection.how {
            How::Bearer | How::Basic { .. } | How::GitHubApp { .. } => {
                self.clear_header(giving, AUTHORIZATION, own, require, secret)
            }
            How::Header { name, .. } => {
                self.clear_header(giving, header_name(name)?, own, require, secret)
            }
            // Its signature says nothing but which placeholder was used.
            How::SigV4 { .. } => Ok(()),
            How::Query { key } => {
                let found = self.take_query(key);
                let foreign = found.iter().any(|value| {
                    own.is_none_or(|own| percent_decode(value.as_bytes()) != own.text.as_bytes())
                });
                refuse_foreign(
                    require && foreign,
                    secret,
                    &format!("query parameter `{key}`"),
                )
            }
            How::Placeholder { places } => {
                for place in places {
                    self.take_placeholder(place, own, require, secret)?;
                }
                Ok(())
            }
        }
    }

    fn clear_header(
        &mut self,
        giving: &Giving<'_>,
        name: HeaderName,
        own: Option<&Placeholder>,
        require: bool,
        secret: &str,
    ) -> Result<(), Denial> {
        let own = own.map(std::slice::from_ref).unwrap_or_default();
        let values: Vec<_> = self.headers.get_all(&name).iter().cloned().collect();
        self.headers.remove(&name);
        for value in &values {
            let is_own = in_header(own, value).is_some();
            refuse_foreign(require && !is_own, secret, &format!("header `{name}`"))?;
            // Another secret's placeholder is not made right by being overwritten: the program mixed something up.
            if let Some(other) =
                in_header(giving.placeholders, value).filter(|one| one.secret != secret)
            {
                return Err(misplaced(&other.secret, &format!("header `{name}`")));
            }
        }
        Ok(())
    }

    /// Takes a placeholder out of its place, to be replaced there.
    fn take_placeholder(
        &mut self,
        place: &Place,
        own: Option<&Placeholder>,
        require: bool,
        secret: &str,
    ) -> Result<(), Denial> {
        let Some(own) = own else {
            return match place {
                Place::Header(name) if require => {
                    let there = self.headers.contains_key(header_name(name)?);
                    refuse_foreign(there, secret, &format!("header `{name}`"))
                }
                _ => Ok(()),
            };
        };
        match place {
            Place::Header(name) => {
                let name = header_name(name)?;
                let mut values = self.headers.get_all(&name).iter();
                let (Some(value), second) = (values.next().cloned(), values.next()) else {
                    return Ok(());
                };
                let holds = in_header(std::slice::from_ref(own), &value).is_some();
                if second.is_some() || !holds {
                    return refuse_foreign(require, secret, &format!("header `{name}`"));
                }
                let user =
                    basic(&value).filter(|_| replace(value.as_bytes(), &own.text, b"").is_none());
                self.headers.remove(&name);
                self.given.push(Given {
                    secret: secret.to_owned(),
                    place: place.clone(),
                    text: own.text.clone(),
                    is_basic: user.is_some(),
                    original: user.unwrap_or_else(|| value.as_bytes().to_vec()),
                });
            }
            Place::Query(key) => {
                for value in self.take_query(key) {
                    let decoded = percent_decode(value.as_bytes());
                    if replace(&decoded, &own.text, b"").is_some() {
                        self.given.push(Given {
                            secret: secret.to_owned(),
                            place: place.clone(),
                            text: own.text.clone(),
                            is_basic: false,
                            original: decoded,
                        });
                    } else {
                        refuse_foreign(require, secret, &format!("query parameter `{key}`"))?;
                        self.add_query(key, value.as_bytes(), Encoded::Already);
                    }
                }
            }
        }
        Ok(())
    }

    /// Refuses placeholders in all that is left.
    fn look_for_others(&self, placeholders: &[Placeholder]) -> Result<(), Denial> {
        if let Some(one) = in_text(placeholders, self.path.as_bytes()) {
            return Err(misplaced(&one.secret, "the path"));
        }
        let query = self.query.as_deref().unwrap_or_default();
        if let Some(one) = in_text(placeholders, query.as_bytes()) {
            return Err(misplaced(&one.secret, "the query"));
        }
        for (name, value) in &self.headers {
            // What AWS's clients sign with shows up in their signature.
            if let Some(one) = in_header(placeholders, value).filter(|_| !is_signature(name, value))
            {
                return Err(misplaced(&one.secret, &format!("header `{name}`")));
            }
        }
        // Around a placeholder another one may stand.
        for given in &self.given {
            let rest = replace(&given.original, &given.text, b"").unwrap_or_default();
            if let Some(one) = in_text(placeholders, &rest) {
                return Err(misplaced(&one.secret, "the place of another"));
            }
        }
        Ok(())
    }

    async fn give(&mut self, giving: &Giving<'_>, injection: &Injection) -> Result<(), Denial> {
        let secret = injection.secret.as_str();
        match &injection.how {
            How::Bearer => {
                let value = self.resolve(giving, secret).await?;
                self.put_header(
                    AUTHORIZATION,
                    &[b"Bearer ", value.expose()].concat(),
                    secret,
                )
            }
            How::Basic { user } => {
                let value = self.resolve(giving, secret).await?;
                let pair = [user.as_bytes(), b":", value.expose()].concat();
                let text = format!("Basic {}", STANDARD.encode(pair));
                self.put_header(AUTHORIZATION, text.as_bytes(), secret)
            }
            How::Header { name, format } => {
                let value = self.resolve(giving, secret).await?;
                let text = match format.split_once("{}") {
                    Some((before, after)) => {
                        [before.as_bytes(), value.expose(), after.as_bytes()].concat()
                    }
                    None => value.expose().to_vec(),
                };
                self.put_header(header_name(name)?, &text, secret)
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
                let made = giving
                    .core
                    .apps
                    .token(&injection.how, giving.owner, key, &fingerprint);
                let token = made.await.map_err(|error| unusable(secret, &error))?;
                self.values.push(token.clone());
                let text = match place {
                    TokenPlace::Bearer => [b"Bearer ", token.expose()].concat(),
                    TokenPlace::Basic => {
                        let pair = [b"x-access-token:", token.expose()].concat();
                        format!("Basic {}", STANDARD.encode(pair)).into_bytes()
                    }
                };
                self.put_header(AUTHORIZATION, &text, secret)
            }
            // After everything else, since it signs it.
            How::SigV4 { .. } => Ok(()),
        }
    }

    fn put_given(&mut self, given: &Given, value: &Value) -> Result<(), Denial> {
        let text = replace(&given.original, &given.text, value.expose()).unwrap_or_default();
        match &given.place {
            Place::Header(name) if given.is_basic => {
                let text = format!("Basic {}", STANDARD.encode(text));
                self.put_header(header_name(name)?, text.as_bytes(), &given.secret)
            }
            Place::Header(name) => self.put_header(header_name(name)?, &text, &given.secret),
            Place::Query(key) => {
                self.add_query(key, &text, Encoded::No);
                Ok(())
            }
        }
    }

    /// Signs the request as it stands.
    async fn sign(
        &mut self,
        giving: &Giving<'_>,
        client: &Parts,
        body: &mut Peeked,
        value: &Value,
        service: &str,
        region: &str,
    ) -> Result<(), Denial> {
        let failed = |error: sigv4::Error| Denial::forbidden(DenyReason::Secret, error.to_string());
        let text = value.text().map_err(|_| {
            failed(sigv4::Error::Key {
                why: "it is not text",
            })
        })?;
        let mut words = text.splitn(3, ':');
        let (Some(id), Some(key)) = (words.next(), words.next()) else {
            return Err(failed(sigv4::Error::Key {
                why: "it is not ACCESS_KEY_ID:SECRET_ACCESS_KEY",
            }));
        };
        let key = Value::new(key);
        let session = words.next().map(Value::new);
        let mut parts = http::Request::new(()).into_parts().0;
        parts.method = client.method.clone();
        parts.headers = self.headers.clone();
        let path = self.path_and_query()?;
        parts.uri = http::Uri::builder()
            .scheme("https")
            .authority(giving.authority.as_str())
            .path_and_query(path)
            .build()
            .map_err(|_| failed(sigv4::Error::NoHost))?;
        let host =
            HeaderValue::from_str(&giving.authority).map_err(|_| failed(sigv4::Error::NoHost))?;
        parts.headers.insert(http::header::HOST, host);
        let bytes;
        let payload = if !sigv4::needs_body(&parts) {
            sigv4::Payload::AsTold
        } else if service == "s3" {
            sigv4::Payload::Unsigned
        } else {
            let peeked = body.peek(MAX_SIGNED, |_| false).await;
            let (read, whole) = peeked.map_err(|_| Denial::malformed("the body broke off"))?;
            if !whole {
                return Err(failed(sigv4::Error::NeedsBody));
            }
            bytes = read;
            sigv4::Payload::Bytes(&bytes)
        };
        let keys = sigv4::Keys {
            id,
            key: &key,
            session: session.as_ref(),
        };
        let scope = sigv4::Scope { region, service };
        sigv4::sign(&mut parts, &keys, &scope, SystemTime::now(), payload).map_err(failed)?;
        self.path = parts.uri.path().to_owned();
        self.query = parts.uri.query().map(str::to_owned);
        parts.headers.remove(http::header::HOST);
        self.headers = parts.headers;
        // The key itself is in no request; what would be looked for is the pair.
        self.values.push(Arc::new(key));
        Ok(())
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

    fn put_header(&mut self, name: HeaderName, text: &[u8], secret: &str) -> Result<(), Denial> {
        let mut value = HeaderValue::from_bytes(text)
            .map_err(|_| unusable(secret, "it holds characters that cannot stand in a header"))?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(())
    }

    /// Takes a parameter out of the query; returns its values as they were written.
    fn take_query(&mut self, key: &str) -> Vec<String> {
        let Some(query) = &self.query else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        let mut kept = Vec::new();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if form_decode(name) == key.as_bytes() {
                taken.push(value.to_owned());
            } else {
                kept.push(pair);
            }
        }
        if !taken.is_empty() {
            let kept = kept.join("&");
            self.query = (!kept.is_empty()).then_some(kept);
        }
        taken
    }

    fn add_query(&mut self, key: &str, value: &[u8], encoded: Encoded) {
        let value = match encoded {
            Encoded::Already => String::from_utf8_lossy(value).into_owned(),
            Encoded::No => percent_encode(value),
        };
        let pair = format!("{}={value}", percent_encode(key.as_bytes()));
        self.query = Some(match self.query.take() {
            Some(query) if !query.is_empty() => format!("{query}&{pair}"),
            _none => pair,
        });
    }

    fn path_and_query(&self) -> Result<PathAndQuery, Denial> {
        let text = match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        };
        text.parse()
            .map_err(|_| Denial::malformed("the target is no path"))
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

enum Encoded {
    Already,
    No,
}

/// A name in a query: `+` is a space there.
fn form_decode(text: &str) -> Vec<u8> {
    percent_decode(text.replace('+', " ").as_bytes())
}

fn header_name(name: &str) -> Result<HeaderName, Denial> {
    name.parse().map_err(|_| {
        Denial::forbidden(
            DenyReason::Secret,
            format!("the rule's header {name:?} is none"),
        )
    })
}

fn is_signature(name: &HeaderName, value: &HeaderValue) -> bool {
    *name == AUTHORIZATION && value.as_bytes().starts_with(b"AWS4-HMAC-SHA256 ")
}

fn refuse_foreign(refused: bool, secret: &str, place: &str) -> Result<(), Denial> {
    if !refused {
        return Ok(());
    }
    Err(Denial::forbidden(
        DenyReason::Secret,
        format!(
            "{place} holds a credential that is not secret `{secret}`, which the policy requires there; leave it out, or use \
             the placeholder"
        ),
    ))
}

fn unusable(secret: &str, why: &str) -> Denial {
    Denial::forbidden(
        DenyReason::Secret,
        format!("secret `{secret}` cannot be used: {why}"),
    )
}
