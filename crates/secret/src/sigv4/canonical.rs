//! The one form of a request that both sides hash.

use http::HeaderMap;
use http::header::HOST;
use http::request::Parts;

use super::{Error, encode};

/// What a proxy or the next hop changes, or AWS does on the way.
const CHANGED: [&str; 14] = [
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-amzn-trace-id",
];

/// Returns the names of the headers to sign, sorted: those that must be, and those that the client had signed.
pub(super) fn to_sign(headers: &HeaderMap, before: &[String]) -> Vec<String> {
    let must =
        |name: &str| name.starts_with("x-amz-") || ["content-type", "content-md5"].contains(&name);
    let mut names: Vec<String> = headers
        .keys()
        .map(|name| name.as_str())
        .filter(|name| must(name) || before.iter().any(|before| before == name))
        .filter(|name| !CHANGED.contains(name))
        .map(str::to_owned)
        .collect();
    // HTTP/2 says it in another place.
    names.push("host".to_owned());
    names.sort();
    names.dedup();
    names
}

/// Returns the canonical request over these headers.
pub(super) fn request(
    parts: &Parts,
    is_s3: bool,
    signed: &[String],
    hash: &str,
) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    let mut line = |bytes: &[u8]| {
        text.extend_from_slice(bytes);
        text.push(b'\n');
    };
    line(parts.method.as_str().as_bytes());
    line(path(parts.uri.path(), is_s3).as_bytes());
    line(query(parts.uri.query().unwrap_or_default()).as_bytes());
    for name in signed {
        line(&[name.as_bytes(), b":", &values(parts, name)?].concat());
    }
    line(b"");
    line(signed.join(";").as_bytes());
    text.extend_from_slice(hash.as_bytes());
    Ok(text)
}

/// In S3 a path is a name, whatever is in it; elsewhere it is one, and is encoded as it came, that is, twice.
fn path(path: &str, is_s3: bool) -> String {
    if is_s3 {
        return encode::path(&encode::decode(path));
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
    }
    let mut normal = format!("/{}", kept.join("/"));
    if !kept.is_empty() && (path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..")) {
        normal.push('/');
    }
    encode::path(normal.as_bytes())
}

fn query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let again = |text| encode::strict(&encode::decode_query(text));
            (again(name), again(value))
        })
        .filter(|(name, _)| name != "X-Amz-Signature")
        .collect();
    pairs.sort();
    let pairs = pairs.iter().map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join("&")
}

/// All values of a header, each without the spaces around it and with one for several in it.
fn values(parts: &Parts, name: &str) -> Result<Vec<u8>, Error> {
    let mut values: Vec<Vec<u8>> = parts
        .headers
        .get_all(name)
        .iter()
        .map(|value| single_spaced(value.as_bytes()))
        .collect();
    if values.is_empty() && name == HOST {
        let host = parts.uri.authority().ok_or(Error::NoHost)?;
        values.push(host.as_str().as_bytes().to_vec());
    }
    Ok(values.join(&b','))
}

fn single_spaced(value: &[u8]) -> Vec<u8> {
    let words = value
        .split(|b| b.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(&b' ')
}
