//! The cases are those that AWS publishes: its test suite for Signature Version 4, and the examples of the S3 reference.

use std::time::{Duration, UNIX_EPOCH};

use http::Request;

use super::*;

/// Of the test suite: 2015-08-30T12:36:00Z.
const SUITE: u64 = 1_440_938_160;
/// Of the S3 reference: 2013-05-24T00:00:00Z.
const REFERENCE: u64 = 1_369_353_600;
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const FAKE: &str = "AKIAFAKEFAKEFAKEFAKE";

fn suite_key() -> Value {
    Value::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
}

fn reference_key() -> Value {
    Value::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
}

fn parts(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("it is a request").into_parts().0
}

fn at(secs: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(secs)
}

fn authorization(parts: &Parts) -> &str {
    let value = parts.headers.get(AUTHORIZATION).expect("it is signed");
    assert!(value.is_sensitive());
    value.to_str().expect("it is text")
}

fn signature_of(parts: &Parts) -> String {
    let text = authorization(parts);
    let (_, signature) = text.rsplit_once("Signature=").expect("it is there");
    signature.to_owned()
}

/// Signs what a case of the suite says, and these headers of it.
fn suite(method: &str, uri: &str, headers: &[(&str, &str)], body: &[u8]) -> String {
    let mut named: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    named.push("host");
    let before = format!(
        "AWS4-HMAC-SHA256 Credential=x/20150830/us-east-1/service/aws4_request, SignedHeaders={}, Signature=0",
        named.join(";")
    );
    let all = [
        headers,
        &[
            ("host", "example.amazonaws.com"),
            ("authorization", &before),
        ],
    ]
    .concat();
    let mut parts = parts(method, uri, &all);
    let (key, scope) = (
        suite_key(),
        Scope {
            region: "us-east-1",
            service: "service",
        },
    );
    let keys = Keys {
        id: "AKIDEXAMPLE",
        key: &key,
        session: None,
    };
    sign(&mut parts, &keys, &scope, at(SUITE), Payload::Bytes(body)).expect("it is signed");
    signature_of(&parts)
}

