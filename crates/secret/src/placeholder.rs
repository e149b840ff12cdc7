//! Placeholders: what a program inside a sandbox is shown in place of a secret.
//!
//! It has the shape of the secret, so that a program that looks at its key goes on: the same prefix where that is one of a
//! well-known maker, the same length, the same separators, characters of the same classes. What is random in the secret
//! is random in it, out of the seed and never out of the value, so that it tells nothing of it. The same seed gives the same
//! placeholder for another version of the secret with the same shape.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Map, Value as Json};
use zeroize::Zeroizing;

use crate::literal;
use crate::value::Value;

const DIGITS: &[u8] = b"0123456789";
const LOWER: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
const UPPER: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Returns the placeholder of a secret for whoever the seed was made for (a sandbox, a name).
///
/// The seed must be random or derived from a key: who knows it knows the placeholder.
#[must_use]
pub fn placeholder(of: &Value, seed: &[u8; 32]) -> String {
    for round in 0_u32.. {
        let mut random = Random::new(seed, round);
        let fake = of
            .text()
            .ok()
            .and_then(|text| web_token(text, &mut random))
            .unwrap_or_else(|| masked(of.expose(), &mut random));
        // One that has nothing random in it stays itself, and is then made of random letters.
        if !of.is(fake.as_bytes()) {
            return fake;
        }
        if round > 8 {
            break;
        }
    }
    let mut random = Random::new(seed, u32::MAX);
    let len = of.expose().len().max(1);
    let fake = random.letters(len, &[LOWER, DIGITS].concat());
    if of.is(fake.as_bytes()) {
        return random.letters(len + 1, LOWER);
    }
    fake
}

/// Random bytes out of a seed.
struct Random(blake3::OutputReader);

impl Random {
    fn new(seed: &[u8; 32], round: u32) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(seed);
        hasher.update(b"durable-secret v1 placeholder");
        hasher.update(&round.to_le_bytes());
        Self(hasher.finalize_xof())
    }

    /// Every index is as probable as every other: what would favour the first ones is drawn again.
    fn below(&mut self, n: usize) -> usize {
        let n = n.clamp(1, 256);
        let fair = 256 - 256 % n;
        loop {
            let mut byte = [0];
            self.0.fill(&mut byte);
            let drawn = usize::from(byte[0]);
            if drawn < fair {
                return drawn % n;
            }
        }
    }

    fn one_of(&mut self, letters: &[u8]) -> char {
        char::from(letters[self.below(letters.len())])
    }

    fn letters(&mut self, len: usize, letters: &[u8]) -> String {
        (0..len).map(|_| self.one_of(letters)).collect()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes);
        bytes
    }
}

/// Keeps what everybody knows (a maker's prefix, a URL's scheme, the first and last lines of PEM) and every separator.
fn masked(bytes: &[u8], random: &mut Random) -> String {
    let text = Zeroizing::new(bytes.iter().map(|&b| char::from(b)).collect::<String>());
    if text.contains("-----BEGIN ") {
        let lines = text
            .split('\n')
            .map(|line| match line.starts_with("-----") {
                true => line.to_owned(),
                false => body(line, random),
            });
        return lines.collect::<Vec<_>>().join("\n");
    }
    let known = scheme(&text);
    // Only ASCII is known, so this is a boundary of characters.
    let (known, rest) = text.split_at(known);
    // `user:password`, `key id:key`: each has a shape of its own.
    let fields: Vec<String> = rest.split(':').map(|one| field(one, random)).collect();
    format!("{known}{}", fields.join(":"))
}

fn field(text: &str, random: &mut Random) -> String {
    let known = literal::prefix(text).map_or(0, str::len);
    let (known, rest) = text.split_at(known);
    format!("{known}{}", body(rest, random))
}

/// Returns how long the scheme of a URL is with its `://`.
fn scheme(text: &str) -> usize {
    let named = |scheme: &&str| {
        !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_lowercase() || b == b'+')
    };
    match text.split_once("://").map(|(scheme, _)| scheme) {
        Some(scheme) if named(&scheme) => scheme.len() + 3,
        _ => 0,
    }
}

/// Draws every letter and digit from the smallest usual alphabet that all of them are in. What is not ASCII becomes so, and
/// there is no NUL in it: it must fit into a variable.
fn body(text: &str, random: &mut Random) -> String {
    let letters = alphabet(text);
    text.chars()
        .map(|c| match c {
            c if c.is_ascii_alphanumeric() || !c.is_ascii() || c == '\0' => random.one_of(&letters),
            c => c,
        })
        .collect()
}

