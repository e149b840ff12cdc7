//! Records one answer: from the relay's file into the journal, and tells clients how much of it may be shown.
//!
//! Text may be shown at once; what completes a tool call only when it is durable, so that no command is ever started
//! that the journal does not know the model asked for. A recorder of a restarted daemon reads the file again from its start and
//! appends what the journal does not have yet.

use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use protocol::{Event, ModelOutcome, ModelRequestId, Offset};

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::core::{Core, Durability, End, Shown};
use crate::dialect::Dialect;
use crate::dialect::stream::{Gate, Scanner};
use crate::relay::spool::{Head, Reader, Record};
use crate::relay::{Begin, Progress, RelayError, Stage, State};

/// Output is appended when it reaches this size, or this age.
const BATCH_BYTES: usize = 32 << 10;
const BATCH_AGE: Duration = Duration::from_millis(50);
/// The most in one event.
const MAX_EVENT: usize = 64 << 10;

/// Journals a new request, hands it to the relay and records the answer.
pub(crate) async fn ask(
    core: Arc<Core>,
    dialect: Dialect,
    requested: Event,
    begin: Begin,
    shown: watch::Sender<Shown>,
) {
    let request = begin.request.clone();
    // Durable before the upstream is asked: a paid answer must never be one that the journal does not know.
    if core
        .append(vec![requested], Durability::Durable)
        .await
        .is_err()
    {
        core.never_journaled(&request);
        shown.send_modify(|shown| shown.end = Some(End::Stopped));
        core.recorded(&request);
        return;
    }
    let recorder = Recorder::new(core, dialect, request, shown);
    match recorder.core.relay.begin(begin).await {
        Ok(progress) => recorder.run(progress).await,
        Err(RelayError::Start { socket, source }) => {
            let socket = socket.display();
            let error = format!("the relay at {socket} does not start: {source}");
            recorder.run_settled(ModelOutcome::Failed { error }).await;
        }
        // It may have heard of the request before the connection broke.
        Err(RelayError::Gone { .. }) => recorder.run(gone()).await,
    }
}

/// Goes on with a request that the journal has not settled.
pub(crate) async fn recover(
    core: Arc<Core>,
    dialect: Dialect,
    request: ModelRequestId,
    shown: watch::Sender<Shown>,
) {
    let recorder = Recorder::new(core, dialect, request, shown);
    recorder.run(gone()).await;
}

/// A progress that makes the recorder ask the relay again.
fn gone() -> watch::Receiver<Progress> {
    let progress = Progress {
        length: 0,
        state: State::Gone,
    };
    watch::channel(progress).1
}

type Append = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

struct Recorder {
    core: Arc<Core>,
    dialect: Dialect,
    request: ModelRequestId,
    shown: watch::Sender<Shown>,
    reader: Option<Reader>,
    scanner: Option<Scanner>,
    /// How much of the body the journal has, batches in flight included.
    journaled: u64,
    /// How much of the body was read.
    read: u64,
    head: Option<Head>,
    head_journaled: bool,
    batch: BytesMut,
    batch_since: Option<Instant>,
    in_flight: Option<Append>,
    any_output: bool,
}

/// What ends the recording without a settlement: the next daemon goes on.
struct Stop;

impl Recorder {
    fn new(
        core: Arc<Core>,
        dialect: Dialect,
        request: ModelRequestId,
        shown: watch::Sender<Shown>,
    ) -> Self {
        let (journaled, head_journaled) = core.inspect(|models| {
            let known = models.get(&request);
            let journaled = known.map_or(0, |known| known.bytes.0);
            (journaled, known.is_some_and(|known| known.head.is_some()))
        });
        Self {
            core,
            dialect,
            request,
            shown,
            reader: None,
            scanner: None,
            journaled,
            read: 0,
            head: None,
            head_journaled,
            batch: BytesMut::new(),
            batch_since: None,
            in_flight: None,
            any_output: journaled > 0,
        }
    }

    async fn run(mut self, progress: watch::Receiver<Progress>) {
        let closed = self.core.closed.clone();
        let recorded = tokio::select! {
            // In this order, so that an answer that was settled just now is not taken for one that was not.
            biased;
            recorded = self.follow(progress) => recorded,
            () = closed.cancelled() => Err(Stop),
        };
        self.end(recorded).await;
    }

    async fn run_settled(mut self, outcome: ModelOutcome) {
        let settled = self.settle(outcome).await;
        self.end(settled).await;
    }

    async fn end(self, recorded: Result<End, Stop>) {
        let settled = recorded.is_ok();
        let end = recorded.unwrap_or(End::Stopped);
        let read = self.read;
        self.shown.send_modify(|shown| {
            if end == End::Complete {
                shown.bytes = read;
            }
            shown.end = Some(end);
        });
        self.core.recorded(&self.request);
        if settled {
            // A file that stays is swept at the next start of a daemon.
            let _forgotten: Result<(), RelayError> = self.core.relay.forget(&self.request).await;
        }
    }

    /// Reads the answer to its end.
    async fn follow(&mut self, mut progress: watch::Receiver<Progress>) -> Result<End, Stop> {
        loop {
            // Seen before the file is read: what it says of an end is true of all that is read then.
            let state = progress.borrow_and_update().state.clone();
            if let Some(outcome) = self.drain().await? {
                return self.settle(outcome).await;
            }
            match state {
                State::Asked | State::At(Stage::Running) => {}
                State::At(Stage::Broken { error }) => {
                    return self.settle(ModelOutcome::Failed { error }).await;
                }
                // Nobody writes on, and there is no end in the file.
                State::At(Stage::Ended) | State::NotRunning => {
                    return self.settle(ModelOutcome::Lost).await;
                }
                State::Gone => {
                    progress = match self.core.relay.attach(&self.request).await {
                        Ok(progress) => progress,
                        Err(_no_relay) => not_running(),
                    };
                    continue;
                }
            }
            let due = self.batch_since.map(|since| since + BATCH_AGE);
            tokio::select! {
                changed = progress.changed() => {
                    if changed.is_err() {
                        progress = gone();
                    }
                }
                appended = in_flight(&mut self.in_flight) => self.appended(appended)?,
                () = until(due), if self.in_flight.is_none() => self.append_relaxed(),
            }
        }
    }

