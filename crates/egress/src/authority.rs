//! The installation's certificate authority, and the certificates that it makes for the names that a rule must look into.
//!
//! The authority is kept in two files, `ca.key` (0600) and `ca.pem`; the key is written first, so a crash between the two
//! leaves a key for which the certificate is made at the next start. Certificates for names live for less than a day, in
//! memory only.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use policy::Host;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType, SerialNumber, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Names whose certificates are kept; a program that asks for more makes us sign again, which takes less than a millisecond.
const CACHED: usize = 512;
/// A certificate is good from an hour ago, for clocks that are a little off, to 22 hours from now.
const LEAF_BEFORE: Duration = Duration::from_secs(3600);
const LEAF_AFTER: Duration = Duration::from_secs(22 * 3600);
/// It is made anew long before it ends: a connection may be kept open for hours.
const LEAF_KEPT: Duration = Duration::from_secs(10 * 3600);
/// The authority itself: ten years.
const CA_BEFORE: Duration = Duration::from_secs(24 * 3600);
const CA_AFTER: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file of it could not be read or written.
    #[error("cannot {verb} {path}")]
    Io {
        /// `read`, `write` …
        verb: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of it holds something else.
    #[error(
        "{path} is not usable: {why}; move it away, and a new authority is made (sandboxes must then be started again)"
    )]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No certificate could be made.
    #[error("cannot make a certificate for {name}: {why}")]
    Make {
        /// For whom.
        name: String,
        /// What the library said.
        why: String,
    },
}

/// The authority of one installation.
pub struct Authority {
    pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    /// One key for all names: what it protects never leaves this machine.
    leaf_key: KeyPair,
    leaves: Mutex<Leaves>,
}

#[derive(Default)]
struct Leaves {
    by_name: HashMap<Host, Leaf>,
    clock: u64,
}

struct Leaf {
    config: Arc<ServerConfig>,
    made: Instant,
    used: u64,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Loads the authority of a directory, or makes one there. What is made is on disk on return.
    ///
    /// # Errors
    /// Files that cannot be read or written, that are open to others than their owner, or that are not ours.
    pub fn open(dir: &Path) -> Result<Self, AuthorityError> {
        fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        let (key_path, cert_path) = (dir.join("ca.key"), dir.join("ca.pem"));
        let key = match read_key(&key_path)? {
            Some(key) => key,
            None => make_key(dir, &key_path)?,
        };
        let pem = match fs::read_to_string(&cert_path) {
            Ok(pem) => pem,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = ca_params(&key)
                    .self_signed(&key)
                    .map_err(making("the authority"))?;
                write_new(dir, &cert_path, made.pem().as_bytes(), 0o644)?;
                made.pem()
            }
            Err(error) => return Err(io_error("read", &cert_path)(error)),
        };
        let der = matching(&pem, &key).map_err(|why| AuthorityError::Content {
            path: cert_path,
            why,
        })?;
        Ok(Self {
            pem,
            der,
            issuer: Issuer::new(ca_params(&key), key),
            leaf_key: KeyPair::generate().map_err(making("names"))?,
            leaves: Mutex::default(),
        })
    }

    /// Returns the certificate that programs inside must trust, as PEM.
    #[must_use]
    pub fn cert_pem(&self) -> &str {
        &self.pem
    }

    /// Returns how to answer TLS as `name`: HTTP/2 and HTTP/1.1, with a certificate for exactly that name.
    pub(crate) fn server_config(&self, name: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        let now = Instant::now();
        {
            let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
            leaves.clock += 1;
            let clock = leaves.clock;
            if let Some(leaf) = leaves.by_name.get_mut(name)
                && now.duration_since(leaf.made) < LEAF_KEPT
            {
                leaf.used = clock;
                return Ok(leaf.config.clone());
            }
        }
        let config = self.make_config(name)?;
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if leaves.by_name.len() >= CACHED && !leaves.by_name.contains_key(name) {
            let oldest = leaves.by_name.iter().min_by_key(|(_, leaf)| leaf.used);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                leaves.by_name.remove(&oldest);
            }
        }
        let leaf = Leaf {
            config: config.clone(),
            made: now,
            used: leaves.clock,
        };
        leaves.by_name.insert(name.clone(), leaf);
        Ok(config)
    }

    fn make_config(&self, name: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        let text = name.to_string();
        let failed = |why: String| AuthorityError::Make {
            name: text.clone(),
            why,
        };
        let params = leaf_params(name).map_err(&failed)?;
        let cert = params
            .signed_by(&self.leaf_key, &self.issuer)
            .map_err(|error| failed(error.to_string()))?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let signing = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|error| failed(error.to_string()))?;
        let chain = vec![cert.der().clone(), self.der.clone()];
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Always(Arc::new(CertifiedKey::new(
                chain, signing,
            )))));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// The one certificate: which name it must be for was decided before.
