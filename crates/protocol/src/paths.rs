//! Places inside every sandbox that both sides must agree on.

/// Directory of ours inside the sandbox, read-only: the binary and the harness layer.
pub const OPT: &str = "/opt/durable";
/// The `durable` binary as the sandbox sees it.
pub const BIN: &str = "/opt/durable/bin/durable";
/// The same binary under the name that makes it a shell for harnesses (see `shim`).
pub const SHELL: &str = "/opt/durable/bin/durable-shell";
/// Where installed harnesses are mounted, one directory `NAME/VERSION` each.
pub const HARNESS: &str = "/opt/durable/harness";
/// The supervisor's socket for the shim; on a tmpfs that only the supervisor writes.
pub const SHIM_SOCKET: &str = "/run/durable/shim.sock";
/// The loopback port of the model gateway inside the sandbox.
pub const MODEL_PORT: u16 = 8377;
/// The loopback port at which the egress gateway takes CONNECT and absolute-form requests.
pub const PROXY_PORT: u16 = 8378;
/// Ports at which connections to any address end at the egress gateway; a policy may name more.
pub const DOOR_PORTS: [u16; 3] = [53, 80, 443];
/// Ports at which there can be no door: programs inside have something else there, or nothing can be.
pub const NO_DOOR: [u16; 3] = [0, MODEL_PORT, PROXY_PORT];
/// The certificate of the sandbox's own authority, inside: PEM, the one certificate.
pub const CA_CERT: &str = "/run/durable/ca.pem";
/// The bundle that programs inside are told to trust: the image's roots and the sandbox's own authority, PEM.
pub const CA_BUNDLE: &str = "/run/durable/ca-bundle.pem";
/// The same for Java, as a keystore (JKS, password `changeit`); there where the image has a Java runtime.
pub const CA_KEYSTORE: &str = "/run/durable/cacerts.jks";

/// Names inside a sandbox's state directory on the host, which sandboxed processes cannot reach.
pub mod state {
    /// The supervisor's op table (see [`crate::table`]).
    pub const TABLE: &str = "ops.table";
    /// The socket on which the supervisor accepts the daemon.
    pub const CONTROL: &str = "control.sock";
    /// The socket on which the daemon accepts model traffic that the supervisor forwards.
    pub const GATEWAY: &str = "gateway.sock";
    /// Directory of spool files; see [`super::spool_file`].
    pub const SPOOL: &str = "spool";
}

/// Returns the spool file's path, relative to the state directory, of one stream of an operation.
#[must_use]
pub fn spool_file(op: &crate::OpId, attempt: u32, stream: crate::Stream) -> String {
    format!("{}/{}.{}.{}", state::SPOOL, op, attempt, stream.name())
}
