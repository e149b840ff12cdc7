//! The store underneath: a directory, or a cloud through `object_store`. Names and bytes, one call at a time.
//! What is put or created is durable on return, but for what a verb says it leaves for later.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::directory::{Directory, Staged};
use crate::error::{Error, Result};
use crate::store::directory;

/// An object as a listing tells it.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    /// The last part of its name.
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
}

/// A store, and the thread that drives its input and output.
pub(crate) struct Backend {
    place: Place,
    handle: Handle,
    /// Its end stops the driver.
    _driver: oneshot::Sender<()>,
}

enum Place {
    Directory(Directory),
    Cloud(Cloud),
}

struct Cloud {
    store: Arc<dyn ObjectStore>,
    root: Path,
}

/// An object that is on its way to where it will be created.
pub(crate) enum Prepared {
    /// Being written beside its place.
    Beside(JoinHandle<std::io::Result<Staged>>),
    /// Nothing can be done before.
    Bytes(Vec<u8>),
}

/// What survives a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasts {
    Always,
    /// Perhaps it is gone then; but if it is there, it is whole.
    UntilThen,
}

impl Backend {
    /// Opens `file:///dir`, a plain path, or a cloud's URL.
    pub(crate) fn open(url: &str) -> Result<Self> {
        let (handle, driver) = drive()?;
        let place = match directory(url) {
            Some(path) => Place::Directory(local(path)?),
            None => {
                // A cloud client wants a runtime around it when made.
                let _inside = handle.enter();
                Place::Cloud(cloud(url)?)
            }
        };
        Ok(Self {
            place,
            handle,
            _driver: driver,
        })
    }