#[derive(Debug)]
struct Always(Arc<CertifiedKey>);

impl ResolvesServerCert for Always {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

fn leaf_params(name: &Host) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    let text = name.to_string();
    // The longest that a common name may be; who looks at it at all is old enough to be strict about it.
    if text.len() <= 64 {
        subject.push(DnType::CommonName, text.as_str());
    }
    params.distinguished_name = subject;
    params.subject_alt_names = vec![match name {
        Host::Ip(ip) => SanType::IpAddress(*ip),
        Host::Name(name) => SanType::DnsName(
            name.as_str()
                .try_into()
                .map_err(|error: rcgen::Error| error.to_string())?,
        ),
    }];
    params.not_before = date_time_ymd(1970, 1, 1) + (now() - LEAF_BEFORE);
    params.not_after = date_time_ymd(1970, 1, 1) + (now() + LEAF_AFTER);
    params.serial_number = Some(random_serial());
    // Says "no authority" in the certificate, and brings its subject key identifier along.
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// The authority's own; all of it but its times follows from the key.
fn ca_params(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let id = blake3::hash(&key.subject_public_key_info()).to_hex();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "Durable Sandbox");
    subject.push(
        DnType::CommonName,
        format!("Durable Sandbox authority {}", &id[..8]),
    );
    params.distinguished_name = subject;
    params.not_before = date_time_ymd(1970, 1, 1) + (now() - CA_BEFORE);
    params.not_after = date_time_ymd(1970, 1, 1) + (now() + CA_AFTER);
    params.serial_number = Some(random_serial());
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

fn random_serial() -> SerialNumber {
    let mut bytes: [u8; 16] = rand::random();
    // Positive and never of a shorter encoding.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    SerialNumber::from_slice(&bytes)
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .max(Duration::from_secs(2 * 24 * 3600))
}

/// Returns the certificate where it is one and belongs to the key.
fn matching(pem: &str, key: &KeyPair) -> Result<CertificateDer<'static>, String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| format!("it holds no certificate ({error})"))?;
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(der.clone())
        .map_err(|error| format!("its certificate is no authority's ({error})"))?;
    let theirs = &roots.roots[0].subject_public_key_info;
    if key.subject_public_key_info().ends_with(theirs.as_ref()) {
        Ok(der)
    } else {
        Err("its certificate belongs to another key than ca.key".to_owned())
    }
}

fn read_key(path: &Path) -> Result<Option<KeyPair>, AuthorityError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("read", path)(error)),
    };
    let content = |why: String| AuthorityError::Content {
        path: path.to_owned(),
        why,
    };
    let mode = fs::metadata(path)
        .map_err(io_error("read", path))?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        let why = format!(
            "others may read it (mode {:o}); run `chmod 600` on it",
            mode & 0o777
        );
        return Err(content(why));
    }
    KeyPair::from_pem(&text)
        .map(Some)
        .map_err(|error| content(format!("it holds no key ({error})")))
}

fn make_key(dir: &Path, path: &Path) -> Result<KeyPair, AuthorityError> {
    let key = KeyPair::generate().map_err(making("the authority"))?;
    write_new(dir, path, key.serialize_pem().as_bytes(), 0o600)?;
    Ok(key)
}

/// Writes a file so that after a crash it is there whole, or not at all.
fn write_new(dir: &Path, path: &Path, bytes: &[u8], mode: u32) -> Result<(), AuthorityError> {
    let beside = path.with_extension("new");
    let error = |source| io_error("write", path)(source);
    match fs::remove_file(&beside) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(error(source)),
        _gone => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&beside)
        .map_err(error)?;
    file.write_all(bytes).map_err(error)?;
    file.sync_all().map_err(error)?;
    fs::rename(&beside, path).map_err(error)?;
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(error)
}

fn io_error(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> AuthorityError {
    let path = path.to_owned();
    move |source| AuthorityError::Io { verb, path, source }
}

fn making(name: &'static str) -> impl FnOnce(rcgen::Error) -> AuthorityError {
    move |error| AuthorityError::Make {
        name: name.to_owned(),
        why: error.to_string(),
    }
}
