//! References to secrets: what stands in a policy, in the journal and in messages in place of a value.
//!
//! A text that is no reference is never repeated in an error: it may be a secret that somebody pasted.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::literal;

/// Where the value of a secret comes from.
///
/// Its text (`Display`, `FromStr`) is what may be journaled and shown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// `env:NAME`: a variable in the daemon's environment.
    Env(String),
    /// `file:/abs/path`: a file that nobody but its owner can read.
    File(PathBuf),
    /// `age:NAME`, or the bare name: a secret in the store of our own. The default.
    Store(String),
    /// `keyring:service/account`: an entry of the desktop's keyring, asked for through `secret-tool`.
    Keyring {
        /// The attribute `service`.
        service: String,
        /// The attribute `username`, or `account`.
        account: String,
    },
    /// `op://vault/item/field`: a field in 1Password, asked for through `op`.
    OnePassword(String),
    /// `vault:path#key`: a key in HashiCorp Vault's key-value store, asked for through `vault`.
    Vault {
        /// Where it lies, the mount first.
        path: String,
        /// The key there.
        key: String,
    },
    /// `command:["prog","arg"]`: what a program prints. There is no shell in between.
    Command(Vec<String>),
}

/// Why a text is no reference to a secret. What the text was is not in here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no reference to a secret: {why}; {hint}")]
pub struct SourceError {
    /// The rule that it breaks.
    pub why: String,
    /// What to write instead.
    pub hint: &'static str,
}

const FORMS: &str = "write env:NAME, file:/abs/path, age:NAME or the bare NAME, keyring:service/account, \
    op://vault/item/field, vault:path#key or command:[\"prog\",\"arg\"]";
const KEEP_IT: &str = "keep the secret itself with `durable secret set NAME`, or in a variable or a file, and write a \
    reference to it here";

impl Source {
    /// Tells whether only the host's own configuration may name this source: it runs a program that the reference chooses.
    #[must_use]
    pub fn is_host_only(&self) -> bool {
        matches!(self, Self::Command(_))
    }
}

/// Checks the name of a secret in the store. It becomes a file's name.
///
/// # Errors
/// It is none, or looks like the secret itself; what was given is not in the error.
pub fn check_name(text: &str) -> Result<(), SourceError> {
    not_literal(text)?;
    let starts = text
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric());
    let goes_on = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if !starts || !goes_on || text.len() > 64 {
        return Err(refuse(
            "a name is up to 64 letters, digits, `.`, `_` and `-`, and begins with a letter or a digit",
        ));
    }
    Ok(())
}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        if text.is_empty() {
            return Err(refuse("it is empty"));
        }
        if text.chars().any(char::is_control) {
            // A pasted key file has line ends; nothing else that is meant has.
            return Err(literal("something with line ends or control characters"));
        }
        if text.starts_with("op://") {
            return one_password(text);
        }
        match text.split_once(':') {
            None => store(text),
            Some(("age", name)) => store(name),
            Some(("env", name)) => env(name),
            Some(("file", path)) => file(path),
            Some(("keyring", rest)) => keyring(rest),
            Some(("vault", rest)) => vault(rest),
            Some(("command", rest)) => command(rest),
            Some(_) => {
                not_literal(text)?;
                Err(refuse("it begins with no scheme that is known here"))
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Store(name) => write!(f, "age:{name}"),
            Self::Keyring { service, account } => write!(f, "keyring:{service}/{account}"),
            Self::OnePassword(reference) => f.write_str(reference),
            Self::Vault { path, key } => write!(f, "vault:{path}#{key}"),
            Self::Command(argv) => write!(f, "command:{}", serde_json::json!(argv)),
        }
    }
}

fn refuse(why: impl Into<String>) -> SourceError {
    SourceError {
        why: why.into(),
        hint: FORMS,
    }
}

fn literal(kind: &str) -> SourceError {
    SourceError {
        why: format!("it looks like {kind}, that is, like the secret itself"),
        hint: KEEP_IT,
    }
}

fn not_literal(text: &str) -> Result<(), SourceError> {
    literal::kind(text).map_or(Ok(()), |kind| Err(literal(kind)))
}

/// For what other programs name freely: random ids are allowed there, and the keys of makers are not.
fn no_makers_key(text: &str) -> Result<(), SourceError> {
    match literal::prefix(text).and_then(|_| literal::kind(text)) {
        Some(kind) => Err(literal(kind)),
        None => Ok(()),
    }
}

fn store(name: &str) -> Result<Source, SourceError> {
    check_name(name)?;
    Ok(Source::Store(name.to_owned()))
}

fn env(name: &str) -> Result<Source, SourceError> {
    not_literal(name)?;
    let starts = name
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !starts || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err(refuse(
            "a variable's name is letters, digits and `_`, and does not begin with a digit",
        ));
    }
    Ok(Source::Env(name.to_owned()))
}

fn file(path: &str) -> Result<Source, SourceError> {
    if !path.starts_with('/') {
        return Err(refuse(
            "the path after `file:` must be absolute: the daemon runs in another directory",
        ));
    }
    Ok(Source::File(PathBuf::from(path)))
}

fn keyring(rest: &str) -> Result<Source, SourceError> {
    match rest.split_once('/') {
        Some((service, account)) if !service.is_empty() && !account.is_empty() => {
            no_makers_key(service)?;
            no_makers_key(account)?;
            Ok(Source::Keyring {
                service: service.to_owned(),
                account: account.to_owned(),
            })
        }
        _ => Err(refuse(
            "after `keyring:` stand a service and an account with a `/` between",
        )),
    }
}

