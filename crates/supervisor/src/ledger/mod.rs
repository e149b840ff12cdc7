//! The durable table: what is handed in here is on disk before the answer comes.
//!
//! One thread writes. It takes everything that waits, syncs the output that settlements speak of, writes the records as one
//! frame and syncs once: a group commit. If the disk is full it waits for room; any other failure ends the supervisor,
//! for after a failed sync nobody knows what is on disk.

mod fold;
mod writer;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;

use protocol::table::{Record, Table};
use protocol::{Boot, CodecError, Outcome, Settlement};
use tokio::sync::oneshot;

use crate::sys;
use writer::Writer;

/// Why the table could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "the operation table is damaged in the middle; a person must look before anything goes on"
    )]
    Damaged(#[source] CodecError),
    #[error("cannot {verb} the operation table")]
    Io {
        verb: &'static str,
        #[source]
        source: io::Error,
    },
}

/// A spool file that must be on disk before the records it comes with.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) file: Arc<OwnedFd>,
    /// Whether it has only been created for this run, so that its name must be made durable too.
    pub(crate) created: bool,
}

enum Job {
    Commit {
        records: Vec<Record>,
        output: Vec<Output>,
        done: oneshot::Sender<Option<io::Error>>,
    },
    Lazy(Record),
}

/// Where records are handed in.
pub(crate) struct Ledger {
    jobs: mpsc::Sender<Job>,
}

/// What opening the table gives.
pub(crate) struct Opened {
    pub(crate) ledger: Ledger,
    /// As the last supervisor left it, with this boot.
    pub(crate) table: Table,
    pub(crate) boot: Boot,
    /// Tells why the writer gave up.
    pub(crate) failed: oneshot::Receiver<io::Error>,
}

impl Ledger {
    /// Opens the table in `state`, makes this a new boot and starts the writer.
    ///
    /// The boot is durable with the first commit: before that nothing was promised to anybody.
    pub(crate) fn open(state: impl AsFd, spool: OwnedFd) -> Result<Opened, Error> {
        let (mut writer, mut table) = Writer::open(state.as_fd(), spool)?;
        let boot = table.boot.next();
        let record = Record::Boot { boot };
        table.apply(&record);
        let (jobs, queue) = mpsc::channel();
        let (fail, failed) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("ledger".to_owned())
            .stack_size(256 << 10);
        thread
            .spawn(move || {
                writer.hold(record);
                if let Err(error) = write_all(&mut writer, &queue) {
                    // Whoever would hear of it has gone if this fails.
                    let _told: Result<(), io::Error> = fail.send(error);
                }
            })
            .map_err(|source| Error::Io {
                verb: "start the writer of",
                source,
            })?;
        Ok(Opened {
            ledger: Self { jobs },
            table,
            boot,
            failed,
        })
    }

    /// Hands in records; what is returned ends when they are durable. They are written in the order of these calls.
    ///
    /// An error is one of `output` alone: then the settlements among the records were written as [`spoil`] makes them.
    pub(crate) fn commit(
        &self,
        records: Vec<Record>,
        output: Vec<Output>,
    ) -> impl Future<Output = Option<io::Error>> + use<> {
        let (done, answer) = oneshot::channel();
        // A writer that has ended never answers, and the supervisor ends with it.
        let _sent: Result<(), _> = self.jobs.send(Job::Commit {
            records,
            output,
            done,
        });
        async move {
            match answer.await {
                Ok(error) => error,
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Hands in a record that becomes durable with the next commit, or a little later by itself.
    pub(crate) fn lazily(&self, record: Record) {
        let _sent: Result<(), _> = self.jobs.send(Job::Lazy(record));
    }
}

/// Says in a settlement that its output is not on disk.
pub(crate) fn spoil(settlement: &mut Settlement, error: &io::Error) {
    settlement.outcome = Outcome::Cancelled;
    settlement.error = Some(format!("its output could not be kept: {error}"));
}

/// The most records in one frame; keeps frames below the limit of the format in all but odd cases, which are split.
const MAX_BATCH: usize = 256;
/// How long a lazy record waits for company.
const LAZY: std::time::Duration = std::time::Duration::from_millis(200);

fn write_all(writer: &mut Writer, queue: &mpsc::Receiver<Job>) -> io::Result<()> {
    loop {
        let first = if writer.holds() {
            match queue.recv_timeout(LAZY) {
                Ok(job) => Some(job),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return writer.commit(),
            }
        } else {
            match queue.recv() {
                Ok(job) => Some(job),
                Err(mpsc::RecvError) => return Ok(()),
            }
        };
        let is_due = first.is_none();
        let mut jobs: Vec<Job> = first.into_iter().collect();
        jobs.extend(queue.try_iter().take(MAX_BATCH));
        let mut waiting = Vec::new();
        let mut output = Vec::new();
        for job in jobs {
            match job {
                Job::Lazy(record) => writer.hold(record),
                Job::Commit {
                    records,
                    output: files,
                    done,
                } => {
                    output.extend(files.iter().cloned());
                    waiting.push((records, files, done));
                }
            }
        }
        if waiting.is_empty() && !is_due {
            continue;
        }
        if output.len() > 1 {
            output.iter().for_each(|o| sys::start_writeback(&o.file));
        }
        let mut names = None;
        let mut answers = Vec::new();
        for (mut records, files, done) in waiting {
            let error = sync_files(&files).err().or_else(|| {
                let created = files.iter().any(|f| f.created);
                let names = created.then(|| names.get_or_insert_with(|| writer.sync_names()));
                names?.as_ref().err().map(copy_error)
            });
            if let Some(error) = &error {
                for record in &mut records {
                    if let Record::Settled { settlement, .. } = record {
                        spoil(settlement, error);
                    }
                }
            }
            records.into_iter().for_each(|record| writer.hold(record));
            answers.push((done, error));
        }
        writer.commit()?;
        for (done, error) in answers {
            // An operation that nobody waits for any more is still durable.
            let _told: Result<(), _> = done.send(error);
        }
    }
}

fn sync_files(files: &[Output]) -> io::Result<()> {
    for output in files {
        rustix::fs::fdatasync(&output.file)?;
    }
    Ok(())
}

fn copy_error(error: &io::Error) -> io::Error {
    error
        .raw_os_error()
        .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Reads a whole file of the state directory; `None` if it is not there.
fn read_file(state: impl AsFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(state, name, flags, Mode::empty()) {
        Ok(fd) => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut File::from(fd), &mut bytes)?;
            Ok(Some(bytes))
        }
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests;
