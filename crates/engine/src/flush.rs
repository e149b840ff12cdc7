//! Fork-and-flush: a fork keeps the files and begins a session that knows nothing of the conversations before it.
//!
//! The session stands in the append that makes the fork, so whoever finds the fork finds the session: a daemon that is killed
//! between the two leaves the next one to start it. Its endpoint is kept under the session's id before that.

use protocol::api::{FlushFork, MAX_NOTE, StartSession};
use protocol::{ApiError, ErrorCode, Event, Seq, SessionId};

use crate::engine::Engine;
use crate::error;
use crate::handoff::{self, Before};
use crate::models::{self, Endpoint};
use crate::sandbox::{Handle, Place, Request};
use crate::session::{self, Detail, Opening};
use crate::shared::Shared;

/// What is wanted of each fork, checked; nothing is made yet.
pub(crate) struct Flush {
    opening: Opening,
    endpoint: Option<Endpoint>,
    /// The session that it goes on from.
    before: Option<Before>,
    note: Option<String>,
}

/// A session that is to be journaled with a fork.
pub(crate) struct Fresh {
    pub(crate) session: SessionId,
    pub(crate) event: Event,
}

impl Flush {
    /// Finds out what is to be started in forks of `source` at a place; the end of its journal where none is given.
    pub(crate) async fn prepare(
        source: &Handle,
        ask: FlushFork,
        at: Option<Seq>,
    ) -> Result<Self, ApiError> {
        let note = ask.note.clone().map(checked).transpose()?;
        let sessions = sessions_of(source).await?;
        let before = latest(source, &sessions, at).await?;
        let endpoint = Endpoint::of(&source.shared, source.id)?;
        let endpoint = Endpoint::of_fork(endpoint, ask.model_url.clone(), ask.model_key.clone())?;
        let given = ask.harness.is_some().then(|| ask.args.clone());
        if given.is_none() && !ask.args.is_empty() {
            let message = "arguments without a harness";
            return Err(ApiError::new(ErrorCode::Invalid, message).hint("name the harness, too"));
        }
        let wanted = wanted(source, ask, before.as_ref())?;
        let mut opening = Opening::new(&source.shared, wanted)?;
        if let Some(given) = given {
            refuse_old(&opening, &given)?;
        }
        opening.detail.forget = old_conversations(&opening, &sessions)?;
        let flush = Self {
            opening,
            endpoint,
            before,
            note,
        };
        // What the driver refuses is refused with any note.
        flush.fresh("Go on.")?;
        if at.is_none() {
            // What is there at another place its own session finds out, and says.
            flush.opening.find_program(source).await?;
        }
        Ok(flush)
    }

    /// Returns the note that each session begins with.
    pub(crate) async fn note(
        &mut self,
        engine: &Engine,
        source: &Handle,
        place: &Place,
    ) -> Result<String, ApiError> {
        match self.note.take() {
            Some(note) => Ok(note),
            None => handoff::write(engine, source, place, self.before.as_ref()).await,
        }
    }

    /// Makes one session that begins with a note.
    pub(crate) fn fresh(&self, note: &str) -> Result<Fresh, ApiError> {
        let driver = self.opening.driver;
        // The id does not matter to what is left of the arguments.
        let start = self.opening.start(&session::fresh_id()?);
        let opening = Opening {
            driver,
            args: driver.afresh(&start, note),
            detail: self.opening.detail.clone(),
        };
        let (session, event) = opening.event()?;
        Ok(Fresh { session, event })
    }

    /// Keeps the endpoint for a session that is about to be journaled.
    pub(crate) fn keep(&self, shared: &Shared, fresh: &Fresh) -> Result<(), ApiError> {
        match &self.endpoint {
            Some(endpoint) => endpoint.keep_for(shared, &fresh.session),
            None => Ok(()),
        }
    }

    /// Takes back what was kept for sessions that are not to be.
    pub(crate) fn take_back<'a>(shared: &Shared, fresh: impl IntoIterator<Item = &'a Fresh>) {
        for fresh in fresh {
            models::drop_kept(shared, &fresh.session);
        }
    }
}

fn checked(note: String) -> Result<String, ApiError> {
    let why = if note.trim().is_empty() {
        "it is empty".to_owned()
    } else if note.len() > MAX_NOTE {
        format!("it has {} bytes, and {MAX_NOTE} are the most", note.len())
    } else if note.contains('\0') {
        "it holds a NUL byte".to_owned()
    } else {
        return Ok(note);
    };
    let message = format!("the hand-off note is not usable: {why}");
    Err(ApiError::new(ErrorCode::Invalid, message)
        .hint("a short text that says what to do; larger things are best in a file of the sandbox"))
}