#[test]
fn the_cases_of_the_test_suite_give_their_signatures() {
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    type Case<'a> = (
        &'a str,
        &'a str,
        &'a str,
        &'a [(&'a str, &'a str)],
        &'a str,
        &'a str,
    );
    let cases: [Case<'_>; 17] = [
        (
            "get-vanilla",
            "GET",
            "/",
            &[],
            "",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "get-vanilla-query-order-key-case",
            "GET",
            "/?Param2=value2&Param1=value1",
            &[],
            "",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "get-vanilla-query-order-value",
            "GET",
            "/?Param1=value2&Param1=value1",
            &[],
            "",
            "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694",
        ),
        (
            "get-vanilla-query-unreserved",
            "GET",
            "/?-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz=-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            &[],
            "",
            "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
        ),
        (
            "get-vanilla-utf8-query",
            "GET",
            "/?ሴ=bar",
            &[],
            "",
            "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
        ),
        (
            "get-utf8",
            "GET",
            "/ሴ",
            &[],
            "",
            "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
        ),
        (
            "get-unreserved",
            "GET",
            "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            &[],
            "",
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
        (
            "get-relative",
            "GET",
            "/example/..",
            &[],
            "",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "get-slash-dot-slash",
            "GET",
            "/./",
            &[],
            "",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "get-slashes",
            "GET",
            "//example//",
            &[],
            "",
            "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84",
        ),
        (
            "get-header-value-trim",
            "GET",
            "/",
            &[("My-Header1", " value1"), ("My-Header2", " \"a   b   c\"")],
            "",
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ),
        (
            "get-header-key-duplicate",
            "GET",
            "/",
            &[
                ("My-Header1", "value2"),
                ("My-Header1", "value2"),
                ("My-Header1", "value1"),
            ],
            "",
            "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        ),
        (
            "get-header-value-order",
            "GET",
            "/",
            &[
                ("My-Header1", "value4"),
                ("My-Header1", "value1"),
                ("My-Header1", "value3"),
                ("My-Header1", "value2"),
            ],
            "",
            "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01",
        ),
        (
            "post-vanilla",
            "POST",
            "/",
            &[],
            "",
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            "post-vanilla-query",
            "POST",
            "/?Param1=value1",
            &[],
            "",
            "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
        ),
        (
            "post-header-key-sort",
            "POST",
            "/",
            &[("My-Header1", "value1")],
            "",
            "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
        ),
        (
            "post-x-www-form-urlencoded",
            "POST",
            "/",
            &[form],
            "Param1=value1",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ];
    for (name, method, uri, headers, body, signature) in cases {
        assert_eq!(
            suite(method, uri, headers, body.as_bytes()),
            signature,
            "{name}"
        );
    }
}

fn reference(mut parts: Parts, payload: Payload<'_>) -> Parts {
    let key = reference_key();
    let keys = Keys {
        id: "AKIAIOSFODNN7EXAMPLE",
        key: &key,
        session: None,
    };
    let scope = Scope {
        region: "us-east-1",
        service: "s3",
    };
    sign(&mut parts, &keys, &scope, at(REFERENCE), payload).expect("it is signed");
    parts
}

#[test]
fn the_examples_of_the_s3_reference_give_their_signatures() {
    let host = ("host", "examplebucket.s3.amazonaws.com");
    let signed = |headers: &str| {
        format!(
            "AWS4-HMAC-SHA256 Credential=x/20130524/us-east-1/s3/aws4_request,SignedHeaders={headers},Signature=0"
        )
    };
    let range = signed("host;range;x-amz-content-sha256;x-amz-date");
    let got = reference(
        parts(
            "GET",
            "/test.txt",
            &[host, ("Range", "bytes=0-9"), ("authorization", &range)],
        ),
        Payload::Bytes(b""),
    );
    assert_eq!(
        authorization(&got),
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
         SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
         Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    );
    let date = signed("date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class");
    let put = reference(
        parts(
            "PUT",
            "/test$file.text",
            &[
                host,
                ("Date", "Fri, 24 May 2013 00:00:00 GMT"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                ("authorization", &date),
            ],
        ),
        Payload::Bytes(b"Welcome to Amazon S3."),
    );
    assert_eq!(
        signature_of(&put),
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    );
    for (uri, signature) in [
        (
            "/?lifecycle",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "/?max-keys=2&prefix=J",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ] {
        let told = parts("GET", uri, &[host, ("x-amz-content-sha256", EMPTY)]);
        assert_eq!(
            signature_of(&reference(told, Payload::AsTold)),
            signature,
            "{uri}"
        );
    }
}

/// What no example has; the signatures are those of AWS's library for Python (botocore 1.43).
#[test]
fn names_and_queries_with_odd_characters_are_signed_as_awss_own_library_does() {
    for (method, uri, signature) in [
        (
            "GET",
            "/a%20b%2Bc%281%29/%C3%BC~%27%2A",
            "e8ea5b3900ef8e26c72ecc6b4792ac0c24bdc9a485863e8a3284a07d9ce56e53",
        ),
        (
            "GET",
            "/?delimiter=%2F&list-type=2&prefix=a%20b%2Bc%26",
            "307634e7d2e0906ebb799ca4acd74b3f9b4677ab6132922cb1ad04a4ae7c5836",
        ),
        (
            "DELETE",
            "//a/../b//",
            "6d5fedfb5ce2b515a9e8e8544b760f8a4ae410d36775092f38c363c24c997327",
        ),
    ] {
        let told = parts(
            method,
            uri,
            &[
                ("host", "examplebucket.s3.amazonaws.com"),
                ("x-amz-content-sha256", EMPTY),
            ],
        );
        let signed = reference(told, Payload::AsTold);
        assert_eq!(signature_of(&signed), signature, "{uri}");
    }
    // The same names, written in another way on their way here.
    let loose = parts(
        "GET",
        "/a%20b%2bc(1)/%c3%bc%7E'*",
        &[
            ("host", "examplebucket.s3.amazonaws.com"),
            ("x-amz-content-sha256", EMPTY),
        ],
    );
    assert_eq!(
        signature_of(&reference(loose, Payload::AsTold)),
        "e8ea5b3900ef8e26c72ecc6b4792ac0c24bdc9a485863e8a3284a07d9ce56e53"
    );
}

/// A request that was signed with the placeholder in its query, and what the S3 reference says of it.
const PRESIGNED: &str = "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
    &X-Amz-Credential=AKIAFAKEFAKEFAKEFAKE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z\
    &X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=0123";

fn again(parts: &mut Parts, payload: Payload<'_>) -> Result<(), Error> {
    let key = reference_key();
    let keys = Keys {
        id: "AKIAIOSFODNN7EXAMPLE",
        key: &key,
        session: None,
    };
    let scope = Scope {
        region: "us-east-1",
        service: "s3",
    };
    resign(parts, FAKE, &keys, &scope, at(REFERENCE), payload)
}

#[test]
fn a_presigned_request_is_signed_anew_in_its_query() {
    let mut parts = parts(
        "GET",
        PRESIGNED,
        &[("host", "examplebucket.s3.amazonaws.com")],
    );
    assert!(!needs_body(&parts));
    again(&mut parts, Payload::AsTold).expect("it is signed");
    let uri = parts.uri.to_string();
    assert!(
        uri.contains(
            "X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        ),
        "{uri}"
    );
    assert!(uri.contains(
        "X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    ));
    assert!(uri.starts_with("https://examplebucket.s3.amazonaws.com/test.txt?"));
    assert!(!uri.contains(FAKE) && !uri.contains("0123&") && !uri.ends_with("0123"));
    assert!(!parts.headers.contains_key(AUTHORIZATION));
    let told = claimed(&parts).expect("it is signed");
    assert_eq!(
        (told.id.as_str(), told.presigned),
        ("AKIAIOSFODNN7EXAMPLE", true)
    );
}

#[test]
fn whoever_presigned_it_a_request_stays_presigned() {
    let mut one = parts(
        "GET",
        PRESIGNED,
        &[("host", "examplebucket.s3.amazonaws.com")],
    );
    again(&mut one, Payload::AsTold).expect("it is signed");
    let other = PRESIGNED.replace(FAKE, "whoever");
    let two = parts("GET", &other, &[("host", "examplebucket.s3.amazonaws.com")]);
    let two = reference(two, Payload::AsTold);
    assert_eq!(one.uri, two.uri);
    assert!(!two.headers.contains_key(AUTHORIZATION));
}

fn signed_with(id: &str, more: &[(&str, &str)]) -> Parts {
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={id}/20130524/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=0123"
    );
    let mut all = vec![
        ("host", "examplebucket.s3.amazonaws.com"),
        ("x-amz-date", "20130524T000000Z"),
        ("authorization", &*authorization),
    ];
    all.extend(more);
    parts("PUT", "/a", &all)
}

#[test]
fn a_request_of_the_placeholders_is_signed_with_the_real_key_and_session() {
    let mut parts = signed_with(
        FAKE,
        &[
            ("x-amz-content-sha256", UNSIGNED),
            ("x-amz-security-token", "fake session"),
        ],
    );
    let (key, session) = (reference_key(), Value::new("real session"));
    let keys = Keys {
        id: "ASIAREAL",
        key: &key,
        session: Some(&session),
    };
    let scope = Scope {
        region: "us-east-1",
        service: "s3",
    };
    resign(
        &mut parts,
        FAKE,
        &keys,
        &scope,
        at(REFERENCE),
        Payload::AsTold,
    )
    .expect("it is signed");
    let token = parts.headers.get(TOKEN).expect("it is there");
    assert!(token == "real session" && token.is_sensitive());
    assert!(
        authorization(&parts).contains("Credential=ASIAREAL/20130524/us-east-1/s3/aws4_request")
    );
    assert!(authorization(&parts).contains("x-amz-security-token"));
    assert_eq!(parts.headers[CONTENT_SHA256], UNSIGNED);
    assert!(!format!("{parts:?}").contains("session\""), "{parts:?}");
    // Without a session of ours, the placeholder's goes too.
    let mut parts = signed_with(
        FAKE,
        &[
            ("x-amz-content-sha256", UNSIGNED_CHUNKS),
            ("x-amz-security-token", "fake session"),
        ],
    );
    again(&mut parts, Payload::AsTold).expect("it is signed");
    assert!(!parts.headers.contains_key(TOKEN));
    assert_eq!(parts.headers[CONTENT_SHA256], UNSIGNED_CHUNKS);
}

#[test]
fn a_request_is_signed_as_a_whole_or_refused() {
    let refused = |mut parts: Parts| again(&mut parts, Payload::AsTold).expect_err("it is refused");
    let hash = ("x-amz-content-sha256", EMPTY);
    assert_eq!(refused(signed_with("AKIAOTHER", &[hash])), Error::OtherKey);
    assert_eq!(refused(signed_with(FAKE, &[])), Error::NeedsBody);
    assert!(needs_body(&signed_with(FAKE, &[])) && !needs_body(&signed_with(FAKE, &[hash])));
    for chunked in [
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
    ] {
        let why = refused(signed_with(FAKE, &[("x-amz-content-sha256", chunked)]));
        assert_eq!(why, Error::Chunked);
        assert!(why.to_string().contains("AWS_REQUEST_CHECKSUM_CALCULATION"));
    }
    let odd = signed_with(FAKE, &[("x-amz-content-sha256", "abc")]);
    assert!(matches!(refused(odd), Error::Malformed { .. }));
    let plain = |authorization: &str| {
        parts(
            "GET",
            "/",
            &[("host", "h"), ("authorization", authorization), hash],
        )
    };
    assert_eq!(
        refused(parts("GET", "/", &[("host", "h")])),
        Error::Unsigned
    );
    assert_eq!(refused(plain("Bearer x")), Error::Unsigned);
    assert_eq!(
        refused(plain("AWS4-ECDSA-P256-SHA256 Credential=x")),
        Error::Algorithm
    );
    assert_eq!(refused(plain("AWS AKIA:sig")), Error::Algorithm);
    for bad in [
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=AKIAFAKEFAKEFAKEFAKE, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=AKIAFAKEFAKEFAKEFAKE/20130524/us-east-1/s3/aws4_request, Signature=0",
        "AWS4-HMAC-SHA256 Credential=AKIAFAKEFAKEFAKEFAKE/20130524/us-east-1/s3/aws4_request, SignedHeaders=host",
    ] {
        assert!(
            matches!(refused(plain(bad)), Error::Malformed { .. }),
            "{bad}"
        );
    }
    let mut twice = parts("GET", PRESIGNED, &[("host", "h")]);
    twice.headers = signed_with(FAKE, &[hash]).headers;
    assert_eq!(refused(twice), Error::Twice);
    let credential =
        "&X-Amz-Credential=AKIAFAKEFAKEFAKEFAKE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request";
    let doubled = parts("GET", &format!("{PRESIGNED}{credential}"), &[]);
    assert_eq!(refused(doubled), Error::Twice);
    let old = parts(
        "GET",
        "/?AWSAccessKeyId=AKIAFAKEFAKEFAKEFAKE&Expires=1&Signature=x",
        &[("host", "h")],
    );
    assert_eq!(refused(old), Error::Algorithm);
    let elsewhere = PRESIGNED.replace("us-east-1", "eu-west-1");
    let why = refused(parts("GET", &elsewhere, &[("host", "h")]));
    assert!(matches!(why, Error::OtherScope { .. }), "{why}");
    let other_day = PRESIGNED.replace("20130524T", "20130525T");
    let why = refused(parts("GET", &other_day, &[("host", "h")]));
    assert!(matches!(why, Error::Malformed { .. }), "{why}");
}

#[test]
fn http_2_has_its_host_in_the_uri() {
    let told = [("x-amz-content-sha256", EMPTY)];
    let one = parts(
        "GET",
        "https://examplebucket.s3.amazonaws.com/?lifecycle",
        &told,
    );
    assert_eq!(
        signature_of(&reference(one, Payload::AsTold)),
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    );
    let mut none = parts("GET", "/", &told);
    let key = reference_key();
    let keys = Keys {
        id: "A",
        key: &key,
        session: None,
    };
    let scope = Scope {
        region: "r",
        service: "s3",
    };
    let why = sign(&mut none, &keys, &scope, at(REFERENCE), Payload::AsTold);
    assert_eq!(why, Err(Error::NoHost));
}

#[test]
fn no_error_and_no_key_is_printed_with_a_secret_in_it() {
    let (key, session) = (Value::new("hunter2\u{7f}"), Value::new("two\nlines"));
    let keys = Keys {
        id: FAKE,
        key: &key,
        session: Some(&session),
    };
    let mut parts = signed_with(FAKE, &[("x-amz-content-sha256", EMPTY)]);
    let scope = Scope {
        region: "us-east-1",
        service: "s3",
    };
    let why = resign(
        &mut parts,
        FAKE,
        &keys,
        &scope,
        at(REFERENCE),
        Payload::AsTold,
    );
    let printed = format!(
        "{why:?} {keys:?} {}",
        why.clone().expect_err("it does not fit")
    );
    assert!(
        !printed.contains("hunter2") && !printed.contains("lines\""),
        "{printed}"
    );
}
