//! The forms in which a value may stand in an answer.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

type Form = Zeroizing<Vec<u8>>;

/// Of longer values the forms that nobody makes by chance are left out: they would fill the memory.
const LONGEST_SPELLED: usize = 4 << 10;

/// Returns the value as it is and in every other form; some may be the same.
pub(super) fn of(value: &[u8]) -> Vec<Form> {
    let mut forms = vec![Zeroizing::new(value.to_vec())];
    forms.extend(base64(value));
    forms.extend(percent(value));
    forms.extend(json(value));
    forms.extend(hex(value));
    forms.extend(html(value));
    if value.len() <= LONGEST_SPELLED {
        forms.extend(spelled(value));
    }
    forms
}

/// What escapes markup, as templates do it; they differ in how they write quotes.
fn html(value: &[u8]) -> Vec<Form> {
    let Ok(text) = std::str::from_utf8(value) else {
        return Vec::new();
    };
    // The double quote, the single one, the slash and the equals sign.
    let styles = [
        ["&quot;", "'", "/", "="],
        ["&quot;", "&#39;", "/", "="],
        ["&quot;", "&#x27;", "/", "="],
        ["&quot;", "&#x27;", "&#x2F;", "&#x3D;"],
        ["&#34;", "&#39;", "/", "="],
        ["&quot;", "&apos;", "/", "="],
        ["\"", "'", "/", "="],
    ];
    let escaped = |[double, single, slash, equals]: [&str; 4]| {
        let mut form = Zeroizing::new(String::with_capacity(text.len() * 6));
        for c in text.chars() {
            match c {
                '&' => form.push_str("&amp;"),
                '<' => form.push_str("&lt;"),
                '>' => form.push_str("&gt;"),
                '"' => form.push_str(double),
                '\'' => form.push_str(single),
                '/' => form.push_str(slash),
                '=' => form.push_str(equals),
                c => form.push(c),
            }
        }
        Zeroizing::new(form.as_bytes().to_vec())
    };
    styles.into_iter().map(escaped).collect()
}

/// Each character as an escape, also where none is needed: nobody's encoder does so by itself, but it is easily asked for.
fn spelled(value: &[u8]) -> Vec<Form> {
    let each = |write: &dyn Fn(u32) -> String| {
        let mut form = Zeroizing::new(Vec::with_capacity(value.len() * 8));
        match std::str::from_utf8(value) {
            Ok(text) => text
                .chars()
                .for_each(|c| form.extend_from_slice(write(u32::from(c)).as_bytes())),
            Err(_) => value
                .iter()
                .for_each(|b| form.extend_from_slice(write(u32::from(*b)).as_bytes())),
        }
        form
    };
    let bytes = |write: &dyn Fn(u8) -> String| {
        let mut form = Zeroizing::new(Vec::with_capacity(value.len() * 4));
        for b in value {
            form.extend_from_slice(write(*b).as_bytes());
        }
        form
    };
    let units = |write: &dyn Fn(u16) -> String| {
        let mut form = Zeroizing::new(Vec::with_capacity(value.len() * 6));
        let text = String::from_utf8_lossy(value);
        for unit in text.encode_utf16() {
            form.extend_from_slice(write(unit).as_bytes());
        }
        form
    };
    vec![
        bytes(&|b| format!("%{b:02X}")),
        bytes(&|b| format!("%{b:02x}")),
        bytes(&|b| format!("\\x{b:02X}")),
        bytes(&|b| format!("\\x{b:02x}")),
        units(&|unit| format!("\\u{unit:04X}")),
        units(&|unit| format!("\\u{unit:04x}")),
        each(&|c| format!("&#{c};")),
        each(&|c| format!("&#{c:03};")),
        each(&|c| format!("&#x{c:x};")),
        each(&|c| format!("&#x{c:X};")),
        each(&|c| format!("&#x{c:02x};")),
        each(&|c| format!("&#x{c:04x};")),
    ]
}

/// Where a value stands among other bytes, its first and last characters carry bits of those too. What carries its own
/// alone is the same whatever is around it, for each of the three places that it can begin at.
fn base64(value: &[u8]) -> Vec<Form> {
    let mut forms = Vec::new();
    for alphabet in [BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD] {
        for before in 0..3 {
            let around = Zeroizing::new([&[0; 2][..before], value].concat());
            let text = Zeroizing::new(alphabet.encode(&*around));
            // A byte before it reaches into the second character, two into the third.
            let from = if before == 0 { 0 } else { before + 1 };
            let to = text.len() - usize::from(around.len() % 3 != 0);
            if let Some(own) = text.as_bytes().get(from..to) {
                forms.push(Zeroizing::new(own.to_vec()));
            }
        }
        // Alone: its last character too.
        forms.push(Zeroizing::new(alphabet.encode(value).into_bytes()));
    }
    forms
}

/// Encoders differ in what they leave as it is, in their hex digits, and in what they make of a space.
fn percent(value: &[u8]) -> Vec<Form> {
    // Nothing but what no encoder touches; a URI's component in JavaScript; a path; a whole URI.
    let left = [
        "-_.~",
        "-_.~!'()*",
        "-_.~!$&'()*+,;=:@/",
        "-_.~!#$&'()*+,/:;=?@",
    ];
    let mut forms = Vec::new();
    for left in left {
        for digits in [b"0123456789ABCDEF", b"0123456789abcdef"] {
            for plus in [false, true] {
                let mut form = Zeroizing::new(Vec::with_capacity(value.len() * 3));
                for &b in value {
                    if b.is_ascii_alphanumeric() || left.as_bytes().contains(&b) {
                        form.push(b);
                    } else if b == b' ' && plus {
                        form.push(b'+');
                    } else {
                        let (high, low) = (usize::from(b >> 4), usize::from(b & 15));
                        form.extend_from_slice(&[b'%', digits[high], digits[low]]);
                    }
                }
                forms.push(form);
            }
        }
    }
    forms
}