/// Every session of a sandbox that is a conversation, the oldest first.
async fn sessions_of(source: &Handle) -> Result<Vec<Before>, ApiError> {
    let mut all = Vec::new();
    for view in source.sessions().await? {
        let session = view.id.clone();
        let known = source
            .ask(|reply| Request::Session { session, reply })
            .await?;
        let driver = session::driver(&known.harness)?;
        let detail: Detail = serde_json::from_value(known.detail)
            .map_err(|e| error::internal("the session's detail is not readable", &e))?;
        let start = session::start_of(&view.id, &known.args, known.began_at, &detail);
        // `claude --version` leaves nothing to go on from.
        if driver.transcript(&start).is_some() {
            all.push(Before {
                driver,
                start,
                detail,
                began: known.began,
            });
        }
    }
    all.sort_by_key(|session| session.began);
    Ok(all)
}

/// The session that was the last one at a place; where there was none yet, the last one of all.
async fn latest(
    source: &Handle,
    sessions: &[Before],
    at: Option<Seq>,
) -> Result<Option<Before>, ApiError> {
    let late = match at {
        Some(at) => at,
        None => source.view().await?.seq,
    };
    for session in sessions.iter().rev() {
        let early = session.began;
        if source
            .ask(|reply| Request::LeadsTo { early, late, reply })
            .await?
        {
            return Ok(Some(session.clone()));
        }
    }
    Ok(sessions.last().cloned())
}

/// Lays what is asked for over what the last session was started with.
fn wanted(
    source: &Handle,
    ask: FlushFork,
    before: Option<&Before>,
) -> Result<StartSession, ApiError> {
    let Some(before) = before else {
        let Some(harness) = ask.harness else {
            let message = format!("no session ever ran in sandbox `{}`", source.name);
            return Err(ApiError::new(ErrorCode::Invalid, message).hint(
                "say what to start in the fork, such as `--flush --handoff FILE -- claude -p`",
            ));
        };
        return Ok(StartSession {
            harness,
            args: ask.args,
            cwd: None,
            tty: ask.tty,
            model_url: None,
            model_key: None,
            model_api: ask.model_api,
            model: ask.model,
            env: ask.env,
        });
    };
    let Before { driver, detail, .. } = before;
    let same = ask.harness.as_deref().is_none_or(|h| h == driver.name());
    // Another harness can use the endpoint of the source's only as it is.
    let same_endpoint = same || ask.model_url.is_none();
    let api = if detail.openai { "openai" } else { "anthropic" };
    let mut env = detail.env.clone();
    env.extend(ask.env);
    Ok(StartSession {
        tty: ask.tty.or(detail.tty.filter(|_| ask.harness.is_none())),
        args: match ask.harness {
            Some(_) => ask.args,
            None => before.start.args.clone(),
        },
        harness: ask.harness.unwrap_or_else(|| driver.name().to_owned()),
        cwd: Some(detail.cwd.clone()),
        model_url: None,
        model_key: None,
        model_api: ask
            .model_api
            .or_else(|| same_endpoint.then(|| api.to_owned())),
        model: ask
            .model
            .or_else(|| detail.model.clone().filter(|_| same_endpoint)),
        env,
    })
}

/// Refuses arguments that name a prompt or an old session: both would be dropped without a word.
fn refuse_old(opening: &Opening, given: &[String]) -> Result<(), ApiError> {
    let start = opening.start(&session::fresh_id()?);
    let afresh = opening.driver.afresh(&start, "note");
    let kept = &afresh[..afresh.len().saturating_sub(2)];
    if kept == given {
        return Ok(());
    }
    let name = opening.driver.name();
    let message = format!(
        "`{name} {}` names a prompt or an old session, and a fresh one begins with the note alone",
        given.join(" ")
    );
    Err(ApiError::new(ErrorCode::Invalid, message)
        .hint(format!("give options only: `{name} {}`", kept.join(" "))))
}

/// What the new session must not find, wherever a session of the sandbox kept its conversations.
fn old_conversations(opening: &Opening, sessions: &[Before]) -> Result<Vec<String>, ApiError> {
    let start = opening.start(&session::fresh_id()?);
    let mut old = opening.driver.conversations(&start);
    for session in sessions {
        for pattern in session.driver.conversations(&session.start) {
            if !old.contains(&pattern) {
                old.push(pattern);
            }
        }
    }
    Ok(old)
}