fn alphabet(text: &str) -> Vec<u8> {
    let used: Vec<u8> = text.bytes().filter(u8::is_ascii_alphanumeric).collect();
    let usual: [&[&[u8]]; 8] = [
        &[DIGITS],
        &[DIGITS, b"abcdef"],
        &[DIGITS, b"ABCDEF"],
        &[UPPER, b"234567"],
        &[LOWER],
        &[DIGITS, LOWER],
        &[DIGITS, UPPER],
        &[DIGITS, LOWER, UPPER],
    ];
    let mut alphabets = usual.iter().map(|classes| classes.concat());
    let fits = |alphabet: &Vec<u8>| used.iter().all(|b| alphabet.contains(b));
    alphabets
        .find(fits)
        .unwrap_or_else(|| [DIGITS, LOWER, UPPER].concat())
}

/// Makes a JSON web token of the same length: a header that says HS256, the same claims with other values, a random
/// signature. `None` if the text is none, or is too short for that.
fn web_token(text: &str, random: &mut Random) -> Option<String> {
    let parts: Vec<&str> = text.split('.').collect();
    let [header, claims, _] = parts[..] else {
        return None;
    };
    let decoded = |part| BASE64_URL_SAFE_NO_PAD.decode(part).ok();
    let told: Map<String, Json> = serde_json::from_slice(&decoded(header)?).ok()?;
    told.contains_key("alg").then_some(())?;
    let claims: Map<String, Json> = serde_json::from_slice(&decoded(claims)?).ok()?;
    let claims: Map<String, Json> = claims
        .into_iter()
        .map(|(name, claim)| {
            let claim = match KEPT_CLAIMS.contains(&name.as_str()) {
                true => claim,
                false => other_claim(claim, random),
            };
            (name, claim)
        })
        .collect();
    let claims = serde_json::to_string(&claims).ok()?;
    for header in [r#"{"alg":"HS256","typ":"JWT"}"#, r#"{"alg":"HS256"}"#] {
        for spaces in 0..3 {
            let head = format!(
                "{}.{}.",
                BASE64_URL_SAFE_NO_PAD.encode(header),
                BASE64_URL_SAFE_NO_PAD.encode(format!("{claims}{:spaces$}", ""))
            );
            // What remains is the signature: enough to be random, and a length that base64 has.
            let rest = text.len().checked_sub(head.len());
            if let Some(rest) = rest.filter(|&rest| rest >= SIGNATURE && rest % 4 != 1) {
                let signature = random.bytes(rest * 3 / 4);
                return Some(head + &BASE64_URL_SAFE_NO_PAD.encode(signature));
            }
        }
    }
    None
}

/// What clients look at to use a token at all, and what tells nothing of whoever it is for.
const KEPT_CLAIMS: [&str; 5] = ["aud", "exp", "iat", "iss", "nbf"];
/// The shortest signature: 22 characters are 132 bits.
const SIGNATURE: usize = 22;

fn other_claim(claim: Json, random: &mut Random) -> Json {
    match claim {
        Json::Null | Json::Bool(_) => claim,
        Json::Number(number) => other_number(&number, random),
        Json::String(text) => Json::String(body(&text, random)),
        Json::Array(claims) => {
            let others = claims.into_iter().map(|claim| other_claim(claim, random));
            Json::Array(others.collect())
        }
        Json::Object(claims) => {
            let others = claims
                .into_iter()
                .map(|(name, claim)| (name, other_claim(claim, random)));
            Json::Object(others.collect())
        }
    }
}