/// JSON's own escapes; those of writers that make their JSON safe for HTML, and of writers that escape slashes.
fn json(value: &[u8]) -> Vec<Form> {
    let Ok(text) = std::str::from_utf8(value) else {
        return Vec::new();
    };
    let mut forms = Vec::new();
    for more in ["", "<>&", "<>&='", "/"] {
        for ascii in [false, true] {
            for upper in [false, true] {
                // No escape is longer than that: a character of four bytes becomes two of six.
                let mut form = Zeroizing::new(String::with_capacity(text.len() * 6));
                for c in text.chars() {
                    escape(&mut form, c, more, ascii, upper);
                }
                forms.push(Zeroizing::new(form.as_bytes().to_vec()));
            }
        }
    }
    forms
}

fn escape(form: &mut String, c: char, more: &str, ascii: bool, upper: bool) {
    match c {
        '"' => form.push_str("\\\""),
        '\\' => form.push_str("\\\\"),
        '\n' => form.push_str("\\n"),
        '\r' => form.push_str("\\r"),
        '\t' => form.push_str("\\t"),
        '\u{8}' => form.push_str("\\b"),
        '\u{c}' => form.push_str("\\f"),
        '/' if more == "/" => form.push_str("\\/"),
        c if c.is_control() || more.contains(c) || (ascii && !c.is_ascii()) => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                match upper {
                    true => form.push_str(&format!("\\u{unit:04X}")),
                    false => form.push_str(&format!("\\u{unit:04x}")),
                }
            }
        }
        c => form.push(c),
    }
}

fn hex(value: &[u8]) -> Vec<Form> {
    [b"0123456789abcdef", b"0123456789ABCDEF"]
        .into_iter()
        .map(|digits| {
            let mut form = Zeroizing::new(Vec::with_capacity(value.len() * 2));
            for &b in value {
                form.extend_from_slice(&[digits[usize::from(b >> 4)], digits[usize::from(b & 15)]]);
            }
            form
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(value: &[u8], form: &str) -> bool {
        of(value)
            .iter()
            .any(|one| one.as_slice() == form.as_bytes())
    }

    #[test]
    fn the_usual_encoders_are_known() {
        assert!(has(b"p&ss/w\"rd =", "p&ss/w\"rd ="));
        assert!(has(b"p&ss/w\"rd =", "p%26ss%2Fw%22rd%20%3D"));
        assert!(has(b"p&ss/w\"rd =", "p%26ss%2fw%22rd+%3d"));
        assert!(has(b"p&ss/w\"rd =", "p&ss/w\\\"rd ="));
        assert!(has(b"p&ss/w\"rd =", "p\\u0026ss/w\\\"rd \\u003d"));
        assert!(has(b"p&ss/w\"rd =", "p&ss\\/w\\\"rd ="));
        assert!(has("pässe".as_bytes(), "p\\u00e4sse"));
        assert!(has("p😀sse".as_bytes(), "p\\uD83D\\uDE00sse"));
        assert!(has(b"hunter2", "68756e74657232"));
        assert!(has(b"hunter2", "68756E74657232"));
        assert!(has(b"hunter2", "aHVudGVyMg"));
        assert!(has(b"a<b>&\"c", "a&lt;b&gt;&amp;&quot;c"));
        assert!(has(b"it's a/b", "it&#39;s a/b"));
    }

    #[test]
    fn spelling_it_out_does_not_help() {
        assert!(has(b"hunter2", "%68%75%6E%74%65%72%32"));
        assert!(has(b"hunter2", "%68%75%6e%74%65%72%32"));
        assert!(has(b"hunter2", "\\x68\\x75\\x6e\\x74\\x65\\x72\\x32"));
        assert!(has(
            b"hunter2",
            "\\u0068\\u0075\\u006e\\u0074\\u0065\\u0072\\u0032"
        ));
        assert!(has(b"hunter2", "&#104;&#117;&#110;&#116;&#101;&#114;&#50;"));
        assert!(has(
            b"hunter2",
            "&#x68;&#x75;&#x6E;&#x74;&#x65;&#x72;&#x32;"
        ));
    }

    #[test]
    fn base64_is_found_wherever_the_value_stands() {
        let value: &[u8] = b"hunter2hunter2!?>";
        for before in 0..7 {
            for after in 0..7 {
                let text = [&[b'<'; 7][..before], value, &[b'>'; 7][..after]].concat();
                for encoded in [
                    BASE64_STANDARD_NO_PAD.encode(&text),
                    BASE64_URL_SAFE_NO_PAD.encode(&text),
                ] {
                    let found = base64(value)
                        .iter()
                        .filter(|form| form.len() + 3 >= value.len() * 4 / 3)
                        .any(|form| {
                            let form = std::str::from_utf8(form).expect("base64 is text");
                            encoded.contains(form)
                        });
                    assert!(found, "{before} {after} {encoded}");
                }
            }
        }
    }
}
