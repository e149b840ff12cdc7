//! Text from strangers, made fit for a message.

/// The longest piece of foreign text in one message.
const MAX: usize = 200;

/// Escapes what is no plain character and cuts what is long.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(MAX)];
    let text: String = String::from_utf8_lossy(cut)
        .chars()
        .flat_map(|c| {
            if c == '\'' || c == '"' {
                vec![c]
            } else {
                c.escape_debug().collect()
            }
        })
        .collect();
    if cut.len() < bytes.len() {
        format!("{text}… ({} bytes)", bytes.len())
    } else {
        text
    }
}
