//! One error for all tests: words. It takes in any other error, so that `?` works everywhere.

use std::fmt;

/// What went wrong, for whoever reads the test's output.
pub struct Trouble(pub String);

/// A result of a test's own work.
pub type Res<T> = Result<T, Trouble>;

/// Makes a [`Trouble`].
pub fn trouble(words: impl Into<String>) -> Trouble {
    Trouble(words.into())
}

impl fmt::Debug for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Trouble {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            text = format!("{text}: {inner}");
            cause = inner.source();
        }
        Self(text)
    }
}
