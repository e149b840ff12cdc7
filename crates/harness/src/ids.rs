//! Ids for records that we add to a transcript. They follow from what they are for: the same repair makes the same bytes.

/// Returns a UUID that follows from `parts`.
pub(crate) fn uuid(parts: &[&str]) -> String {
    let hex = hash(parts);
    // Version 8 (custom) and the usual variant, so that a strict reader takes it.
    format!(
        "{}-{}-8{}-8{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..32]
    )
}

/// Returns eight hexadecimal digits that follow from `parts`.
pub(crate) fn short(parts: &[&str]) -> String {
    hash(parts)[..8].to_owned()
}

fn hash(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part.as_bytes()).update(&[0]);
    }
    hasher.finalize().to_hex().to_string()
}
