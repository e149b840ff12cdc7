//! What a literal secret looks like: where a reference is wanted, one that was pasted instead is refused and told nowhere.

/// How the keys of well-known makers begin. What follows is random; what stands here is known to everybody.
///
/// Longer ones stand before those that they begin with.
pub(crate) const PREFIXES: [&str; 56] = [
    "AGE-SECRET-KEY-1",
    "AIza",
    "AKIA",
    "ASIA",
    "SG.",
    "dckr_pat_",
    "dop_v1_",
    "figd_",
    "github_pat_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "glpat-",
    "gldt-",
    "glrt-",
    "gsk_",
    "hf_",
    "hvb.",
    "hvs.",
    "lin_api_",
    "npm_",
    "ntn_",
    "nvapi-",
    "pk_live_",
    "pk_test_",
    "pplx-",
    "pypi-",
    "r8_",
    "rk_live_",
    "rk_test_",
    "shpat_",
    "sk-admin-",
    "sk-ant-admin01-",
    "sk-ant-api03-",
    "sk-ant-oat01-",
    "sk-ant-",
    "sk-lf-",
    "sk-or-v1-",
    "sk-proj-",
    "sk-svcacct-",
    "sk-",
    "sk_live_",
    "sk_test_",
    "tvly-",
    "whsec_",
    "xai-",
    "xapp-",
    "xoxa-",
    "xoxb-",
    "xoxe.",
    "xoxp-",
    "xoxr-",
    "xoxs-",
    "ya29.",
];

/// Below this many characters after its prefix a text is a name that happens to begin like a key.
const BODY: usize = 12;

/// Returns the prefix of a maker that a text begins with.
pub(crate) fn prefix(text: &str) -> Option<&'static str> {
    PREFIXES
        .into_iter()
        .find(|prefix| text.starts_with(*prefix))
}

/// Returns what a text looks like, where it looks like a secret and not like a reference to one.
pub(crate) fn kind(text: &str) -> Option<&'static str> {
    let text = text.trim();
    if let Some(prefix) = prefix(text)
        && text.len() >= prefix.len() + BODY
    {
        return Some("a key of a well-known maker");
    }
    if text.contains("-----BEGIN ") {
        return Some("a key or certificate in PEM");
    }
    if text.starts_with("eyJ") && text.matches('.').count() == 2 {
        return Some("a JSON web token");
    }
    let lower = text.to_ascii_lowercase();
    if ["bearer ", "basic ", "token "]
        .iter()
        .any(|scheme| lower.starts_with(scheme))
    {
        return Some("the value of an Authorization header");
    }
    if is_random(text) {
        return Some("random characters");
    }
    None
}

/// Long runs of hex digits, UUIDs, and long mixtures of upper case, lower case and digits are drawn by machines.
fn is_random(text: &str) -> bool {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    if hex.len() >= 32
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
        && hex.bytes().any(|b| b.is_ascii_digit())
    {
        return true;
    }
    text.split(|c: char| !(c.is_ascii_alphanumeric() || "+=".contains(c)))
        .any(|run| {
            let has = |what: fn(&u8) -> bool| run.bytes().any(|b| what(&b));
            run.len() >= 20
                && has(u8::is_ascii_uppercase)
                && has(u8::is_ascii_lowercase)
                && has(u8::is_ascii_digit)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joined here, so that no scanner of repositories takes a test for a leak.
    fn joined(parts: &[&str]) -> String {
        parts.concat()
    }

    #[test]
    fn what_is_pasted_is_recognised() {
        for text in [
            joined(&["ghp_", "0123456789abcdefghijABCDEFGHIJ012345"]),
            joined(&["sk-ant-", "api03-", "abcdefghijklmnopqrstuvwx"]),
            joined(&["AKIA", "IOSFODNN7EXAMPLE"]),
            joined(&["wJalrXUtnFEMI/K7MDENG/", "bPxRfiCYEXAMPLEKEY9aQ"]),
            joined(&["xoxb-", "123456789012-123456789012-abcdef"]),
            joined(&["eyJhbGciOiJIUzI1NiJ9.", "eyJzdWIiOiIxIn0.", "c2ln"]),
            joined(&["-----BEGIN ", "PRIVATE KEY-----"]),
            joined(&["Bearer ", "abc"]),
            joined(&["5f4dcc3b5aa765d6", "1d8327deb882cf99"]),
            joined(&["1b4e28ba-2fa1-11d2-", "883f-0016d3cca427"]),
            joined(&["AGE-SECRET-", "KEY-1QQQQQQQQQQQQQQQQQQQQQQ"]),
        ] {
            assert!(kind(&text).is_some(), "{text}");
        }
    }

    #[test]
    fn names_people_give_are_no_secrets() {
        for text in [
            "github",
            "GITHUB_TOKEN",
            "npm_token",
            "sk-personal",
            "prod.database-password",
            "AWS_SECRET_ACCESS_KEY",
            "deploy-key-2026-11-30",
            "the_long_name_of_a_secret_of_ours",
            "OPENAI_API_KEY_FOR_THE_STAGING_ENVIRONMENT2",
            "github_pat_mine",
        ] {
            assert_eq!(kind(text), None, "{text}");
        }
    }

    #[test]
    fn a_longer_prefix_stands_before_the_one_it_begins_with() {
        for (at, long) in PREFIXES.iter().enumerate() {
            for short in &PREFIXES[..at] {
                assert!(!long.starts_with(short), "{long} is never reached");
            }
        }
    }
}
