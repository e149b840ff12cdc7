//! Requests signed as AWS does.

use std::sync::Arc;
use std::time::SystemTime;

use http::header::HeaderValue;
use http::request::Parts;
use protocol::DenyReason;
use secret::{Value, sigv4};

use super::{Giving, Work};
use crate::body::Peeked;
use crate::deny::Denial;

/// A body that is signed as a whole is read before; AWS's services other than S3 take no longer ones.
const MAX_SIGNED: usize = 1 << 20;

impl Work {
    /// Signs the request as it stands.
    pub(super) async fn sign(
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
        // The key itself is in no request. Its name and its session are, and a service that echoes them must tell nobody.
        self.values.push(Arc::new(Value::new(id)));
        self.values.push(Arc::new(key));
        self.values.extend(session.map(Arc::new));
        Ok(())
    }
}
