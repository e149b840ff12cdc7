//! AWS's Signature Version 4: signs a request with a key that whoever made the request does not have.
//!
//! A client inside signs with a placeholder key; [`claimed`] finds that, and [`resign`] makes a request of it that carries the
//! real one's signature, in the headers or, where it was presigned, in the query. A request is signed as a whole or refused:
//! nothing goes on half signed. A body is passed as it is, so what signs each of its chunks cannot be signed anew.

mod canonical;
mod claimed;
mod date;
mod encode;

use std::time::SystemTime;

use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Uri};
use zeroize::Zeroizing;

use crate::value::{NotText, Value};

pub use claimed::{Claimed, claimed};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// In chunks, with a checksum behind them and no signature in them: the body can stay as it is.
const UNSIGNED_CHUNKS: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

/// An access key of AWS.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a> {
    /// Its id, `AKIA…` or `ASIA…`.
    pub id: &'a str,
    /// The secret access key.
    pub key: &'a Value,
    /// The session token of a temporary key.
    pub session: Option<&'a Value>,
}

/// What a signature is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope<'a> {
    /// Such as `eu-central-1`.
    pub region: &'a str,
    /// Such as `s3`.
    pub service: &'a str,
}

/// What is signed of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload<'a> {
    /// What `x-amz-content-sha256` says: a hash, or that nothing of it is signed.
    AsTold,
    /// Nothing: `UNSIGNED-PAYLOAD`. S3 takes it, over TLS.
    Unsigned,
    /// The hash of it.
    Hash([u8; 32]),
    /// The whole of it.
    Bytes(&'a [u8]),
}

/// A request cannot be signed. No key is in here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not signed at all.
    #[error("the request has no AWS signature to replace; sign it with the placeholder keys")]
    Unsigned,
    /// There is a signature in the headers and another in the query.
    #[error("the request is signed in its headers and in its query; sign it in one of them")]
    Twice,
    /// What should be a signature is none.
    #[error("the request's AWS signature cannot be read: {why}")]
    Malformed {
        /// What is wrong.
        why: &'static str,
    },
    /// Another algorithm than HMAC with SHA-256.
    #[error(
        "the request is signed with another algorithm than {ALGORITHM}; turn SigV4A and older signatures off in the client"
    )]
    Algorithm,
    /// It was signed with a key that is not the placeholder.
    #[error(
        "the request is signed with a key that is not the placeholder of this sandbox; use the one from its environment"
    )]
    OtherKey,
    /// It was signed for another region or service than the rule allows.
    #[error(
        "the request is signed for {claimed}, and the rule allows {allowed}; change the client's region, or the rule"
    )]
    OtherScope {
        /// What the client signed for.
        claimed: String,
        /// What is allowed.
        allowed: String,
    },
    /// Each chunk of the body carries a signature.
    #[error(
        "the chunks of the request's body are signed one by one (aws-chunked), and cannot be signed anew; set \
         AWS_REQUEST_CHECKSUM_CALCULATION=when_required, or turn chunked signing off in the client"
    )]
    Chunked,
    /// The hash of the body is needed and nobody told it.
    #[error(
        "the request says no hash of its body (x-amz-content-sha256), so its body must be read before it is signed"
    )]
    NeedsBody,
    /// A secret does not fit where it must stand.
    #[error("the AWS key is not usable: {why}; set the secret again")]
    Key {
        /// What is wrong.
        why: &'static str,
    },
    /// There is no host in it.
    #[error("the request names no host")]
    NoHost,
    /// The time is before 1970 or after 9999.
    #[error("the clock of this machine is wrong")]
    Clock,
}

impl From<NotText> for Error {
    fn from(_: NotText) -> Self {
        Self::Key {
            why: "it is not text",
        }
    }
}

