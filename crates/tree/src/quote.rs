//! Names as git prints them: as they are, or in double quotes with C escapes where they hold anything odd.

/// Returns `prefix` and `name`, quoted together if `name` needs it (git's default, `core.quotePath`).
pub(crate) fn quoted_bytes(name: &[u8], prefix: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b'\\');
    if name.iter().all(plain) {
        return [prefix, name].concat();
    }
    let mut out = vec![b'"'];
    out.extend(prefix);
    for &byte in name {
        let short = match byte {
            0x07 => b'a',
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0b => b'v',
            0x0c => b'f',
            b'\r' => b'r',
            b'"' | b'\\' => byte,
            0x20..=0x7e => {
                out.push(byte);
                continue;
            }
            _ => {
                out.extend(format!("\\{byte:03o}").into_bytes());
                continue;
            }
        };
        out.extend([b'\\', short]);
    }
    out.push(b'"');
    out
}

/// The same, as text: what comes out is always ASCII.
pub(crate) fn quoted(name: &[u8], prefix: &[u8]) -> String {
    String::from_utf8_lossy(&quoted_bytes(name, prefix)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn only_odd_names_are_quoted() {
        assert_eq!(quoted(b"a b", b"a/"), "a/a b");
        assert_eq!(quoted(b"a\tb\"\\\n", b"b/"), r#""b/a\tb\"\\\n""#);
        assert_eq!(quoted(b"\xff\x01\x7f", b""), r#""\377\001\177""#);
    }
}
