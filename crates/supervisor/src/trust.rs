//! By which variables programs are told whom to trust: no one of them is heard by all, and the files that some read instead
//! are covered by whoever made the sandbox.
//!
//! Proxy variables are not among them: every connection ends at a door without, and programs that obey them send there what
//! was meant for a server beside them. `SSL_CERT_DIR` is not, since some programs look nowhere else then; Java has no variable
//! for a bundle, and its keystores are covered as well.

use protocol::paths::{CA_BUNDLE, CA_CERT};

/// The last two add to what a program trusts, the others stand for all of it.
pub(crate) const VARIABLES: [(&str, &str); 16] = [
    ("SSL_CERT_FILE", CA_BUNDLE),
    ("CURL_CA_BUNDLE", CA_BUNDLE),
    ("GIT_SSL_CAINFO", CA_BUNDLE),
    ("REQUESTS_CA_BUNDLE", CA_BUNDLE),
    ("PIP_CERT", CA_BUNDLE),
    ("npm_config_cafile", CA_BUNDLE),
    ("YARN_HTTPS_CA_FILE_PATH", CA_BUNDLE),
    ("CARGO_HTTP_CAINFO", CA_BUNDLE),
    ("AWS_CA_BUNDLE", CA_BUNDLE),
    ("BUNDLE_SSL_CA_CERT", CA_BUNDLE),
    ("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", CA_BUNDLE),
    ("NIX_SSL_CERT_FILE", CA_BUNDLE),
    ("HTTPLIB2_CA_CERTS", CA_BUNDLE),
    ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", CA_BUNDLE),
    ("NODE_EXTRA_CA_CERTS", CA_CERT),
    ("DENO_CERT", CA_CERT),
];
