//! No body makes the reader of GraphQL stumble, and a document that reads still reads when it is posted as JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;
use policy::kind;

/// Whether a request only reads, as it is posted.
fn reads(content: &str, body: &[u8]) -> bool {
    let headers = [("content-type", content.as_bytes())];
    matches!(
        kind("POST", "/graphql", headers, Some(body)),
        protocol::EffectKind::Read
    )
}

fuzz_target!(|data: &[u8]| {
    let _json = reads("application/json", data);
    let document = reads("application/graphql", data);
    if let Ok(text) = std::str::from_utf8(data) {
        let posted = serde_json::json!({ "query": text }).to_string();
        assert_eq!(document, reads("application/json", posted.as_bytes()));
        let second = format!("{text}\nmutation Zz {{ x }}");
        assert!(!reads("application/graphql", second.as_bytes()));
    } else {
        assert!(!document);
    }
});