    /// Reads an object; `None` if there is none.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Bytes>> {
        match &self.place {
            Place::Directory(dir) => {
                let got = dir.get(name).map_err(failed("read", name))?;
                Ok(got.map(Bytes::from))
            }
            Place::Cloud(cloud) => self.handle.block_on(cloud.get(name)),
        }
    }

    /// Reads a part of an object; `None` if there is no such object, fewer bytes if it ends before.
    pub(crate) fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Bytes>> {
        match &self.place {
            Place::Directory(dir) => {
                let got = dir.get_range(name, from, len);
                Ok(got.map_err(failed("read", name))?.map(Bytes::from))
            }
            Place::Cloud(cloud) => self.handle.block_on(cloud.get_range(name, from, len)),
        }
    }

    /// Writes an object, over one of the same name.
    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        match &self.place {
            Place::Directory(dir) => {
                let staged = dir.stage(name, &bytes);
                let put = staged.and_then(Staged::put);
                put.and_then(|()| dir.sync(parent(name)))
                    .map_err(failed("write", name))
            }
            Place::Cloud(cloud) => self.handle.block_on(cloud.put(name, bytes)),
        }
    }

    /// Writes an object if there is none of that name; false if there is one.
    pub(crate) fn create(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        match &self.place {
            Place::Directory(dir) => {
                let staged = dir.stage(name, &bytes);
                let created = staged.and_then(Staged::create);
                created
                    .and_then(|new| dir.sync(parent(name)).map(|()| new))
                    .map_err(failed("create", name))
            }
            Place::Cloud(cloud) => self.handle.block_on(cloud.create(name, bytes)),
        }
    }

    /// Begins what can be done of a [`create`](Self::create) before the object may be seen, and does not wait for it.
    pub(crate) fn prepare(&self, name: &str, bytes: Vec<u8>) -> Prepared {
        match &self.place {
            Place::Directory(dir) => {
                let (dir, name) = (dir.clone(), name.to_owned());
                Prepared::Beside(self.handle.spawn_blocking(move || dir.stage(&name, &bytes)))
            }
            Place::Cloud(_) => Prepared::Bytes(bytes),
        }
    }

    /// Ends it: as [`create`](Self::create), but for what the name says.
    pub(crate) fn create_prepared(
        &self,
        name: &str,
        prepared: Prepared,
        lasts: Lasts,
    ) -> Result<bool> {
        let job = match prepared {
            Prepared::Bytes(bytes) => return self.create(name, bytes),
            Prepared::Beside(job) => job,
        };
        let staged = self.handle.block_on(job);
        let staged = staged.unwrap_or_else(|why| Err(std::io::Error::other(why)));
        let created = staged
            .and_then(Staged::create)
            .map_err(failed("create", name))?;
        if let (Lasts::Always, Place::Directory(dir)) = (lasts, &self.place) {
            dir.sync(parent(name)).map_err(failed("create", name))?;
        }
        Ok(created)
    }

    /// Writes two objects, the second shown once the first is, and does not wait for them. In a directory their names are
    /// durable with the next [`settle`](Self::settle).
    pub(crate) fn put_both(
        &self,
        first: (String, Vec<u8>),
        second: (String, Vec<u8>),
    ) -> JoinHandle<Result<()>> {
        match &self.place {
            Place::Directory(dir) => {
                let dir = dir.clone();
                self.handle
                    .spawn_blocking(move || put_both(&dir, &first, &second))
            }
            Place::Cloud(Cloud { store, root }) => {
                let cloud = Cloud {
                    store: Arc::clone(store),
                    root: root.clone(),
                };
                self.handle.spawn(async move {
                    cloud.put(&first.0, first.1).await?;
                    cloud.put(&second.0, second.1).await
                })
            }
        }
    }

    /// Waits for what [`put_both`](Self::put_both) began.
    pub(crate) fn wait(&self, job: JoinHandle<Result<()>>) -> Result<()> {
        match self.handle.block_on(job) {
            Ok(done) => done,
            Err(why) => Err(failed("write", "a pack")(why)),
        }
    }

    /// Makes durable whatever these directories show, no matter who put it there.
    pub(crate) fn settle(&self, dirs: [&str; 2]) -> Result<()> {
        let Place::Directory(dir) = &self.place else {
            return Ok(());
        };
        // Side by side, so that they share a commit of the disk's journal.
        let [one, other] = dirs;
        let (one, other) = both(
            || dir.sync(one).map_err(failed("sync", one)),
            || dir.sync(other).map_err(failed("sync", other)),
        );
        one.and(other)
    }

    /// Lists the names in a directory, in their order.
    pub(crate) fn names(&self, dir: &str) -> Result<Vec<String>> {
        match &self.place {
            Place::Directory(top) => top.names(dir).map_err(failed("list", dir)),
            Place::Cloud(_) => {
                let listed = self.list(dir)?.into_iter();
                Ok(listed.map(|listed| listed.name).collect())
            }
        }
    }

    /// Lists a directory, in the order of names.
    pub(crate) fn list(&self, dir: &str) -> Result<Vec<Listed>> {
        match &self.place {
            Place::Directory(top) => top.list(dir).map_err(failed("list", dir)),
            Place::Cloud(cloud) => self.handle.block_on(cloud.list(dir)),
        }
    }

    /// Lists the names of the directories below one.
    pub(crate) fn dirs(&self, dir: &str) -> Result<Vec<String>> {
        match &self.place {
            Place::Directory(top) => top.dirs(dir).map_err(failed("list", dir)),
            Place::Cloud(cloud) => self.handle.block_on(cloud.dirs(dir)),
        }
    }

    /// Removes what killed writers left in a directory. No listing shows it.
    pub(crate) fn clear_staged(&self, older: Duration) -> Result<()> {
        let Place::Directory(dir) = &self.place else {
            return Ok(());
        };
        let is_old =
            |meta: &std::fs::Metadata| meta.modified().is_ok_and(|at| crate::gc::age(at) >= older);
        dir.clear_staged(is_old)
            .map_err(failed("clear away", "what killed writers left"))
    }

    /// Removes objects; it is well if some are gone.
    pub(crate) fn remove(&self, names: Vec<String>) -> Result<()> {
        match &self.place {
            Place::Directory(dir) => names
                .iter()
                .try_for_each(|name| dir.remove(name).map_err(failed("remove", name))),
            Place::Cloud(cloud) => self.handle.block_on(cloud.remove(names)),
        }
    }
}

impl Cloud {
    fn at(&self, name: &str) -> Path {
        name.split('/')
            .fold(self.root.clone(), |path, part| path.join(part))
    }

    async fn get(&self, name: &str) -> Result<Option<Bytes>> {
        let got = match self.store.get(&self.at(name)).await {
            Ok(object) => object.bytes().await.map(Some),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(why) => Err(why),
        };
        got.map_err(failed("read", name))
    }