/// Signs a request, whatever signature of AWS it had before: in its query if that was there, with the time and the lifetime
/// that it had, and else in its headers.
///
/// Signed are the host, the content's type and all headers of AWS's own, and what the client had signed and a proxy does
/// not change. A signature in the query leaves the payload to what the request says of it.
///
/// # Errors
/// It cannot be signed; then it must not be sent.
pub fn sign(
    parts: &mut Parts,
    keys: &Keys<'_>,
    scope: &Scope<'_>,
    time: SystemTime,
    payload: Payload<'_>,
) -> Result<(), Error> {
    let before = match claimed(parts) {
        Ok(claimed) if claimed.presigned => return presign(parts, &claimed, keys, scope),
        Ok(claimed) => claimed.signed,
        Err(Error::Unsigned) => Vec::new(),
        Err(why) => return Err(why),
    };
    let hash = hash(&parts.headers, payload)?;
    let date = date::amz(time).ok_or(Error::Clock)?;
    let headers = &mut parts.headers;
    headers.remove(AUTHORIZATION);
    headers.remove(TOKEN);
    headers.insert(DATE, plain(&date)?);
    if scope.service == "s3" || headers.contains_key(CONTENT_SHA256) {
        headers.insert(CONTENT_SHA256, plain(&hash)?);
    }
    if let Some(session) = keys.session {
        headers.insert(TOKEN, secret(session.text()?)?);
    }
    let signed = canonical::to_sign(headers, &before);
    let request = canonical::request(parts, scope.service == "s3", &signed, &hash)?;
    let scoped = scoped(&date, scope);
    let signature = signature(keys.key, scope, &date, &scoped, &request);
    let authorization = format!(
        "{ALGORITHM} Credential={}/{scoped}, SignedHeaders={}, Signature={signature}",
        keys.id,
        signed.join(";"),
    );
    parts.headers.insert(AUTHORIZATION, secret(&authorization)?);
    Ok(())
}

/// Signs a request anew that was signed with the placeholder key `fake_id`, for this very scope; as [`sign`] does.
///
/// # Errors
/// It is not signed, with another key, for something else than `scope`, or in a way that cannot be signed anew.
pub fn resign(
    parts: &mut Parts,
    fake_id: &str,
    keys: &Keys<'_>,
    scope: &Scope<'_>,
    time: SystemTime,
    payload: Payload<'_>,
) -> Result<(), Error> {
    let claimed = claimed(parts)?;
    if claimed.id != fake_id {
        return Err(Error::OtherKey);
    }
    if (claimed.region.as_str(), claimed.service.as_str()) != (scope.region, scope.service) {
        return Err(Error::OtherScope {
            claimed: format!("{} in {}", claimed.service, claimed.region),
            allowed: format!("{} in {}", scope.service, scope.region),
        });
    }
    sign(parts, keys, scope, time, payload)
}

/// Tells whether the body must be read before the request can be signed: nothing in it says its hash.
#[must_use]
pub fn needs_body(parts: &Parts) -> bool {
    let presigned = claimed(parts).is_ok_and(|claimed| claimed.presigned);
    !presigned && !parts.headers.contains_key(CONTENT_SHA256)
}

fn presign(
    parts: &mut Parts,
    claimed: &Claimed,
    keys: &Keys<'_>,
    scope: &Scope<'_>,
) -> Result<(), Error> {
    let scoped = scoped(&claimed.date, scope);
    let is_s3 = scope.service == "s3";
    let hash = match claimed::value(parts, CONTENT_SHA256.as_str())? {
        Some(told) => told_hash(&told)?,
        None if is_s3 => UNSIGNED.to_owned(),
        None => encode::hex(&sha256(b"")),
    };
    without(
        parts,
        &[
            "X-Amz-Credential",
            "X-Amz-Security-Token",
            "X-Amz-Signature",
        ],
    )?;
    let id = format!("{}/{scoped}", keys.id);
    add(parts, "X-Amz-Credential", &id)?;
    if let Some(session) = keys.session {
        add(parts, "X-Amz-Security-Token", session.text()?)?;
    }
    let request = canonical::request(parts, is_s3, &claimed.signed, &hash)?;
    let signature = signature(keys.key, scope, &claimed.date, &scoped, &request);
    add(parts, "X-Amz-Signature", &signature)
}

