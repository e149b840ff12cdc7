//! Text from outside, fit to stand in a sentence of ours.

/// How much of it is repeated.
const SHOWN: usize = 200;

/// Returns text from outside so that it cannot pose as ours, and not much of it.
pub(crate) fn cut(text: &str) -> String {
    let mut out: String = text.chars().take(SHOWN).flat_map(escape).collect();
    if text.chars().nth(SHOWN).is_some() {
        out.push('…');
    }
    out
}

fn escape(c: char) -> impl Iterator<Item = char> {
    let plain = (c == ' ' || c.is_ascii_graphic()) && c != '`';
    let escaped = (!plain).then(|| c.escape_unicode()).into_iter().flatten();
    plain.then_some(c).into_iter().chain(escaped)
}
