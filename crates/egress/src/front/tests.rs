use super::*;

/// Everything that comes out for `bytes`, pushed in pieces of `piece`.
fn out(bytes: &[u8], piece: usize) -> Result<Vec<u8>, Violation> {
    let mut front = Front::default();
    let mut passed = Vec::new();
    for piece in bytes.chunks(piece) {
        front.push(piece);
        while let Step::Pass(bytes) = front.step()? {
            passed.extend_from_slice(&bytes);
        }
    }
    Ok(passed)
}

fn same_in_all_pieces(bytes: &[u8]) -> Result<Vec<u8>, Violation> {
    let whole = out(bytes, bytes.len().max(1));
    for piece in [1, 2, 3, 7] {
        assert_eq!(out(bytes, piece), whole, "in pieces of {piece}: {bytes:?}");
    }
    whole
}

#[test]
fn plain_requests_pass_as_they_are() {
    for request in [
        "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET /\u{fc} HTTP/1.0\r\nhost:a.test\r\nX: \tb\t\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-sum: 1\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n",
    ] {
        assert_eq!(
            same_in_all_pieces(request.as_bytes()).as_deref(),
            Ok(request.as_bytes())
        );
    }
    let blank = b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(same_in_all_pieces(blank).as_deref(), Ok(&blank[2..]));
}

#[test]
fn what_can_be_read_in_two_ways_is_refused() {
    use Violation as V;
    let post = |headers: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n");
    for (request, expected) in [
        (
            post("Content-Length: 1\r\nTransfer-Encoding: chunked"),
            V::TwoLengths,
        ),
        (
            post("Transfer-Encoding: chunked\r\nContent-Length: 1"),
            V::TwoLengths,
        ),
        (post("Content-Length: 1\r\nContent-Length: 1"), V::Length),
        (post("Content-Length: 1\r\nContent-Length: 2"), V::Length),
        (post("Content-Length: 1, 1"), V::Length),
        (post("Content-Length: +1"), V::Length),
        (post("Content-Length: 0x1"), V::Length),
        (post("Content-Length:"), V::Length),
        (post("Content-Length: 99999999999999999999"), V::Length),
        (post("Transfer-Encoding: chunked, identity"), V::Coding),
        (post("Transfer-Encoding: identity, chunked"), V::Coding),
        (
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
            V::Coding,
        ),
        (post("Transfer-Encoding: xchunked"), V::Coding),
        (post("Transfer-Encoding: \u{b}chunked"), V::Control),
        (post("Transfer-Encoding : chunked"), V::HeaderLine),
        (post("Host: b"), V::Host),
        (
            "GET http://a\\@b/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            V::RequestLine,
        ),
        (post("X: a\r\n b"), V::Folded),
        (post("X: a\0"), V::Control),
        (post("X: a\rb"), V::LineEnd),
        (post("X"), V::HeaderLine),
        (post(": x"), V::HeaderLine),
        ("GET / HTTP/1.1\r\n\r\n".into(), V::Host),
        ("GET / HTTP/1.1\nHost: a\n\n".into(), V::LineEnd),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n".into(), V::LineEnd),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), V::RequestLine),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), V::RequestLine),
        ("GET / x HTTP/1.1\r\nHost: a\r\n\r\n".into(), V::RequestLine),
        ("GET /\t HTTP/1.1\r\nHost: a\r\n\r\n".into(), V::RequestLine),
        ("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n".into(), V::RequestLine),
        ("GET /\r HTTP/1.1\r\nHost: a\r\n\r\n".into(), V::LineEnd),
        ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n".into(), V::RequestLine),
        (
            "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
            V::RequestLine,
        ),
        (
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
            V::Coding,
        ),
    ] {
        assert_eq!(
            same_in_all_pieces(request.as_bytes()),
            Err(expected),
            "{request:?}"
        );
    }
}

