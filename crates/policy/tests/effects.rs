//! What reads, and what may write.

use policy::kind;
use protocol::EffectKind::{Read, Write};

const JSON: (&str, &[u8]) = ("Content-Type", b"application/json; charset=utf-8");
const QUERY: &[u8] = br#"{"query": "{ viewer { login } }"}"#;
const MUTATION: &[u8] = br#"{"query": "mutation { x }"}"#;

#[test]
fn methods_tell_unless_a_body_or_a_header_says_more() {
    let none: [(&str, &[u8]); 0] = [];
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!(kind(method, "/x", none, None), Read);
        assert_eq!(kind(method, "/x", none, Some(b"")), Read);
        assert_eq!(kind(method, "/x", none, Some(b"x")), Write);
        assert_eq!(
            kind(method, "/x", [("content-length", &b"0"[..])], None),
            Read
        );
        assert_eq!(
            kind(method, "/x", [("content-length", &b"5"[..])], None),
            Write
        );
        assert_eq!(
            kind(method, "/x", [("Transfer-Encoding", &b"chunked"[..])], None),
            Write
        );
        assert_eq!(
            kind(
                method,
                "/x",
                [("X-HTTP-Method-Override", &b"DELETE"[..])],
                None
            ),
            Write
        );
        assert_eq!(
            kind(method, "/x", [("upgrade", &b"websocket"[..])], None),
            Write
        );
    }
    for method in [
        "POST", "PUT", "PATCH", "DELETE", "get", "QUERY", "PROPFIND", "TRACE", "",
    ] {
        assert_eq!(kind(method, "/x", none, None), Write, "{method}");
    }
}

#[test]
fn a_git_fetch_reads_and_a_push_writes() {
    let fetch = [(
        "content-type",
        &b"application/x-git-upload-pack-request"[..],
    )];
    let push = [(
        "content-type",
        &b"application/x-git-receive-pack-request"[..],
    )];
    assert_eq!(
        kind("POST", "/a/b.git/git-upload-pack", fetch, Some(b"0000")),
        Read
    );
    assert_eq!(
        kind("POST", "/a/b.git/git-receive-pack", push, Some(b"0000")),
        Write
    );
    assert_eq!(
        kind("POST", "/a/b.git/git-receive-pack", fetch, Some(b"0000")),
        Write
    );
    assert_eq!(
        kind("POST", "/a/b.git/git-upload-pack", [JSON], Some(b"0000")),
        Write
    );
}

#[test]
fn a_query_of_graphql_reads_where_all_of_it_is_known() {
    assert_eq!(kind("POST", "/graphql", [JSON], Some(QUERY)), Read);
    assert_eq!(kind("POST", "/api/graphql", [JSON], Some(QUERY)), Read);
    assert_eq!(
        kind(
            "POST",
            "/graphql",
            [("content-type", &b"application/graphql"[..])],
            Some(b"{ a }")
        ),
        Read
    );
    assert_eq!(kind("POST", "/graphql", [JSON], Some(MUTATION)), Write);
    assert_eq!(
        kind("POST", "/graphql", [JSON], Some(&QUERY[..QUERY.len() - 1])),
        Write
    );
    assert_eq!(kind("POST", "/graphql", [JSON], None), Write);
    assert_eq!(kind("POST", "/other", [JSON], Some(QUERY)), Write);
    assert_eq!(
        kind(
            "POST",
            "/graphql",
            [("content-type", &b"text/plain"[..])],
            Some(QUERY)
        ),
        Write
    );
    assert_eq!(
        kind(
            "POST",
            "/graphql",
            [JSON, ("content-encoding", b"gzip")],
            Some(QUERY)
        ),
        Write
    );
    assert_eq!(
        kind(
            "POST",
            "/graphql",
            [JSON, ("content-type", b"text/plain")],
            Some(QUERY)
        ),
        Write
    );
    assert_eq!(
        kind("POST", "/graphql?query=mutation{x}", [JSON], Some(QUERY)),
        Write
    );
    assert_eq!(kind("GET", "/graphql?query=mutation{x}", [], None), Write);
}