    async fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Bytes>> {
        match self.store.get_range(&self.at(name), from..from + len).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            // A range beyond the end is told in many ways; the whole object is the common answer.
            Err(why) => match self.get(name).await? {
                Some(whole) => {
                    let cut = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(whole.len());
                    if cut(from + len) as u64 == from + len {
                        return Err(failed("read", name)(why));
                    }
                    Ok(Some(whole.slice(cut(from)..cut(from + len))))
                }
                None => Ok(None),
            },
        }
    }

    async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let put = self
            .store
            .put(&self.at(name), PutPayload::from(bytes))
            .await;
        put.map(drop).map_err(failed("write", name))
    }

    async fn create(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        let options = PutOptions::from(PutMode::Create);
        let payload = PutPayload::from(bytes);
        match self.store.put_opts(&self.at(name), payload, options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(why) => Err(failed("create", name)(why)),
        }
    }

    async fn list(&self, dir: &str) -> Result<Vec<Listed>> {
        let prefix = self.at(dir);
        let listed = self.store.list(Some(&prefix)).try_collect();
        let objects: Vec<object_store::ObjectMeta> = listed.await.map_err(failed("list", dir))?;
        let mut all: Vec<Listed> = objects
            .into_iter()
            .filter_map(|object| {
                Some(Listed {
                    name: object.location.filename()?.to_owned(),
                    size: object.size,
                    modified: object.last_modified.into(),
                })
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    async fn dirs(&self, dir: &str) -> Result<Vec<String>> {
        let prefix = self.at(dir);
        let found = self.store.list_with_delimiter(Some(&prefix)).await;
        Ok(found
            .map_err(failed("list", dir))?
            .common_prefixes
            .iter()
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect())
    }

    async fn remove(&self, names: Vec<String>) -> Result<()> {
        // As many at once as a cloud answers without holding back.
        const AT_ONCE: usize = 16;
        let mut jobs = futures_util::stream::iter(names)
            .map(|name| async move {
                match self.store.delete(&self.at(&name)).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                    Err(why) => Err(failed("remove", &name)(why)),
                }
            })
            .buffer_unordered(AT_ONCE);
        while let Some(done) = jobs.next().await {
            done?;
        }
        Ok(())
    }
}

fn put_both(dir: &Directory, first: &(String, Vec<u8>), second: &(String, Vec<u8>)) -> Result<()> {
    let stage =
        |(name, bytes): &(String, Vec<u8>)| dir.stage(name, bytes).map_err(failed("write", name));
    // Side by side, so that they share a commit of the disk's journal.
    let (one, other) = both(|| stage(first), || stage(second));
    let (one, other) = (one?, other?);
    one.put().map_err(failed("write", &first.0))?;
    other.put().map_err(failed("write", &second.0))
}

fn both<A: Send, B: Send>(one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
    std::thread::scope(|scope| {
        let beside = scope.spawn(one);
        let other = other();
        match beside.join() {
            Ok(one) => (one, other),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The directory that an object is in; of one at the top the top.
fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or(".", |(dir, _)| dir)
}

fn failed<E: std::error::Error + Send + Sync + 'static>(
    doing: &'static str,
    name: &str,
) -> impl FnOnce(E) -> Error {
    let object = name.to_owned();
    move |source| Error::Store {
        doing,
        object,
        source: Box::new(source),
    }
}

/// Starts a thread with a runtime of its own, which ends when the sender is dropped. A store may so be used, and
/// dropped, on any thread.
fn drive() -> Result<(Handle, oneshot::Sender<()>)> {
    let failed = || Error::io("start the driver of", "the blob store");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .map_err(failed())?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel();
    std::thread::Builder::new()
        .name("blob-store".into())
        .spawn(move || drop(runtime.block_on(stopped)))
        .map_err(failed())?;
    Ok((handle, stop))
}

fn local(path: &std::path::Path) -> Result<Directory> {
    if !path.is_absolute() {
        return Err(Error::Invalid(format!(
            "{path:?} is no absolute path and no URL"
        )));
    }
    Directory::open(path).map_err(Error::io("create", path))
}

fn cloud(url: &str) -> Result<Cloud> {
    let parsed =
        url::Url::parse(url).map_err(|why| Error::Invalid(format!("{url:?} is no URL: {why}")))?;
    // The client takes the process's one; another part of it may have set it already.
    let _set = rustls::crypto::ring::default_provider().install_default();
    // The clouds' own words in the environment: AWS_…, GOOGLE_…, AZURE_….
    let options = std::env::vars()
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .filter(|(name, _)| {
            ["aws_", "google_", "azure_"]
                .iter()
                .any(|cloud| name.starts_with(cloud))
        });
    let (store, root) =
        object_store::parse_url_opts(&parsed, options).map_err(failed("open", url))?;
    Ok(Cloud {
        store: store.into(),
        root,
    })
}
