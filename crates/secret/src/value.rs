//! The bytes of a secret: they cannot be printed, copied or serialised by accident, and are wiped when they are dropped.

use std::fmt;

use zeroize::Zeroizing;

/// How long a secret may be: private keys and service account files fit, and nothing fills memory.
pub const MAX_BYTES: usize = 64 * 1024;

/// The bytes of a secret.
///
/// There is one way to them, [`expose`](Self::expose):
///
/// ```
/// let value = secret::Value::new("hunter2");
/// assert_eq!(value.expose(), b"hunter2");
/// assert_eq!(format!("{value:?}"), "Value(…)");
/// ```
///
/// It is no text:
///
/// ```compile_fail,E0277
/// let value = secret::Value::new("hunter2");
/// format!("{value}");
/// ```
///
/// It is not written anywhere as a part of something else:
///
/// ```compile_fail,E0277
/// let value = secret::Value::new("hunter2");
/// serde_json::to_string(&value);
/// ```
///
/// And it is not copied; share it in an `Arc`:
///
/// ```compile_fail,E0599
/// let value = secret::Value::new("hunter2");
/// value.clone();
/// ```
pub struct Value(Zeroizing<Vec<u8>>);

/// A secret is used where only text may stand, and is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the secret is not text (UTF-8), which it must be here")]
pub struct NotText;

impl Value {
    /// Takes the bytes as they are.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }

    /// Takes what a file or a program gave: a line end at its end is no part of the secret.
    #[must_use]
    pub fn of_output(bytes: &[u8]) -> Self {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        Self::new(bytes.strip_suffix(b"\r").unwrap_or(bytes))
    }

    /// Returns the bytes. Only for what uses them up: a header, a key, a needle.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes as text.
    ///
    /// # Errors
    /// They are not UTF-8.
    pub fn text(&self) -> Result<&str, NotText> {
        std::str::from_utf8(&self.0).map_err(|_| NotText)
    }

    /// Returns 12 hex digits that tell one version of a secret from another to whoever has the same key, and nothing else.
    #[must_use]
    pub fn fingerprint(&self, key: &FingerprintKey) -> String {
        let mut hex = blake3::keyed_hash(&key.0, &self.0).to_hex().to_string();
        hex.truncate(12);
        hex
    }

    /// Tells whether the bytes are these, in a time that tells nothing about them.
    #[must_use]
    pub fn is(&self, bytes: &[u8]) -> bool {
        blake3::hash(&self.0) == blake3::hash(bytes)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Value(…)")
    }
}

/// What fingerprints are keyed with: without it a fingerprint cannot be tried against guesses.
pub struct FingerprintKey(Zeroizing<[u8; 32]>);

impl FingerprintKey {
    /// Takes the key's bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl fmt::Debug for FingerprintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_never_printed_in_part_of_something_either() {
        let held = Some(std::sync::Arc::new(Value::new("hunter2")));
        assert_eq!(format!("{held:?}"), "Some(Value(…))");
        assert_eq!(
            format!("{:?}", FingerprintKey::new([7; 32])),
            "FingerprintKey(…)"
        );
    }

    #[test]
    fn one_line_end_of_a_file_is_no_part_of_the_secret() {
        for (given, taken) in [
            (&b"k\n"[..], &b"k"[..]),
            (b"k\r\n", b"k"),
            (b"k\n\n", b"k\n"),
            (b" k ", b" k "),
            (b"\n", b""),
        ] {
            assert_eq!(Value::of_output(given).expose(), taken);
        }
        assert_eq!(Value::new("k\n").expose(), b"k\n");
    }

    #[test]
    fn a_fingerprint_tells_values_and_keys_apart() {
        let (key, other) = (FingerprintKey::new([1; 32]), FingerprintKey::new([2; 32]));
        let print = Value::new("a").fingerprint(&key);
        assert_eq!(print.len(), 12);
        assert!(print.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_eq!(print, Value::new("a").fingerprint(&key));
        assert_ne!(print, Value::new("b").fingerprint(&key));
        assert_ne!(print, Value::new("a").fingerprint(&other));
    }

    #[test]
    fn bytes_that_are_no_text_are_said_to_be_none() {
        assert_eq!(Value::new([0xff, 0xfe]).text(), Err(NotText));
        assert_eq!(Value::new("ü").text(), Ok("ü"));
    }
}