fn one_password(text: &str) -> Result<Source, SourceError> {
    let rest = text.strip_prefix("op://").unwrap_or(text);
    let parts: Vec<&str> = rest.split('/').collect();
    if !(3..=4).contains(&parts.len()) || parts.iter().any(|part| part.is_empty()) {
        return Err(refuse(
            "after `op://` stand a vault, an item, perhaps a section, and a field",
        ));
    }
    for part in parts {
        no_makers_key(part)?;
    }
    Ok(Source::OnePassword(text.to_owned()))
}

fn vault(rest: &str) -> Result<Source, SourceError> {
    match rest.rsplit_once('#') {
        // A path that begins with a dash would be an option of `vault`.
        Some((path, key))
            if !path.is_empty()
                && !key.is_empty()
                && !path.starts_with('-')
                && !path.contains("..") =>
        {
            for part in path.split('/').chain([key]) {
                no_makers_key(part)?;
            }
            Ok(Source::Vault {
                path: path.to_owned(),
                key: key.to_owned(),
            })
        }
        _ => Err(refuse(
            "after `vault:` stand a path, its mount first, and a key with a `#` between",
        )),
    }
}

fn command(rest: &str) -> Result<Source, SourceError> {
    let argv: Vec<String> = serde_json::from_str(rest).map_err(|_| {
        refuse("after `command:` stands a JSON list of texts, the program and its arguments")
    })?;
    if argv.first().is_none_or(String::is_empty) {
        return Err(refuse("the list after `command:` names no program"));
    }
    for arg in &argv {
        not_literal(arg)?;
        if arg.contains('\0') {
            return Err(refuse("an argument after `command:` holds a NUL"));
        }
    }
    Ok(Source::Command(argv))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Source {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    #[test]
    fn every_scheme_is_read_and_written() {
        let keyring = Source::Keyring {
            service: "gh:github.com".into(),
            account: "octo/cat".into(),
        };
        let vault = Source::Vault {
            path: "secret/team/app".into(),
            key: "token".into(),
        };
        let command = Source::Command(vec!["gh".into(), "auth".into(), "to\"ken".into()]);
        for (text, source) in [
            ("env:GITHUB_TOKEN", Source::Env("GITHUB_TOKEN".into())),
            ("file:/run/secrets/x", Source::File("/run/secrets/x".into())),
            ("age:github", Source::Store("github".into())),
            ("keyring:gh:github.com/octo/cat", keyring),
            (
                "op://Private/GitHub/token?attribute=otp",
                Source::OnePassword("op://Private/GitHub/token?attribute=otp".into()),
            ),
            ("vault:secret/team/app#token", vault),
            (r#"command:["gh","auth","to\"ken"]"#, command),
        ] {
            assert_eq!(parse(text), source);
            assert_eq!(source.to_string(), text);
        }
        assert_eq!(parse("github"), Source::Store("github".into()));
        assert!(parse(r#"command:["gh"]"#).is_host_only());
        assert!(!parse("env:A").is_host_only());
    }

    #[test]
    fn what_is_no_reference_is_refused_with_the_forms_that_are() {
        for text in [
            "",
            "a b",
            "../x",
            ".hidden",
            "env:",
            "env:1A",
            "env:A-B",
            "file:relative",
            "file:",
            "keyring:only",
            "keyring:/x",
            "op://vault/item",
            "op://a//b",
            "vault:path",
            "vault:#k",
            "vault:-address=x#k",
            "vault:a/../b#k",
            "command:gh auth token",
            "command:[]",
            "command:[1]",
            r#"command:[""]"#,
            "bw:item",
            "user:password",
            &"x".repeat(65),
        ] {
            let why = text.parse::<Source>().expect_err(text);
            assert!(why.to_string().contains("env:NAME"), "{text}: {why}");
        }
    }

    #[test]
    fn a_secret_that_is_pasted_is_refused_with_a_hint_and_never_repeated() {
        let body = ["0123456789abcdefghij", "ABCDEFGHIJ012345"].concat();
        let token = ["ghp_", &body].concat();
        for text in [
            token.clone(),
            format!("age:{token}"),
            format!("env:{token}"),
            format!("op://v/i/{token}"),
            format!("vault:secret/a#{token}"),
            format!("keyring:x/{token}"),
            format!(r#"command:["curl","-H","Authorization: Bearer {token}"]"#),
            format!("Bearer {token}"),
            format!("https://user:{token}@host"),
            body.clone(),
            format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"),
        ] {
            let why = text.parse::<Source>().expect_err(&text);
            let said = format!("{why} {why:?}");
            assert!(said.contains("durable secret set"), "{text}: {said}");
            assert!(!said.contains(&body[..8]), "{said}");
        }
    }

    proptest! {
        #[test]
        fn no_error_repeats_what_was_given(text in "[ -~]{8,60}") {
            if let Err(why) = text.parse::<Source>() {
                let said = format!("{why} {why:?}");
                for piece in text.split([':', '/', ' ', '"']).filter(|piece| piece.len() > 7) {
                    prop_assert!(!said.contains(piece), "{said}");
                }
            }
        }

        #[test]
        fn what_is_read_is_written_the_same(text in "(env:[A-Z_]{1,9}|file:/[a-z/ ]{1,9}|age:[a-z][a-z.-]{0,9}|keyring:[a-z:]{1,9}/[a-z/]{1,9}|vault:[a-z/]{1,9}#[a-z]{1,9})") {
            let source: Source = text.parse().map_err(|why| TestCaseError::fail(format!("{why}")))?;
            prop_assert_eq!(source.to_string().parse::<Source>(), Ok(source));
        }
    }
}
