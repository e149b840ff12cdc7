//! The store of our own: one age file per secret, which the `age` tool reads too.
//!
//! ```text
//! DIR/store.age.d/NAME.age    the secret, encrypted to the identity
//! DIR/identity.txt            the identity, made with the first secret; DURABLE_AGE_IDENTITY names another file instead
//! DIR/fingerprint.key         what fingerprints are keyed with
//! DIR/lock                    who changes something here holds it
//! ```
//!
//! A change is on disk when it is answered, and a crash in its middle leaves what was there before. Everything here
//! blocks; `Secrets` has the same for async code.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use age::secrecy::ExposeSecret as _;
use protocol::UnixMillis;
use rustix::fs::FlockOperation;
use zeroize::Zeroizing;

use crate::error::{Error, Result, Why};
use crate::file::{self, Readers, Stamp};
use crate::source::check_name;
use crate::value::{FingerprintKey, MAX_BYTES, Value};
use crate::whole::{self, Existing};

/// How much longer an age file may be than what is in it: its header (for many recipients) and a tag per 64 KiB.
const AROUND: usize = 16 * 1024;
/// What the age crate encrypts at a time.
const AGE_CHUNK: usize = 64 * 1024;
const ENDING: &str = ".age";
type Identity = age::x25519::Identity;

/// The store of one data directory.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    identity: PathBuf,
    /// Whether the identity is ours to make.
    ours: bool,
}

/// What may be told of a secret in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// When it was last set.
    pub changed: UnixMillis,
    /// What tells its versions apart, or why it cannot be opened.
    pub fingerprint: Result<String>,
}

