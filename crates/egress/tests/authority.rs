//! The authority and its certificates, as openssl sees them.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use egress::Authority;

use crate::client::tls;
use crate::origin::{LOOK, Origin, rule};
use crate::world::{World, door};

#[test]
fn an_authority_is_made_once_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let first = Authority::open(dir.path()).unwrap();
    let again = Authority::open(dir.path()).unwrap();
    assert_eq!(first.cert_pem(), again.cert_pem());
    let mode = |name: &str| {
        dir.path()
            .join(name)
            .metadata()
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!((mode("ca.key"), mode("ca.pem")), (0o600, 0o644));
    // A crash between the two files leaves the key alone.
    std::fs::remove_file(dir.path().join("ca.pem")).unwrap();
    let made = Authority::open(dir.path()).unwrap();
    assert_ne!(made.cert_pem(), first.cert_pem());
}

#[test]
fn files_that_are_not_ours_are_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    Authority::open(dir.path()).unwrap();
    Authority::open(other.path()).unwrap();
    std::fs::copy(other.path().join("ca.pem"), dir.path().join("ca.pem")).unwrap();
    let error = Authority::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("ca.pem") && error.contains("another key"),
        "{error}"
    );
    let key = dir.path().join("ca.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = Authority::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_for_one_name_and_for_less_than_a_day() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let stream = tls(&world, door(origin.port), "a.test", &["h2"])
        .await
        .unwrap();
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    let path = world.dir.path().join("leaf.der");
    std::fs::write(&path, &chain[0]).unwrap();
    let shown = Command::new("openssl")
        .args([
            "x509",
            "-inform",
            "der",
            "-noout",
            "-text",
            "-checkend",
            "82800",
            "-in",
        ])
        .arg(&path)
        .output()
        .unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    for expected in [
        "DNS:a.test\n",
        "TLS Web Server Authentication",
        "CA:FALSE",
        "Subject Key Identifier",
        "Authority Key Identifier",
        "NIST CURVE: P-256",
        "Certificate will expire",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
    std::fs::write(world.dir.path().join("ca.pem"), world.authority.cert_pem()).unwrap();
    let verified = Command::new("openssl")
        .args(["verify", "-x509_strict", "-CAfile"])
        .arg(world.dir.path().join("ca.pem"))
        .arg(pem(&world, &chain[0]))
        .output()
        .unwrap();
    assert!(
        verified.status.success(),
        "{}",
        String::from_utf8_lossy(&verified.stderr)
    );
}

fn pem(world: &World, der: &[u8]) -> std::path::PathBuf {
    let (from, to) = (
        world.dir.path().join("leaf2.der"),
        world.dir.path().join("leaf.pem"),
    );
    std::fs::write(&from, der).unwrap();
    let made = Command::new("openssl")
        .args(["x509", "-inform", "der", "-in"])
        .arg(from)
        .arg("-out")
        .arg(&to)
        .status()
        .unwrap();
    assert!(made.success());
    to
}
