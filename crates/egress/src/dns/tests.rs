use super::*;

/// A query as resolvers send it: id 0xabcd, recursion desired.
fn query(name: &str, kind: u16, opt: bool) -> Vec<u8> {
    let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(opt)];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1]);
    if opt {
        bytes.extend_from_slice(&[0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes
}

/// Code, number of answers and the bytes behind the header.
fn parts(answer: &[u8]) -> (u8, u8, &[u8]) {
    assert_eq!(answer[..2], [0xab, 0xcd]);
    assert_eq!(answer[2] & 0x80, 0x80, "it is an answer");
    (answer[3] & 0x0f, answer[7], &answer[12..])
}

#[test]
fn a_name_gets_an_address_that_leads_back_to_it() {
    let answerer = Answerer::default();
    let answer = answer_dns(&answerer, &query("Files.Example.com", 1, true)).unwrap();
    let (code, answers, _) = parts(&answer);
    assert_eq!((code, answers), (0, 1));
    let question = query("Files.Example.com", 1, false).len();
    assert_eq!(
        answer[question..question + 12],
        [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]
    );
    let address: [u8; 4] = answer[question + 12..question + 16].try_into().unwrap();
    let name = answerer.name_of(IpAddr::from(address)).unwrap();
    assert_eq!(name, Host::Name("files.example.com".into()));
    // EDNS is answered with EDNS.
    assert_eq!(
        answer[question + 16..],
        [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn every_other_type_has_nothing() {
    let answerer = Answerer::default();
    // NS, CNAME, SOA, PTR, MX, TXT, SRV, SVCB, HTTPS
    for kind in [2, 5, 6, 12, 15, 16, 33, 64, 65] {
        let answer = answer_dns(&answerer, &query("example.com", kind, false)).unwrap();
        let (code, answers, _) = parts(&answer);
        assert_eq!((code, answers), (0, 0), "type {kind}");
    }
    let v6 = answer_dns(&answerer, &query("example.com", 28, false)).unwrap();
    assert_eq!(parts(&v6).1, 1);
}

#[test]
fn localhost_is_the_sandbox_itself() {
    let answerer = Answerer::default();
    for name in ["localhost", "app.localhost", "LOCALHOST"] {
        let answer = answer_dns(&answerer, &query(name, 1, false)).unwrap();
        assert_eq!(answer[answer.len() - 4..], [127, 0, 0, 1], "{name}");
    }
}

#[test]
fn what_is_no_name_is_none() {
    let answerer = Answerer::default();
    for name in ["127.1", "0x7f000001", "a b.test", "\u{1}.test", ""] {
        let answer = answer_dns(&answerer, &query(name, 1, false)).unwrap();
        assert_eq!(parts(&answer).0, 3, "{name:?}");
    }
}

#[test]
fn malformed_queries_get_an_error_or_nothing() {
    let answerer = Answerer::default();
    let good = query("a.test", 1, false);
    assert_eq!(answer_dns(&answerer, &good[..11]), None);
    let mut response = good.clone();
    response[2] |= 0x80;
    assert_eq!(answer_dns(&answerer, &response), None);
    let code = |bytes: &[u8]| parts(&answer_dns(&answerer, bytes).unwrap()).0;
    for cut in 12..good.len() {
        assert_eq!(code(&good[..cut]), 1, "cut at {cut}");
    }
    let mut two = good.clone();
    two[5] = 2;
    assert_eq!(code(&two), 1);
    let mut pointer = good.clone();
    pointer[12] = 0xc0;
    assert_eq!(code(&pointer), 1);
    let mut status = good.clone();
    status[2] = 2 << 3;
    assert_eq!(code(&status), 4);
    let mut dotted = good;
    dotted[13] = b'.';
    assert_eq!(code(&dotted), 1);
    let long = query(&vec!["x".repeat(63); 5].join("."), 1, false);
    assert_eq!(code(&long), 1);
}

#[test]
fn no_bytes_make_it_fail() {
    let answerer = Answerer::default();
    // A fixed seed: the same bytes every time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..20_000 {
        let mut bytes = query("some.name.test", 28, next() % 2 == 0);
        for _ in 0..next() % 6 {
            let at = usize::try_from(next()).unwrap() % bytes.len();
            bytes[at] = next().to_le_bytes()[0];
        }
        bytes.truncate(usize::try_from(next()).unwrap() % (bytes.len() + 1));
        if let Some(answer) = answer_dns(&answerer, &bytes) {
            assert!(answer.len() >= 12 && answer.len() <= 512);
        }
    }
}
