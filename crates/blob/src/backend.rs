//! The store underneath, through `object_store`: names and bytes, one call at a time.
//! What is put is durable on return (files and directories are synced where the store is a directory).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

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
    store: Arc<dyn ObjectStore>,
    root: Path,
    /// Where it is a directory.
    dir: Option<PathBuf>,
    handle: Handle,
    /// Its end stops the driver.
    _driver: oneshot::Sender<()>,
}

impl Backend {
    /// Opens `file:///dir`, a plain path, or a cloud's URL.
    pub(crate) fn open(url: &str) -> Result<Self> {
        let (handle, driver) = drive()?;
        // A cloud client wants a runtime around it when made.
        let inside = handle.enter();
        let dir = directory(url);
        let (store, root) = dir.map_or_else(|| cloud(url), local)?;
        drop(inside);
        Ok(Self {
            store,
            root,
            dir: dir.map(std::path::Path::to_owned),
            handle,
            _driver: driver,
        })
    }

    fn at(&self, name: &str) -> Path {
        name.split('/')
            .fold(self.root.clone(), |path, part| path.join(part))
    }

    /// Reads an object; `None` if there is none.
    pub(crate) fn get(&self, name: &str) -> Result<Option<Bytes>> {
        let path = self.at(name);
        let got = self.handle.block_on(async {
            match self.store.get(&path).await {
                Ok(object) => object.bytes().await.map(Some),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(why) => Err(why),
            }
        });
        got.map_err(failed("read", name))
    }

    /// Reads a part of an object; `None` if there is no such object, fewer bytes if it ends before.
    pub(crate) fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Bytes>> {
        let path = self.at(name);
        match self
            .handle
            .block_on(self.store.get_range(&path, from..from + len))
        {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            // A range beyond the end is told in many ways; the whole object is the common answer.
            Err(why) => match self.get(name)? {
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

    /// Writes an object, over one of the same name.
    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let path = self.at(name);
        self.handle
            .block_on(self.store.put(&path, PutPayload::from(bytes)))
            .map(drop)
            .map_err(failed("write", name))
    }

    /// Writes an object if there is none of that name; false if there is one.
    pub(crate) fn create(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        let path = self.at(name);
        let options = PutOptions::from(PutMode::Create);
        match self
            .handle
            .block_on(self.store.put_opts(&path, PutPayload::from(bytes), options))
        {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(why) => Err(failed("create", name)(why)),
        }
    }

    /// Writes two objects, the second once the first is durable, and does not wait for them.
    pub(crate) fn put_both(
        &self,
        first: (String, Vec<u8>),
        second: (String, Vec<u8>),
    ) -> JoinHandle<Result<()>> {
        let store = Arc::clone(&self.store);
        let paths = [self.at(&first.0), self.at(&second.0)];
        self.handle.spawn(async move {
            let [one, two] = paths;
            store
                .put(&one, PutPayload::from(first.1))
                .await
                .map_err(failed("write", &first.0))?;
            store
                .put(&two, PutPayload::from(second.1))
                .await
                .map_err(failed("write", &second.0))?;
            Ok(())
        })
    }

    /// Waits for what [`put_both`](Self::put_both) began.
    pub(crate) fn wait(&self, job: JoinHandle<Result<()>>) -> Result<()> {
        match self.handle.block_on(job) {
            Ok(done) => done,
            Err(why) => Err(Error::Store {
                doing: "write",
                object: "a pack".into(),
                source: Box::new(why),
            }),
        }
    }

    /// Lists a directory, in the order of names.
    pub(crate) fn list(&self, dir: &str) -> Result<Vec<Listed>> {
        let prefix = self.at(dir);
        let objects: Vec<_> = self
            .handle
            .block_on(self.store.list(Some(&prefix)).try_collect())
            .map_err(failed("list", dir))?;
        let mut all: Vec<Listed> = objects
            .into_iter()
            .filter_map(|object: object_store::ObjectMeta| {
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

    /// Lists the names of the directories below one.
    pub(crate) fn dirs(&self, dir: &str) -> Result<Vec<String>> {
        let prefix = self.at(dir);
        let found = self
            .handle
            .block_on(self.store.list_with_delimiter(Some(&prefix)))
            .map_err(failed("list", dir))?;
        Ok(found
            .common_prefixes
            .iter()
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect())
    }

    /// Removes what killed writers left in a directory: an object is written as `NAME#NUMBER` and becomes NAME by a rename.
    /// No listing shows them.
    pub(crate) fn clear_staged(&self, older: Duration) -> Result<()> {
        let Some(top) = &self.dir else {
            return Ok(());
        };
        let mut left = vec![top.clone()];
        while let Some(dir) = left.pop() {
            let entries = match std::fs::read_dir(&dir) {
                // A collection beside this one, or a ref that was removed.
                Err(gone) if gone.kind() == std::io::ErrorKind::NotFound => continue,
                entries => entries.map_err(Error::io("list", &dir))?,
            };
            for entry in entries {
                let entry = entry.map_err(Error::io("list", &dir))?;
                let Ok(meta) = entry.metadata() else { continue };
                if meta.is_dir() {
                    left.push(entry.path());
                } else if is_staged(&entry.file_name())
                    && meta.modified().is_ok_and(|at| crate::gc::age(at) >= older)
                {
                    let path = entry.path();
                    match std::fs::remove_file(&path) {
                        Err(gone) if gone.kind() == std::io::ErrorKind::NotFound => {}
                        removed => removed.map_err(Error::io("remove", &path))?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes objects; it is well if some are gone.
    pub(crate) fn remove(&self, names: Vec<String>) -> Result<()> {
        // As many at once as a cloud answers without holding back.
        const AT_ONCE: usize = 16;
        self.handle.block_on(async {
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
        })
    }
}

fn is_staged(name: &std::ffi::OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.rsplit_once('#'));
    number.is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn failed(doing: &'static str, name: &str) -> impl FnOnce(object_store::Error) -> Error {
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

fn local(path: &std::path::Path) -> Result<(Arc<dyn ObjectStore>, Path)> {
    if !path.is_absolute() {
        return Err(Error::Invalid(format!(
            "{path:?} is no absolute path and no URL"
        )));
    }
    std::fs::create_dir_all(path).map_err(Error::io("create", path))?;
    let store = object_store::local::LocalFileSystem::new_with_prefix(path)
        .map_err(failed("open", &path.to_string_lossy()))?
        .with_fsync(true);
    Ok((Arc::new(store), Path::default()))
}

fn cloud(url: &str) -> Result<(Arc<dyn ObjectStore>, Path)> {
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
    Ok((store.into(), root))
}