/// A number of as many digits; one with a fraction or a sign becomes a digit.
fn other_number(number: &serde_json::Number, random: &mut Random) -> Json {
    let text = number.to_string();
    let digits = match text.bytes().all(|b| b.is_ascii_digit()) {
        // 18 digits fit into 64 bits whatever they are.
        true => text.len().min(18),
        false => 1,
    };
    let first = random.letters(1, b"123456789");
    let text = first + &random.letters(digits - 1, DIGITS);
    text.parse::<u64>().map_or(Json::Null, Json::from)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn fake(text: &str) -> String {
        placeholder(&Value::new(text), &[7; 32])
    }

    #[test]
    fn keys_of_makers_keep_their_prefix_length_and_separators() {
        let a = |n| "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7".repeat(4)[..n].to_owned();
        for (prefix, rest) in [
            ("ghp_", a(36)),
            ("github_pat_", format!("{}_{}", a(22), a(59))),
            ("sk-ant-api03-", format!("{}-{}_{}AA", a(40), a(30), a(20))),
            ("sk-proj-", a(48)),
            ("sk-", a(48)),
            (
                "xoxb-",
                "123456789012-1234567890123-Abcd1234Abcd1234Abcd1234".into(),
            ),
            ("AKIA", "IOSFODNN7EXAMPLE".into()),
            ("npm_", a(36)),
            ("glpat-", a(20)),
        ] {
            let real = format!("{prefix}{rest}");
            let fake = fake(&real);
            assert_eq!(fake.len(), real.len(), "{real} {fake}");
            assert!(fake.starts_with(prefix), "{real} {fake}");
            assert_ne!(fake, real);
            for (real, fake) in real.bytes().zip(fake.bytes()) {
                assert_eq!(real.is_ascii_alphanumeric(), fake.is_ascii_alphanumeric());
                assert!(real.is_ascii_alphanumeric() || real == fake);
            }
        }
    }

    #[test]
    fn characters_are_of_the_same_classes() {
        for (real, of) in [
            ("0123456789012345", "0123456789"),
            ("deadbeef0123", "0123456789abcdef"),
            ("DEADBEEF0123", "0123456789ABCDEF"),
            ("correct-horse", "abcdefghijklmnopqrstuvwxyz-"),
            ("GEZDGNBV", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"),
        ] {
            let fake = fake(real);
            assert!(fake.chars().all(|c| of.contains(c)), "{real} {fake}");
        }
    }

    #[test]
    fn placeholders_cannot_be_guessed_from_one_another() {
        let real = Value::new(["ghp_", &"a1B2".repeat(9)].concat());
        let fakes: BTreeSet<String> = (0..=255).map(|n| placeholder(&real, &[n; 32])).collect();
        assert_eq!(fakes.len(), 256);
        // Each of the 36 places takes many values, all of base 62 over 256 draws nearly always.
        for at in 4..40 {
            let seen: BTreeSet<u8> = fakes.iter().map(|fake| fake.as_bytes()[at]).collect();
            assert!(seen.len() > 50, "place {at} takes {} values", seen.len());
        }
    }

    #[test]
    fn another_version_of_the_same_shape_has_the_same_placeholder() {
        assert_eq!(fake("ghp_aB1"), fake("ghp_cD2"));
        assert_ne!(fake("ghp_aB1"), fake("ghp_aB11"));
    }

    #[test]
    fn a_private_key_and_a_url_keep_what_everybody_knows() {
        let real = [
            "-----BEGIN ",
            "PRIVATE KEY-----\nMIIEvQ+/aB3=\n-----END PRIVATE KEY-----\n",
        ];
        let fake_key = fake(&real.concat());
        assert!(fake_key.starts_with("-----BEGIN PRIVATE KEY-----\n"));
        assert!(fake_key.ends_with("=\n-----END PRIVATE KEY-----\n"));
        assert!(!fake_key.contains("MIIEvQ"));
        let url = fake("postgres://user:hunter2@db/x");
        assert!(url.starts_with("postgres://"));
        assert!(!url.contains("hunter2"));
    }

    #[test]
    fn each_of_several_fields_keeps_its_own_shape() {
        let real = [
            "AKIA",
            "IOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG+",
            "bPxRfiCY",
        ]
        .concat();
        let fake = fake(&real);
        let (id, key) = fake.split_once(':').expect("it has two fields");
        assert!(id.starts_with("AKIA") && id.len() == 20);
        assert!(
            id.bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
        );
        assert!(key.contains('/') && key.contains('+'));
        assert!(key.bytes().any(|b| b.is_ascii_lowercase()));
        assert_eq!(fake.len(), real.len());
    }

    #[test]
    fn a_web_token_stays_one_that_clients_can_read() {
        let b64 = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        for (header, signature) in [
            (r#"{"alg":"RS256","typ":"JWT","kid":"k1"}"#, 342),
            (r#"{"alg":"HS256","typ":"JWT"}"#, 43),
            (r#"{"alg":"HS256"}"#, 43),
        ] {
            let claims = r#"{"iss":"https://login.test","sub":"ada@acme.test","exp":1764000000,"org":{"id":7654321},"admin":true}"#;
            let real = format!("{}.{}.{}", b64(header), b64(claims), "A".repeat(signature));
            let fake = fake(&real);
            assert_eq!(fake.len(), real.len());
            let parts: Vec<&str> = fake.split('.').collect();
            let json = |part: &str| -> Json {
                let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).expect("it is base64");
                serde_json::from_slice(&bytes).expect("it is JSON")
            };
            let (head, claims) = (json(parts[0]), json(parts[1]));
            assert_eq!(head["alg"], "HS256");
            assert_eq!(claims["iss"], "https://login.test");
            assert_eq!(claims["exp"], 1_764_000_000);
            assert_eq!(claims["admin"], true);
            assert_ne!(claims["sub"], "ada@acme.test");
            assert_ne!(claims["org"]["id"], 7_654_321);
            assert!(BASE64_URL_SAFE_NO_PAD.decode(parts[2]).is_ok());
        }
    }

    #[test]
    fn what_has_no_letters_still_gets_another_text() {
        for real in ["", "-", "***", "a", "0"] {
            assert_ne!(fake(real), real);
        }
        let bytes = Value::new([0xff, 0x00, 0xfe, b'a']);
        assert_eq!(placeholder(&bytes, &[1; 32]).len(), 4);
    }

    proptest! {
        #[test]
        fn a_placeholder_is_never_the_value_and_as_long(real in "[ -~]{1,80}", seed: [u8; 32]) {
            let fake = placeholder(&Value::new(real.as_str()), &seed);
            prop_assert_ne!(&fake, &real);
            if real.bytes().any(|b| b.is_ascii_alphanumeric()) {
                prop_assert_eq!(fake.len(), real.len());
            }
        }
    }
}
