//! An upstream behind TLS, by name.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::world::{AUTHORITY, KEY, World, say};

const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
     data: {\"type\":\"message_stop\"}\n\n";

/// Serves one request behind TLS under the name `localhost`; returns its port, and the request when it was read.
fn server(world: &World) -> (u16, JoinHandle<String>) {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(world.path().join(AUTHORITY), own.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    let served = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = TlsAcceptor::from(Arc::new(config.clone()));
            // A client that does not trust us ends here.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                return String::new();
            };
            let mut request = vec![0; 64 << 10];
            let read = stream.read(&mut request).await.unwrap();
            stream.write_all(ANSWER.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            request.truncate(read);
            String::from_utf8(request).unwrap()
        })
    });
    (port, served)
}

#[test]
fn an_upstream_behind_tls_is_asked_by_its_name_with_the_key() {
    let world = World::one_command();
    let (port, served) = server(&world);
    let daemon = world.daemon_with(&format!("https://localhost:{port}"));
    let reply = world.post(&say("go")).finish().unwrap();
    assert_eq!(
        (reply.status, reply.text().as_str()),
        (200, "data: {\"type\":\"message_stop\"}\n\n")
    );
    let request = served.join().unwrap();
    assert!(
        request.starts_with("POST /v1/messages?beta=true HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.contains(&format!("x-api-key: {KEY}\r\n")),
        "{request}"
    );
    assert!(
        request.contains(&format!("host: localhost:{port}\r\n")),
        "{request}"
    );
    daemon.settled();
}

#[test]
fn an_upstream_that_nobody_vouches_for_is_not_asked() {
    let world = World::one_command();
    let (port, served) = server(&world);
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(world.path().join(AUTHORITY), other.cert.pem()).unwrap();
    let _daemon = world.daemon_with(&format!("https://localhost:{port}"));
    let reply = world.post(&say("go")).finish().unwrap();
    assert_eq!(reply.status, 502);
    assert!(reply.text().contains("certificate"), "{}", reply.text());
    assert_eq!(served.join().unwrap(), "");
}
