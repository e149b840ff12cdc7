//! TLS towards upstreams. The name verified is the policy's.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use policy::Host;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Configurations that are kept: one for each set of extra roots and offer of protocols.
const CACHED: usize = 64;

/// Extra roots as PEM, and whether HTTP/2 is offered.
type Wanted = (Option<String>, bool);

pub(super) struct Tls {
    usual: OnceLock<RootCertStore>,
    configs: Mutex<HashMap<Wanted, Arc<ClientConfig>>>,
}

impl Tls {
    pub(super) fn new() -> Self {
        Self {
            usual: OnceLock::new(),
            configs: Mutex::default(),
        }
    }

    pub(super) async fn connect(
        &self,
        host: &Host,
        roots: Option<&str>,
        h2: bool,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let config = self.config(roots, h2)?;
        let name = match host {
            Host::Ip(ip) => ServerName::from(*ip),
            Host::Name(name) => ServerName::try_from(name.clone()).map_err(io::Error::other)?,
        };
        TlsConnector::from(config).connect(name, stream).await
    }

    fn config(&self, roots: Option<&str>, h2: bool) -> io::Result<Arc<ClientConfig>> {
        let key = (roots.map(str::to_owned), h2);
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = configs.get(&key) {
            return Ok(config.clone());
        }
        let mut store = self.usual.get_or_init(usual_roots).clone();
        for root in roots
            .into_iter()
            .flat_map(|pem| CertificateDer::pem_slice_iter(pem.as_bytes()))
        {
            let root = root.map_err(|error| {
                io::Error::other(format!("the rule's `roots` are no PEM: {error}"))
            })?;
            store.add(root).map_err(io::Error::other)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(store)
            .with_no_client_auth();
        config.alpn_protocols = if h2 {
            vec![b"h2".to_vec(), b"http/1.1".to_vec()]
        } else {
            vec![b"http/1.1".to_vec()]
        };
        let config = Arc::new(config);
        if configs.len() >= CACHED {
            configs.clear();
        }
        configs.insert(key, config.clone());
        Ok(config)
    }
}

/// The host's roots, or the built-in list where it has none.
fn usual_roots() -> RootCertStore {
    let mut store = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    let (_added, _ignored) = store.add_parsable_certificates(native.certs);
    if store.is_empty() {
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    store
}
