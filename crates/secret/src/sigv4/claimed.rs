//! The signature that a client made, in the `Authorization` header or in the query.

use http::header::AUTHORIZATION;
use http::request::Parts;

use super::{ALGORITHM, DATE, Error, date, encode};

/// The parameters of a presigned request.
const PRESIGNED: [&str; 7] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Security-Token",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
];

/// What a client says that it signed, and with which key. Nothing of it is verified: the key is a placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The id of the key.
    pub id: String,
    /// The region it was signed for.
    pub region: String,
    /// The service it was signed for.
    pub service: String,
    /// The time of the signature, `YYYYMMDDThhmmssZ`.
    pub date: String,
    /// The names of the signed headers, in lower case.
    pub signed: Vec<String>,
    /// Whether the signature is in the query.
    pub presigned: bool,
}

/// Returns what a request's signature says.
///
/// # Errors
/// It has none, two, one of another algorithm, or one that cannot be read.
pub fn claimed(parts: &Parts) -> Result<Claimed, Error> {
    let query = parts.uri.query().unwrap_or_default();
    let in_query = PRESIGNED.iter().any(|name| has(query, name) && *name != "X-Amz-Date")
        // What came before version 4.
        || (has(query, "AWSAccessKeyId") && has(query, "Signature"));
    let mut headers = parts.headers.get_all(AUTHORIZATION).iter();
    match (headers.next(), headers.next(), in_query) {
        (None, _, false) => Err(Error::Unsigned),
        (None, _, true) => from_query(query),
        (Some(header), None, false) => from_header(parts, header.to_str().unwrap_or_default()),
        (Some(_), Some(_), _) | (Some(_), None, true) => Err(Error::Twice),
    }
}

/// Tells whether a query has a parameter.
fn has(query: &str, name: &str) -> bool {
    values(query, name).next().is_some()
}

/// Returns the value of a parameter, or of a header, whose name is this in any case.
pub(super) fn value(parts: &Parts, name: &str) -> Result<Option<String>, Error> {
    let query = parts.uri.query().unwrap_or_default();
    let decoded = |text| String::from_utf8_lossy(&encode::decode_query(text)).into_owned();
    let mut told = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .filter(|(told, _)| decoded(told).eq_ignore_ascii_case(name))
        .map(|(_, value)| decoded(value))
        .collect::<Vec<_>>();
    let headers = parts.headers.get_all(name).iter();
    told.extend(headers.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()));
    told.dedup();
    if told.len() > 1 {
        return Err(Error::Twice);
    }
    Ok(told.pop())
}

fn values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    query.split('&').filter_map(move |pair| {
        let (told, value) = pair.split_once('=').unwrap_or((pair, ""));
        if encode::decode(told) != name.as_bytes() {
            return None;
        }
        String::from_utf8(encode::decode_query(value)).ok()
    })
}

fn from_header(parts: &Parts, text: &str) -> Result<Claimed, Error> {
    let (algorithm, rest) = text.split_once(' ').unwrap_or((text, ""));
    if !algorithm.starts_with("AWS") {
        return Err(Error::Unsigned);
    }
    if algorithm != ALGORITHM {
        return Err(Error::Algorithm);
    }
    let part = |name: &str| {
        let mut parts = rest.split(',').map(str::trim);
        parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
    };
    let date = parts.headers.get(DATE).and_then(|date| date.to_str().ok());
    read(
        part("Credential"),
        part("SignedHeaders"),
        part("Signature"),
        // Without it the header `Date` counts, and is of another form.
        date.map(str::to_owned),
        false,
    )
}

fn from_query(query: &str) -> Result<Claimed, Error> {
    let one = |name| {
        let mut values = values(query, name);
        let value = values.next();
        match values.next() {
            Some(_) => Err(Error::Twice),
            None => Ok(value),
        }
    };
    if one("X-Amz-Algorithm")?.as_deref() != Some(ALGORITHM) {
        return Err(Error::Algorithm);
    }
    read(
        one("X-Amz-Credential")?.as_deref(),
        one("X-Amz-SignedHeaders")?.as_deref(),
        one("X-Amz-Signature")?.as_deref(),
        one("X-Amz-Date")?,
        true,
    )
}

fn read(
    credential: Option<&str>,
    signed: Option<&str>,
    signature: Option<&str>,
    date: Option<String>,
    presigned: bool,
) -> Result<Claimed, Error> {
    let malformed = |why| Error::Malformed { why };
    let credential = credential.ok_or_else(|| malformed("it names no credential"))?;
    let signed = signed.ok_or_else(|| malformed("it names no signed headers"))?;
    signature.ok_or_else(|| malformed("there is none in it"))?;
    let parts: Vec<&str> = credential.split('/').collect();
    let [id, day, region, service, "aws4_request"] = parts[..] else {
        return Err(malformed(
            "its credential is no key, day, region and service",
        ));
    };
    let date = match date {
        Some(date) if date::is_amz(&date) && date.starts_with(day) && day.len() == 8 => date,
        Some(_) => {
            return Err(malformed(
                "its time is none, or of another day than its credential",
            ));
        }
        None if presigned => return Err(malformed("it says no time")),
        None => String::new(),
    };
    Ok(Claimed {
        id: id.to_owned(),
        region: region.to_owned(),
        service: service.to_owned(),
        date,
        signed: signed.split(';').map(str::to_ascii_lowercase).collect(),
        presigned,
    })
}
