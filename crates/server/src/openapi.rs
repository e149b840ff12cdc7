//! The OpenAPI document, generated from the handlers and the types they speak.

use axum::Json;
use utoipa::OpenApi as _;

use crate::api::{
    checkpoints, egress, files, images, journal, ops, remote, sandboxes, sessions, trees,
};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Durable Sandbox",
        description = "The public API of the `durable` daemon."
    ),
    paths(
        sandboxes::health,
        sandboxes::list,
        sandboxes::create,
        sandboxes::show,
        sandboxes::remove,
        sandboxes::start,
        sandboxes::stop,
        images::list,
        images::pull,
        images::remove,
        checkpoints::take,
        checkpoints::list,
        checkpoints::label,
        checkpoints::remove,
        checkpoints::fork,
        checkpoints::fork_bound,
        checkpoints::keep,
        checkpoints::rewind,
        egress::policy,
        egress::set_policy,
        egress::check,
        egress::denials,
        egress::effects,
        egress::approvals,
        egress::decide,
        egress::secrets,
        egress::set_secret,
        egress::remove_secret,
        remote::push,
        remote::pull,
        trees::diff,
        trees::compose,
        trees::blame,
        files::read::content,
        files::read::stat,
        files::read::list,
        files::read::tree,
        files::read::watch,
        files::write::put,
        files::write::mkdir,
        files::write::remove,
        files::write::rename,
        files::write::unpack,
        journal::read,
        ops::list,
        ops::exec,
        ops::show,
        ops::frames,
        ops::output,
        ops::stdin,
        ops::stdin_taken,
        ops::signal,
        ops::cancel,
        ops::resize,
        sessions::list,
        sessions::start,
        sessions::show
    )
)]
struct Document;

/// Returns the document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

pub(crate) async fn serve() -> Json<utoipa::openapi::OpenApi> {
    Json(document())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_document_is_the_one_the_code_makes() {
        let made = super::document().to_pretty_json().unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed.trim() == made.trim(),
            "docs/openapi.json is stale: run `make openapi`"
        );
    }
}