impl Store {
    /// Opens the store in a directory, which is made where it is not there. `identity` names a file with another identity.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn open(dir: &Path, identity: Option<&Path>) -> Result<Self> {
        let store = Self {
            dir: dir.to_owned(),
            identity: identity.map_or_else(|| dir.join("identity.txt"), Path::to_owned),
            ours: identity.is_none(),
        };
        let files = store.files();
        whole::directory(&files)
            .map_err(|why| of_store("opened", file::failure("make", &files, &why)))?;
        Ok(store)
    }

    /// Keeps a secret under a name, in place of what was there. On return it is on disk.
    ///
    /// # Errors
    /// The name is none, the value is empty or too long, or it cannot be written; then what was there still is.
    pub fn set(&self, name: &str, value: &Value) -> Result<()> {
        let path = self.checked(name, "kept")?;
        let kept = || -> std::result::Result<(), Why> {
            if value.expose().is_empty() {
                return Err(Why::Empty);
            }
            if value.expose().len() > MAX_BYTES {
                return Err(Why::TooLong);
            }
            let _held = self.lock()?;
            let recipient = self.identity_or_new()?.to_public();
            let sealed = age::encrypt(&recipient, value.expose())
                .map_err(|why| file::failure("encrypt", &path, &io::Error::other(why)))?;
            // The age crate gives its buffer back unwiped. One of that size nearly always comes from the same place.
            drop(Zeroizing::new(Vec::<u8>::with_capacity(AGE_CHUNK)));
            whole::write(&path, &sealed, Existing::Replace)
                .map_err(|why| file::failure("write", &path, &why))
        };
        kept().map_err(|why| of(name, "kept", why))
    }

    /// Returns a secret.
    ///
    /// # Errors
    /// There is none of that name, it is damaged, or the identity does not open it.
    pub fn get(&self, name: &str) -> Result<Value> {
        self.read(name).map(|(value, _)| value)
    }

    /// Removes a secret. On return it is gone from the disk; `false` if there was none.
    ///
    /// # Errors
    /// The name is none, or the file cannot be removed.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let path = self.checked(name, "removed")?;
        let removed = || {
            let _held = self.lock()?;
            match whole::remove(&path) {
                Ok(()) => Ok(true),
                Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(why) => Err(file::failure("remove", &path, &why)),
            }
        };
        removed().map_err(|why| of(name, "removed", why))
    }

    /// Returns what there is, by name. Values are looked at for their fingerprints alone.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self, key: &FingerprintKey) -> Result<Vec<Entry>> {
        let names = self.names().map_err(|why| of_store("listed", why))?;
        let entries = names.into_iter().map(|name| Entry {
            changed: written(&self.path(&name)),
            fingerprint: self.get(&name).map(|value| value.fingerprint(key)),
            name,
        });
        Ok(entries.collect())
    }

    /// Reads a secret, and when its file was last touched.
    pub(crate) fn read(&self, name: &str) -> Result<(Value, Stamp)> {
        let path = self.checked(name, "had")?;
        self.open_file(&path).map_err(|why| of(name, "had", why))
    }

    /// Returns where a secret is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.files().join(format!("{name}{ENDING}"))
    }

    /// Returns the key for fingerprints, which is made at first.
    pub(crate) fn fingerprint_key(&self) -> Result<FingerprintKey> {
        let path = self.dir.join("fingerprint.key");
        let key = || {
            let _held = self.lock()?;
            if !path.exists() {
                let bytes: Zeroizing<[u8; 32]> = Zeroizing::new(rand::random());
                whole::write(&path, &*bytes, Existing::Keep)
                    .map_err(|why| file::failure("write", &path, &why))?;
            }
            let (bytes, _) = file::read(&path, 32, Readers::Owner)?;
            <[u8; 32]>::try_from(bytes.as_slice())
                .map(FingerprintKey::new)
                .map_err(|_| Why::Damaged { path: path.clone() })
        };
        key().map_err(|why| of_store("opened", why))
    }

    fn files(&self) -> PathBuf {
        self.dir.join("store.age.d")
    }

    /// A name that is none is not repeated: it may be the secret.
    fn checked(&self, name: &str, verb: &'static str) -> Result<PathBuf> {
        check_name(name).map_err(|why| Error {
            reference: "of this name".to_owned(),
            verb,
            why: why.into(),
        })?;
        Ok(self.path(name))
    }

    fn names(&self) -> std::result::Result<Vec<String>, Why> {
        let files = self.files();
        let failed = |why: io::Error| file::failure("read", &files, &why);
        let mut names = Vec::new();
        for entry in fs::read_dir(&files).map_err(failed)? {
            let file = entry.map_err(failed)?.file_name();
            let name = file.to_str().and_then(|name| name.strip_suffix(ENDING));
            names.extend(
                name.filter(|name| check_name(name).is_ok())
                    .map(str::to_owned),
            );
        }
        names.sort();
        Ok(names)
    }

    fn open_file(&self, path: &Path) -> std::result::Result<(Value, Stamp), Why> {
        if !path.exists() {
            return Err(Why::Unknown);
        }
        let (sealed, stamp) = file::read(path, MAX_BYTES + AROUND, Readers::Anybody)?;
        let damaged = || Why::Damaged {
            path: path.to_owned(),
        };
        let sealed = age::Decryptor::new_buffered(sealed.as_slice()).map_err(|_| damaged())?;
        let identities = self.identities()?;
        let tried = identities.iter().map(|one| one as &dyn age::Identity);
        let mut opened = sealed.decrypt(tried).map_err(|why| match why {
            age::DecryptError::NoMatchingKeys => Why::OtherIdentity {
                path: path.to_owned(),
                identity: self.identity.clone(),
            },
            _ => damaged(),
        })?;
        let bytes = file::read_to_end(&mut opened, MAX_BYTES).map_err(|_| damaged())?;
        Ok((Value::new(bytes.ok_or(Why::TooLong)?.as_slice()), stamp))
    }

    fn identities(&self) -> std::result::Result<Vec<Identity>, Why> {
        if self.ours && !self.identity.exists() {
            return Err(Why::IdentityGone {
                path: self.identity.clone(),
            });
        }
        let none = || Why::NoIdentity {
            path: self.identity.clone(),
        };
        let (bytes, _) = file::read(&self.identity, MAX_BYTES, Readers::Owner)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| none())?;
        let lines = text.lines().map(str::trim);
        let identities: Vec<Identity> = lines.filter_map(|line| line.parse().ok()).collect();
        if identities.is_empty() {
            return Err(none());
        }
        Ok(identities)
    }

    /// Returns the identity that is encrypted to, which is made where the store is new.
    fn identity_or_new(&self) -> std::result::Result<Identity, Why> {
        if self.ours && !self.identity.exists() && self.names()?.is_empty() {
            let identity = Identity::generate();
            let text = Zeroizing::new(format!(
                "# public key: {}\n{}\n",
                identity.to_public(),
                identity.to_string().expose_secret()
            ));
            whole::write(&self.identity, text.as_bytes(), Existing::Keep)
                .map_err(|why| file::failure("write", &self.identity, &why))?;
        }
        // The first one is encrypted to; the others open what is older.
        let mut identities = self.identities()?.into_iter();
        identities.next().ok_or_else(|| Why::NoIdentity {
            path: self.identity.clone(),
        })
    }

    /// Takes the right to change something, which ends with the file.
    fn lock(&self) -> std::result::Result<File, Why> {
        let path = self.dir.join("lock");
        let failed = |why: io::Error| file::failure("lock", &path, &why);
        let file = File::create(&path).map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|why| failed(why.into()))?;
        Ok(file)
    }
}

fn of(name: &str, verb: &'static str, why: Why) -> Error {
    Error {
        reference: format!("age:{name}"),
        verb,
        why,
    }
}

fn of_store(verb: &'static str, why: Why) -> Error {
    Error {
        reference: "store".to_owned(),
        verb,
        why,
    }
}

fn written(path: &Path) -> UnixMillis {
    let written = path.metadata().and_then(|told| told.modified()).ok();
    let since = written.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    UnixMillis(since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }))
}
