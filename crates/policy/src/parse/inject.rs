//! `inject` of a rule.

use std::collections::BTreeMap;

use super::PolicyError;
use super::fields::{Fields, Item};
use crate::inject::{How, Injection, Place, TokenPlace};
use crate::secret::SecretRef;

/// What an injection can be.
const KINDS: [&str; 7] = [
    "basic",
    "bearer",
    "github_app",
    "header",
    "placeholder",
    "query",
    "sigv4",
];
const KEYS: [&str; 9] = [
    "secret",
    "basic",
    "bearer",
    "format",
    "github_app",
    "header",
    "placeholder",
    "query",
    "sigv4",
];

/// Headers that are of the connection and not of the request.
const CONNECTION: [&str; 12] = [
    "connection",
    "content-encoding",
    "content-length",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers whose content servers repeat in what they answer, log or pass on.
const REPEATED: [&str; 13] = [
    "accept",
    "accept-language",
    "content-type",
    "expect",
    "forwarded",
    "from",
    "idempotency-key",
    "last-event-id",
    "origin",
    "prefer",
    "referer",
    "user-agent",
    "x-request-id",
];

pub(super) fn read(
    item: &Item<'_>,
    secrets: &[SecretRef],
    git: bool,
) -> Result<Injection, PolicyError> {
    let fields = item.table(&KEYS)?;
    let named = fields.need("secret", "the name of a `[[secret]]`")?;
    let name = named.string()?;
    let names = || {
        secrets
            .iter()
            .map(|secret| secret.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let known = secrets.iter().find(|secret| secret.name == name);
    let secret =
        known.ok_or_else(|| named.error("there is no `[[secret]]` of this name", &names()))?;
    let kinds: Vec<_> = KINDS
        .iter()
        .filter_map(|kind| Some((*kind, fields.get(kind)?)))
        .collect();
    let [(kind, value)] = kinds.as_slice() else {
        return Err(item.error(
            "an injection says one thing of where the secret goes",
            &KINDS.join(", "),
        ));
    };
    if let (Some(format), false) = (fields.get("format"), *kind == "header") {
        return Err(format.error("a format belongs to `header`", ""));
    }
    let how = match *kind {
        "basic" => How::Basic { user: user(value)? },
        "bearer" => match value.boolean()? {
            true => How::Bearer,
            false => return Err(value.error("leave it out instead", "true")),
        },
        "header" => How::Header {
            name: header(value, value.string()?)?,
            format: format(&fields)?,
        },
        "query" => How::Query {
            key: key(value, value.string()?)?,
        },
        "placeholder" => {
            if secret.placeholder.is_none() {
                return Err(value.error(format!("secret `{name}` has no `placeholder`"), ""));
            }
            How::Placeholder {
                places: value.items()?.iter().map(place).collect::<Result<_, _>>()?,
            }
        }
        "sigv4" => {
            let fields = value.table(&["service", "region"])?;
            let service = word(&fields.need("service", "s3, execute-api, …")?)?;
            let region = word(&fields.need("region", "us-east-1, …")?)?;
            How::SigV4 { service, region }
        }
        _ => github_app(value, git)?,
    };
    Ok(Injection {
        secret: name.to_owned(),
        how,
    })
}

fn user(item: &Item<'_>) -> Result<String, PolicyError> {
    let user = item.string()?;
    match user.contains(|c: char| c == ':' || c.is_control()) {
        true => Err(item.error("a user has no colon and no control characters", "")),
        false => Ok(user.to_owned()),
    }
}

fn header(item: &Item<'_>, text: &str) -> Result<String, PolicyError> {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if text.is_empty() || !text.chars().all(token) {
        return Err(item.error("this is no name of a header", ""));
    }
    let name = text.to_ascii_lowercase();
    let one_of = |names: &[&str]| names.contains(&name.as_str());
    if one_of(&CONNECTION) || name.starts_with("sec-") {
        return Err(item.error(
            "this header belongs to the connection: no secret goes there",
            "",
        ));
    }
    if one_of(&REPEATED) {
        return Err(item.error(
            "what this header says is often repeated in answers: no secret goes there",
            "",
        ));
    }
    Ok(name)
}

fn format(fields: &Fields<'_>) -> Result<String, PolicyError> {
    let Some(item) = fields.get("format") else {
        return Ok("{}".to_owned());
    };
    let text = item.string()?;
    let visible = text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    match visible && text.matches("{}").count() == 1 {
        true => Ok(text.to_owned()),
        false => Err(item.error(
            "a format has `{}` in it, once, for the value",
            "\"token {}\"",
        )),
    }
}

fn key(item: &Item<'_>, text: &str) -> Result<String, PolicyError> {
    match !text.is_empty() && !text.contains(|c: char| c.is_control()) {
        true => Ok(text.to_owned()),
        false => Err(item.error("this is no key of a query", "")),
    }
}

fn place(item: &Item<'_>) -> Result<Place, PolicyError> {
    match item.string()?.split_once(':') {
        Some(("header", name)) => Ok(Place::Header(header(item, name)?)),
        Some(("query", name)) => Ok(Place::Query(key(item, name)?)),
        _ => Err(item.error("this is no place in a request", "header:NAME, query:KEY")),
    }
}

fn word(item: &Item<'_>) -> Result<String, PolicyError> {
    let text = item.string()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !text.is_empty() && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(item.error(
            "this has other characters than a name has",
            "letters, digits, `-`, `_`, `.`",
        )),
    }
}

fn github_app(item: &Item<'_>, git: bool) -> Result<How, PolicyError> {
    let fields = item.table(&[
        "app",
        "installation",
        "repository",
        "permissions",
        "as",
        "api",
    ])?;
    let app = fields.need("app", "the id of the app")?;
    let repository = fields.need("repository", "one repository, without its owner")?;
    let place = match fields.get("as") {
        None if git => TokenPlace::Basic,
        None => TokenPlace::Bearer,
        Some(item) => match item.string()? {
            "bearer" => TokenPlace::Bearer,
            "basic" => TokenPlace::Basic,
            _ => return Err(item.error("this is no way to send a token", "bearer, basic")),
        },
    };
    let mut permissions = BTreeMap::new();
    let named = fields.need("permissions", "contents = \"read\"")?;
    for (permission, level) in named.table(&[])?.all() {
        match level.string()? {
            level @ ("read" | "write" | "admin") => {
                permissions.insert(permission.to_owned(), level.to_owned())
            }
            _ => {
                return Err(level.error("this is no level of a permission", "read, write, admin"));
            }
        };
    }
    if permissions.is_empty() {
        return Err(named.error("a token needs a permission", "contents = \"read\""));
    }
    Ok(How::GitHubApp {
        app: if app.is_string() {
            word(&app)?
        } else {
            app.number(1, u64::MAX)?.to_string()
        },
        installation: fields
            .need("installation", "the id of the installation")?
            .number(1, u64::MAX)?,
        repository: word(&repository)?,
        permissions,
        place,
        api: fields.get("api").map(|item| api(&item)).transpose()?,
    })
}

/// The address of an Enterprise Server's API.
fn api(item: &Item<'_>) -> Result<String, PolicyError> {
    let wrong = |why: &str| item.error(why, "https://HOST/api/v3");
    let text = item.string()?.trim_end_matches('/');
    let rest = text
        .strip_prefix("https://")
        .ok_or_else(|| wrong("the API is asked over https"))?;
    let (at, path) = rest.split_once('/').unwrap_or((rest, ""));
    if path.contains(['?', '#', '%', '\\']) || path.contains(char::is_whitespace) {
        return Err(wrong("this is no address of an API"));
    }
    match crate::authority(at, Some(443)) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(wrong(&error.to_string())),
    }
}