#[test]
fn a_malformed_chunk_is_refused() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in [
        "3\nabc\r\n",
        "3\r\nabcd\r\n",
        "3 \r\nabc\r\n",
        "-3\r\nabc\r\n",
        "0x3\r\nabc\r\n",
        "\r\n",
        "3;\u{1}\r\nabc\r\n",
        "10000000000000000\r\n",
        "0\r\nx\r\n\r\n",
        "0\r\n x: y\r\n\r\n",
        "0\r\nx: \0\r\n\r\n",
    ] {
        let request = format!("{head}{body}");
        assert_eq!(
            same_in_all_pieces(request.as_bytes()),
            Err(Violation::Chunk),
            "{body:?}"
        );
    }
}

#[test]
fn a_head_has_its_limits() {
    let many = format!(
        "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "a: b\r\n".repeat(200)
    );
    assert_eq!(out(many.as_bytes(), 4096), Err(Violation::TooLarge));
    let enough = format!(
        "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "a: b\r\n".repeat(199)
    );
    assert_eq!(
        out(enough.as_bytes(), 4096).as_deref(),
        Ok(enough.as_bytes())
    );
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}", "y".repeat(65 << 10));
    assert_eq!(out(long.as_bytes(), 4096), Err(Violation::TooLarge));
}

#[test]
fn nothing_passes_until_a_switch_is_decided() {
    let upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
    for opaque in [true, false] {
        let mut front = Front::default();
        front.push(upgrade);
        assert_eq!(front.step(), Ok(Step::Pass(Bytes::from_static(upgrade))));
        assert!(front.take_asked() && !front.take_asked());
        front.push(b"\x81\x01x");
        assert_eq!(front.step(), Ok(Step::Wait));
        front.decide(opaque);
        let expected = if opaque {
            Ok(Step::Pass(Bytes::from_static(b"\x81\x01x")))
        } else {
            Ok(Step::More)
        };
        assert_eq!(front.step(), expected);
    }
}

#[test]
fn no_bytes_make_it_fail() {
    let seeds = [
        &b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            [..],
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nContent-Length: 4\r\n\r\nabcd",
    ];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 1).unwrap()
    };
    for round in 0..20_000 {
        let mut bytes = seeds[round % seeds.len()].repeat(2);
        for _ in 0..next() % 4 {
            let at = next() % bytes.len();
            bytes[at] = b"\r\n\0 :;0aF"[next() % 9];
        }
        let piece = 1 + next() % 40;
        // What passed is what came, in its order (blank lines between requests are left out): nothing is invented.
        if let Ok(passed) = out(&bytes, piece) {
            let mut came = bytes.iter();
            assert!(passed.iter().all(|byte| came.any(|other| other == byte)));
        }
    }
}

#[test]
fn of_a_body_with_a_length_no_byte_more_passes_unseen() {
    let mut front = Front::default();
    front.push(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
    assert_eq!(front.unseen(), 0);
    assert!(matches!(front.step(), Ok(Step::Pass(_))));
    // What is held goes first.
    assert_eq!(front.unseen(), 0);
    assert_eq!(front.step(), Ok(Step::Pass(Bytes::from_static(b"ab"))));
    assert_eq!(front.unseen(), 3);
    front.passed(2);
    assert_eq!((front.unseen(), front.at_boundary()), (1, false));
    front.passed(1);
    assert_eq!(front.unseen(), 0);
    // The next request is looked at again.
    front.push(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(front.step(), Err(Violation::Host));
}

#[test]
fn of_chunks_and_heads_every_byte_is_seen() {
    let mut front = Front::default();
    assert_eq!(front.unseen(), 0);
    front.push(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert!(matches!(front.step(), Ok(Step::Pass(_))));
    assert_eq!(front.step(), Ok(Step::More));
    assert_eq!(front.unseen(), 0);
}

#[test]
fn a_line_with_a_bare_newline_is_refused_however_it_is_cut() {
    let chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: a\nb\r";
    assert_eq!(same_in_all_pieces(chunked), Err(Violation::Chunk));
}
