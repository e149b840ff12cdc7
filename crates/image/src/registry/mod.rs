//! The pulling half of a registry's API: manifests, and blobs that go on where a broken connection left them.
//!
//! Plain HTTP is spoken to registries on this machine only. What a registry says may lead to another host (its blob store,
//! its token service), never from HTTPS to HTTP, and the credentials for one host are not shown to another.

mod auth;
mod credentials;
mod error;
mod http;

use std::path::PathBuf;
use std::time::Duration;

use ::http::StatusCode;
use ::http::header::{ACCEPT, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, RANGE};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::mpsc;

pub use self::error::RegistryError;

use self::auth::Auth;
use self::http::{Http, with_causes};
use crate::digest::Digest;
use crate::limits::Limits;
use crate::manifest::{self, Descriptor, Document, Manifest, ManifestError};
use crate::reference::Reference;

/// Times that something is tried without any progress, and what is waited before the second.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// A registry that asks for more patience than this is given up on.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// Silence in the middle of a body.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Indexes of indexes exist; deeper nesting does not.
const MAX_NESTING: usize = 4;

/// Asks one registry for one image.
pub(crate) struct Client {
    reference: Reference,
    http: Http,
    auth: Auth,
    limits: Limits,
}

impl Client {
    pub(crate) fn new(
        reference: Reference,
        docker_config: Option<PathBuf>,
        limits: Limits,
    ) -> Self {
        Self {
            http: Http::new(reference.is_loopback()),
            auth: Auth::new(&reference, docker_config),
            reference,
            limits,
        }
    }

    /// Returns the image's manifest for this machine, with its digest.
    pub(crate) async fn manifest(&self) -> Result<(Digest, Manifest), RegistryError> {
        let mut name = self.reference.manifest_name();
        let mut wanted = self.reference.digest();
        for _ in 0..MAX_NESTING {
            let (bytes, media_type) = self
                .document("manifests", &name, self.limits.max_document_bytes)
                .await?;
            let found = Digest::of(&bytes);
            if let Some(expected) = wanted
                && expected != found
            {
                let what = "manifest";
                return Err(RegistryError::Digest {
                    what,
                    expected,
                    found,
                });
            }
            match Document::parse(&bytes, media_type.as_deref())? {
                Document::Manifest(manifest) => return Ok((found, manifest)),
                Document::Index(index) => {
                    let digest = index.pick()?.digest;
                    (name, wanted) = (digest.to_string(), Some(digest));
                }
            }
        }
        let why = "its indexes are nested too deeply".to_owned();
        Err(ManifestError::Malformed { what: "index", why }.into())
    }

    /// Returns a small blob.
    pub(crate) async fn config(&self, descriptor: &Descriptor) -> Result<Bytes, RegistryError> {
        let allowed = self.limits.max_document_bytes;
        if descriptor.size > allowed {
            let what = "configuration";
            return Err(RegistryError::TooLarge { what, allowed });
        }
        let name = descriptor.digest.to_string();
        let (bytes, _) = self.document("blobs", &name, descriptor.size).await?;
        let found = Digest::of(&bytes);
        if found != descriptor.digest {
            let (what, expected) = ("configuration", descriptor.digest);
            return Err(RegistryError::Digest {
                what,
                expected,
                found,
            });
        }
        Ok(bytes)
    }

    /// Sends a blob's bytes, in order and each once, however often the connection breaks. Ends early, without an error,
    /// when nobody takes them any more. Whoever takes them checks the digest.
    pub(crate) async fn blob(
        &self,
        descriptor: &Descriptor,
        to: &mpsc::Sender<Bytes>,
    ) -> Result<(), RegistryError> {
        let (mut sent, mut tries) = (0_u64, 0);
        loop {
            let before = sent;
            let why = match self.blob_from(descriptor, &mut sent, to).await {
                Ok(Ended::Taken) => return Ok(()),
                Ok(Ended::Broken(why)) => why,
                Err(error) => return Err(error),
            };
            tries = if sent > before { 1 } else { tries + 1 };
            if tries >= TRIES {
                return Err(RegistryError::Broken {
                    digest: descriptor.digest,
                    sent,
                    size: descriptor.size,
                    why,
                });
            }
            tracing::debug!(digest = %descriptor.digest, sent, why, "a download broke off; it goes on from there");
            tokio::time::sleep(FIRST_WAIT * 2_u32.pow(tries - 1)).await;
        }
    }

