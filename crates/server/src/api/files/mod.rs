//! Files of a sandbox: looked at, read, watched and changed, as one of its users.
//!
//! A path stands in the query, percent-encoded, in any bytes: `?path=/workspace/a%20b`. A relative one starts in the
//! sandbox's working directory.

mod query;
mod range;
pub(crate) mod read;
mod show;
pub(crate) mod write;

/// For the document alone: the path, and with whose rights.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "queries are read by hand, for bytes that are no UTF-8"
)]
pub(crate) struct At {
    /// Percent-encoded, in any bytes. A relative one starts in the sandbox's working directory.
    path: String,
    /// With whose rights, as `exec` takes it; with those that operations have where not given.
    user: Option<String>,
}