/// Adds a parameter to the query.
fn add(parts: &mut Parts, name: &str, value: &str) -> Result<(), Error> {
    let query = parts.uri.query().unwrap_or_default();
    let and = if query.is_empty() { "" } else { "&" };
    let query = format!("{query}{and}{name}={}", encode::strict(value.as_bytes()));
    with_query(parts, &query)
}

/// Takes parameters out of the query; the others stay as they are written.
fn without(parts: &mut Parts, names: &[&str]) -> Result<(), Error> {
    let Some(query) = parts.uri.query() else {
        return Ok(());
    };
    let stays = |pair: &&str| {
        let name = encode::decode(pair.split('=').next().unwrap_or_default());
        !names.iter().any(|other| other.as_bytes() == name)
    };
    let pairs: Vec<&str> = query.split('&').filter(stays).collect();
    let query = pairs.join("&");
    with_query(parts, &query)
}

fn with_query(parts: &mut Parts, query: &str) -> Result<(), Error> {
    let path = parts.uri.path();
    let text = match query {
        "" => path.to_owned(),
        query => format!("{path}?{query}"),
    };
    let malformed = || Error::Malformed {
        why: "its query is none",
    };
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.path_and_query = Some(PathAndQuery::try_from(text).map_err(|_| malformed())?);
    parts.uri = Uri::from_parts(uri).map_err(|_| malformed())?;
    Ok(())
}

fn hash(headers: &HeaderMap, payload: Payload<'_>) -> Result<String, Error> {
    match payload {
        Payload::AsTold => {
            let told = headers.get(CONTENT_SHA256).ok_or(Error::NeedsBody)?;
            told_hash(told.to_str().unwrap_or_default())
        }
        Payload::Unsigned => Ok(UNSIGNED.to_owned()),
        Payload::Hash(hash) => Ok(encode::hex(&hash)),
        Payload::Bytes(bytes) => Ok(encode::hex(&sha256(bytes))),
    }
}

fn told_hash(told: &str) -> Result<String, Error> {
    let is_hash = told.len() == 64 && told.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hash || told == UNSIGNED || told == UNSIGNED_CHUNKS {
        return Ok(told.to_owned());
    }
    if told.starts_with("STREAMING-") {
        return Err(Error::Chunked);
    }
    Err(Error::Malformed {
        why: "x-amz-content-sha256 is no hash",
    })
}

fn scoped(date: &str, scope: &Scope<'_>) -> String {
    let Scope { region, service } = scope;
    format!("{}/{region}/{service}/aws4_request", &date[..8])
}

/// Signs the canonical request. `date` is `YYYYMMDDThhmmssZ`.
fn signature(key: &Value, scope: &Scope<'_>, date: &str, scoped: &str, request: &[u8]) -> String {
    let hashed = encode::hex(&sha256(request));
    let to_sign = format!("{ALGORITHM}\n{date}\n{scoped}\n{hashed}");
    let mut with = Zeroizing::new([b"AWS4", key.expose()].concat());
    for step in [&date[..8], scope.region, scope.service, "aws4_request"] {
        with = Zeroizing::new(hmac(&with, step.as_bytes()));
    }
    encode::hex(&hmac(&with, to_sign.as_bytes()))
}

fn hmac(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
    ring::hmac::sign(&key, bytes).as_ref().to_vec()
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    ring::digest::digest(&ring::digest::SHA256, bytes)
        .as_ref()
        .to_vec()
}

fn plain(text: &str) -> Result<HeaderValue, Error> {
    HeaderValue::from_str(text).map_err(|_| Error::Key {
        why: "it does not fit into a header",
    })
}

fn secret(text: &str) -> Result<HeaderValue, Error> {
    let mut value = plain(text)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests;
