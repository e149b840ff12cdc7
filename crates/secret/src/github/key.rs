//! RSA private keys in PEM: as GitHub gives them (PKCS#1), and as other tools write them (PKCS#8).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::rsa::KeyPair;
use zeroize::Zeroizing;

use crate::value::Value;

/// Reads a key. The error says nothing of what was read.
pub(super) fn read(pem: &Value) -> Result<KeyPair, &'static str> {
    let text = pem.text().map_err(|_| "it is not text")?;
    let (begin, rest) = text
        .split_once("-----BEGIN ")
        .and_then(|(_, rest)| rest.split_once("-----"))
        .ok_or("it does not begin with -----BEGIN")?;
    let (body, _) = rest.split_once("-----END ").ok_or("its end is missing")?;
    if begin == "ENCRYPTED PRIVATE KEY" || body.contains("Proc-Type:") {
        return Err("it is encrypted with a passphrase");
    }
    // Of its length from the start: what grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(body.len()));
    text.extend(body.chars().filter(|c| !c.is_whitespace()));
    let body = text;
    let der = BASE64_STANDARD.decode(&*body).map(Zeroizing::new);
    let der = der.map_err(|_| "it is not base64")?;
    let key = match begin {
        "RSA PRIVATE KEY" => KeyPair::from_der(&der),
        "PRIVATE KEY" => KeyPair::from_pkcs8(&der),
        _ => return Err("it is no RSA private key"),
    };
    key.map_err(|_| "it is no RSA private key of 2048 to 4096 bits")
}
