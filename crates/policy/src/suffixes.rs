//! Suffixes below which anybody can have a name: a rule for all of them would be a rule for everybody.
//!
//! Registries, by their shape, and the hosts that sell or give away names, from a list of ours. It is no whole list of
//! public suffixes and need not be one: a wildcard is what somebody wrote on purpose, and this catches the mistakes that hurt.

/// Hosts that give names, or buckets under them, to whoever asks.
const SHARED: &str = include_str!("suffixes.txt");

/// Second labels under which countries register.
const SECOND: [&str; 17] = [
    "ac", "asso", "co", "com", "edu", "firm", "gob", "gov", "gouv", "ltd", "mil", "ne", "net",
    "nom", "or", "org", "plc",
];

/// Whether anybody can have a name right below this one.
pub(crate) fn is_public(suffix: &str) -> bool {
    let shape = match suffix.rsplit_once('.') {
        None => true,
        Some((second, country)) => country.len() == 2 && SECOND.contains(&second),
    };
    // `*.azure.com` means all of `*.cloudapp.azure.com` too.
    let above = |line: &str| {
        line.strip_suffix(suffix)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    shape || SHARED.lines().any(above)
}

#[cfg(test)]
mod tests {
    use super::is_public;

    #[test]
    fn names_that_anybody_can_have_are_known() {
        for suffix in [
            "com",
            "localhost",
            "co.uk",
            "com.au",
            "github.io",
            "s3.amazonaws.com",
            "workers.dev",
            "azure.com",
        ] {
            assert!(is_public(suffix), "{suffix}");
        }
        for suffix in [
            "example.com",
            "acme.co.uk",
            "acme.github.io",
            "githubusercontent.com",
            "t.co",
        ] {
            assert!(!is_public(suffix), "{suffix}");
        }
    }
}
