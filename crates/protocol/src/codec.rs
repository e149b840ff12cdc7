//! Framing shared by the control protocol and the supervisor's table: a length, a checksum, JSON.

/// Why bytes are no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes end inside a record: a torn tail, or more is still to come.
    #[error("record is cut off")]
    Torn,
    /// The checksum does not match.
    #[error("record checksum does not match")]
    Checksum,
    /// The length is beyond the limit.
    #[error("record of {0} bytes is over the limit")]
    TooLong(usize),
    /// The checksum matches and the content is not understood: another version wrote it.
    #[error("record is not understood: {0}")]
    Content(String),
}

/// Serde for bytes as base64 text in JSON.
pub mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes bytes as base64.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    /// Reads base64.
    ///
    /// # Errors
    /// Text that is no base64.
    pub fn deserialize<'de, D: Deserializer<'de>, B: From<Vec<u8>>>(
        deserializer: D,
    ) -> Result<B, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        STANDARD
            .decode(text.as_bytes())
            .map(B::from)
            .map_err(serde::de::Error::custom)
    }
}