    async fn blob_from(
        &self,
        descriptor: &Descriptor,
        sent: &mut u64,
        to: &mpsc::Sender<Bytes>,
    ) -> Result<Ended, RegistryError> {
        let mut headers = HeaderMap::new();
        if *sent > 0
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={sent}-"))
        {
            headers.insert(RANGE, range);
        }
        let path = format!("blobs/{}", descriptor.digest);
        let response = self.get(&path, &headers).await?;
        // A server that knows no ranges begins anew; what was sent already is passed over.
        let mut skip = *sent;
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let start = response
                .headers()
                .get(CONTENT_RANGE)
                .and_then(|v| v.to_str().ok())
                .and_then(range_start);
            if start != Some(*sent) {
                return Ok(Ended::Broken(
                    "the server sent another range than it was asked for".into(),
                ));
            }
            skip = 0;
        }
        let mut body = response.into_body();
        loop {
            let data = match next(&mut body).await {
                Ok(Some(data)) => data,
                Ok(None) if *sent == descriptor.size => return Ok(Ended::Taken),
                Ok(None) => {
                    return Ok(Ended::Broken(
                        "the server closed the connection early".into(),
                    ));
                }
                Err(why) => return Ok(Ended::Broken(why)),
            };
            let passed = skip.min(data.len() as u64);
            skip -= passed;
            let data = data.slice(usize::try_from(passed).unwrap_or(data.len())..);
            *sent += data.len() as u64;
            let over = *sent > descriptor.size;
            if !data.is_empty() && to.send(data).await.is_err() {
                return Ok(Ended::Taken);
            }
            if over {
                // Whoever takes the bytes has seen one too many, and says so.
                return Ok(Ended::Taken);
            }
        }
    }

    /// Reads a document, which is bounded.
    async fn document(
        &self,
        kind: &str,
        name: &str,
        allowed: u64,
    ) -> Result<(Bytes, Option<String>), RegistryError> {
        let mut headers = HeaderMap::new();
        if kind == "manifests" {
            for media_type in manifest::ACCEPT {
                headers.append(ACCEPT, HeaderValue::from_static(media_type));
            }
        }
        let mut tries = 0;
        loop {
            let response = self.get(&format!("{kind}/{name}"), &headers).await?;
            let media_type = response
                .headers()
                .get(CONTENT_TYPE)
                .and_then(|v| v.to_str().ok());
            let media_type = media_type
                .and_then(|v| v.split(';').next())
                .map(|v| v.trim().to_owned());
            match self.http.body(response, allowed).await? {
                Ok(bytes) => return Ok((bytes, media_type)),
                Err(why) if tries + 1 >= TRIES => {
                    let host = self.reference.registry().to_owned();
                    return Err(RegistryError::Unreachable { host, why });
                }
                Err(_broke_off) => {
                    tokio::time::sleep(FIRST_WAIT * 2_u32.pow(tries)).await;
                    tries += 1;
                }
            }
        }
    }

    /// Asks until there is a good answer, or one that asking again would not change.
    async fn get(
        &self,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<::http::Response<Incoming>, RegistryError> {
        let scheme = if self.reference.is_loopback() {
            "http"
        } else {
            "https"
        };
        let (host, repository) = (self.reference.api_host(), self.reference.repository());
        let url = format!("{scheme}://{host}/v2/{repository}/{path}");
        let (mut tries, mut asked_for_credentials) = (0, false);
        loop {
            let authorization = self.auth.header();
            let (wait, last) = match self.http.get(&url, headers, authorization.as_ref()).await {
                Err(RegistryError::Unreachable { host, why }) => {
                    (None, RegistryError::Unreachable { host, why })
                }
                Err(error) => return Err(error),
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response)
                    if response.status() == StatusCode::UNAUTHORIZED && !asked_for_credentials =>
                {
                    asked_for_credentials = true;
                    self.auth.answer(&self.http, response.headers()).await?;
                    continue;
                }
                Ok(response) => {
                    let wait = http::retry_after(response.headers());
                    let error = self.http.refusal(response, &self.reference, path).await;
                    if !error.is_transient() {
                        return Err(error);
                    }
                    (wait, error)
                }
            };
            tries += 1;
            let wait = wait.unwrap_or(FIRST_WAIT * 2_u32.pow(tries - 1));
            if tries >= TRIES || wait > LONGEST_WAIT {
                return Err(last);
            }
            tokio::time::sleep(wait).await;
        }
    }
}

enum Ended {
    /// All was sent, or nobody wants more.
    Taken,
    Broken(String),
}

/// Returns the next piece of a body; an error is words for people.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, String> {
    loop {
        let Ok(frame) = tokio::time::timeout(IDLE_TIMEOUT, body.frame()).await else {
            return Err(format!(
                "nothing came for {} seconds",
                IDLE_TIMEOUT.as_secs()
            ));
        };
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(with_causes(&error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    return Ok(Some(data));
                }
            }
        }
    }
}

fn range_start(value: &str) -> Option<u64> {
    value
        .strip_prefix("bytes ")?
        .split('-')
        .next()?
        .trim()
        .parse()
        .ok()
}
