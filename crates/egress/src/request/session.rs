//! What all requests of one connection have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Request;
use policy::Host;
use protocol::Outgoing;

use crate::connection::{Busy, Client, Refused as Barred, outline};
use crate::deny::Denial;
use crate::head;

/// What all requests of one connection have in common.
pub(crate) struct Session {
    pub(crate) client: Arc<Client>,
    /// Whether the client spoke TLS to us; then we speak it to the upstream.
    pub(super) secure: bool,
    /// The one name that requests may be for; any, where nothing said it before.
    pub(super) name: Option<Host>,
    /// The address dialled, to say so where there is no name.
    address: Option<Host>,
    /// The one port.
    pub(super) port: Option<u16>,
    /// Whether any of them can be allowed.
    pub(super) barred: Barred,
    /// Whether a request came, so that its refusal was journaled.
    told: AtomicBool,
    pub(crate) busy: Arc<Busy>,
}

impl Session {
    /// Requests without TLS.
    pub(crate) fn plain(
        client: Arc<Client>,
        name: Option<Host>,
        address: Option<Host>,
        port: Option<u16>,
    ) -> Self {
        Self {
            client,
            secure: false,
            name,
            address,
            port,
            barred: Barred::Not,
            told: AtomicBool::new(false),
            busy: Arc::default(),
        }
    }

    /// Requests behind TLS that we answered in the name of `host`.
    pub(crate) fn secure(client: Arc<Client>, host: Host, port: u16, barred: Barred) -> Self {
        Self {
            client,
            secure: true,
            name: Some(host),
            address: None,
            port: Some(port),
            barred,
            told: AtomicBool::new(false),
            busy: Arc::default(),
        }
    }

    /// What is known of the connection for the journal.
    pub(crate) fn outline(&self) -> Outgoing {
        let protocol = if self.secure { "https" } else { "http" };
        match self.name.as_ref().or(self.address.as_ref()) {
            Some(host) => outline(protocol, host, self.port.unwrap_or_default()),
            None => Outgoing {
                op: None,
                protocol: protocol.to_owned(),
                host: String::new(),
                port: self.port.unwrap_or_default(),
                method: None,
                path: None,
            },
        }
    }

    /// Says that a request came.
    pub(super) fn heard(&self) {
        self.told.store(true, Ordering::Release);
    }

    /// Journals the refusal of a connection on which no request came.
    pub(crate) async fn tell_if_silent(&self) {
        if let Barred::ByPolicy(denial) | Barred::ForGood(denial) = &self.barred
            && !self.told.load(Ordering::Acquire)
        {
            let mut request = self.outline();
            request.protocol = "tls".to_owned();
            self.client.deny(request, denial).await;
        }
    }

    /// Returns whom a request is for, if it may be.
    pub(super) fn aim<B>(&self, request: &Request<B>) -> Result<(Host, u16), Denial> {
        if let Some(scheme) = request.uri().scheme_str() {
            let expected = if self.secure { "https" } else { "http" };
            if scheme != expected {
                return Err(Denial::malformed(format!(
                    "a request for {scheme}:// cannot come over a connection for {expected}://; use CONNECT"
                )));
            }
        } else if self.port.is_none() {
            return Err(Denial::malformed(
                "this is a proxy: it takes CONNECT, and requests with a whole URL",
            ));
        }
        let usual = if self.secure { 443 } else { 80 };
        let (host, port) = head::named(request, self.port.unwrap_or(usual))?;
        if let Some(name) = &self.name
            && *name != host
        {
            return Err(Denial::mismatch(format!(
                "the request is for {host}, and its connection is to {name}"
            )));
        }
        if self.port.is_some_and(|expected| expected != port) {
            return Err(Denial::mismatch(format!(
                "the request is for port {port} of {host}, and its connection is to port {}",
                self.port.unwrap_or_default()
            )));
        }
        Ok((host, port))
    }
}
