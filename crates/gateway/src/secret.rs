//! A secret in memory: it cannot be printed, is not serialisable and is wiped when it is dropped.

use std::fmt;

use zeroize::Zeroizing;

/// A key of an upstream.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes the key; spaces and line ends around it (a file's last newline) are no part of it.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(Zeroizing::new(text.trim().to_owned()))
    }

    /// Returns the key itself. Only for the header that carries it upstream.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Secret::new("sk-real\n");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(secret.expose(), "sk-real");
    }
}