    /// Reads what the file holds by now; returns the end where it is there.
    async fn drain(&mut self) -> Result<Option<ModelOutcome>, Stop> {
        loop {
            match self.next() {
                Ok(None) => return Ok(None),
                Ok(Some(Record::Head(head))) => {
                    self.scanner = Some(Scanner::new(self.dialect, &head.headers));
                    let shown = Arc::new(head.clone());
                    self.head = Some(head);
                    self.shown.send_modify(|now| now.head = Some(shown));
                }
                Ok(Some(Record::Body { offset, data })) => self.body(offset, &data).await?,
                Ok(Some(Record::End(outcome))) => return Ok(Some(outcome)),
                Err(error) => {
                    let error = format!("the relay's file of this answer: {error}");
                    return Ok(Some(ModelOutcome::Failed { error }));
                }
            }
        }
    }

    fn next(&mut self) -> io::Result<Option<Record>> {
        if self.reader.is_none() {
            self.reader = Reader::open(&self.core.relay.spool(&self.request))?;
        }
        match &mut self.reader {
            Some(reader) => reader.next(),
            None => Ok(None),
        }
    }

    async fn body(&mut self, offset: u64, data: &Bytes) -> Result<(), Stop> {
        let gate = match &mut self.scanner {
            Some(scanner) => scanner.feed(data),
            None => Gate::Settled,
        };
        let end = offset + data.len() as u64;
        self.read = end;
        let have = self.journaled + self.batch.len() as u64;
        if let Some(new) = have
            .checked_sub(offset)
            .and_then(|known| usize::try_from(known).ok())
            .and_then(|known| data.get(known..))
            .filter(|new| !new.is_empty())
        {
            self.batch.extend_from_slice(new);
            self.batch_since.get_or_insert_with(Instant::now);
        }
        if gate == Gate::Durable {
            self.append_durable(Vec::new()).await?;
        } else if self.batch.len() >= BATCH_BYTES {
            if let Some(append) = self.in_flight.take() {
                let appended = append.await;
                self.appended(appended)?;
            }
            self.append_relaxed();
        }
        if gate != Gate::Settled {
            self.shown.send_modify(|shown| shown.bytes = end);
        }
        Ok(())
    }

    /// Settles: the rest of the output and the end in one durable append.
    async fn settle(&mut self, outcome: ModelOutcome) -> Result<End, Stop> {
        let calls = self.scanner.take().map(Scanner::finish);
        let settled = Event::ModelSettled {
            request: self.request.clone(),
            outcome: outcome.clone(),
            bytes: Offset(self.journaled + self.batch.len() as u64),
            tool_calls: calls.unwrap_or_default(),
        };
        self.append_durable(vec![settled]).await?;
        Ok(match outcome {
            ModelOutcome::Complete => End::Complete,
            ModelOutcome::Failed { error } => End::Failed(error),
            ModelOutcome::Lost => End::Lost,
        })
    }

    /// Starts an append of the batch; at most one is in flight, so that pieces keep their order.
    fn append_relaxed(&mut self) {
        let events = self.take_batch();
        let core = Arc::clone(&self.core);
        self.in_flight = Some(Box::pin(async move {
            core.append(events, Durability::Relaxed).await
        }));
    }

    async fn append_durable(&mut self, more: Vec<Event>) -> Result<(), Stop> {
        if let Some(append) = self.in_flight.take() {
            let appended = append.await;
            self.appended(appended)?;
        }
        let mut events = self.take_batch();
        events.extend(more);
        if events.is_empty() {
            return Ok(());
        }
        let appended = self.core.append(events, Durability::Durable).await;
        self.appended(appended)
    }

    fn appended(&mut self, appended: Result<(), String>) -> Result<(), Stop> {
        self.in_flight = None;
        if let Err(error) = appended {
            tracing::error!(request = %self.request, error, "a model answer cannot be journaled");
            return Err(Stop);
        }
        if !self.any_output && self.journaled > 0 {
            self.any_output = true;
            failpoint::hit("mid_model_stream");
        }
        Ok(())
    }

    fn take_batch(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        if let Some(head) = self.head.take_if(|_| !self.head_journaled) {
            self.head_journaled = true;
            events.push(Event::ModelResponded {
                request: self.request.clone(),
                status: head.status,
                headers: head.headers,
            });
        }
        while !self.batch.is_empty() {
            let size = self.batch.len().min(MAX_EVENT);
            let data = self.batch.split_to(size).freeze();
            let offset = Offset(self.journaled);
            self.journaled += data.len() as u64;
            events.push(Event::ModelOutput {
                request: self.request.clone(),
                offset,
                data,
            });
        }
        self.batch_since = None;
        events
    }
}

fn not_running() -> watch::Receiver<Progress> {
    let progress = Progress {
        length: 0,
        state: State::NotRunning,
    };
    watch::channel(progress).1
}

async fn in_flight(append: &mut Option<Append>) -> Result<(), String> {
    match append {
        Some(append) => append.await,
        None => pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => pending().await,
    }
}
