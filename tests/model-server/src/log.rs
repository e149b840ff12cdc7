//! What was asked and what was sent.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

use crate::request::{Asked, Dialect, ToolResult};

/// One request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Entry {
    pub(crate) n: usize,
    pub(crate) dialect: Dialect,
    pub(crate) path: String,
    /// The key as it came, in whichever header.
    pub(crate) key: Option<String>,
    pub(crate) digest: String,
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// Whether it stood beside the conversation.
    pub(crate) side: bool,
    /// The step of the script that answered; none for a side request.
    pub(crate) step: Option<usize>,
    pub(crate) messages: usize,
    pub(crate) tool_results: Vec<ToolResult>,
    pub(crate) last_user_text: String,
    pub(crate) user_texts: Vec<String>,
    /// BLAKE3 of the body sent, when it was sent to its end. Only in `/__control/log`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<String>,
}

/// How many requests came, reached a hold and were answered to their end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: usize,
    pub(crate) held: usize,
    pub(crate) finished: usize,
}

/// The log, in memory and in a file.
pub(crate) struct Log {
    file: Option<Mutex<File>>,
    entries: Mutex<Vec<Entry>>,
    pub(crate) counts: watch::Sender<Counts>,
}

impl Log {
    pub(crate) fn open(path: Option<PathBuf>) -> Result<Self, String> {
        let file = match path {
            None => None,
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(&path);
                let file = file.map_err(|e| format!("cannot open {}: {e}", path.display()))?;
                Some(Mutex::new(file))
            }
        };
        Ok(Self {
            file,
            entries: Mutex::default(),
            counts: watch::Sender::default(),
        })
    }

    /// Adds a request; returns its number, from 1.
    pub(crate) fn add(
        &self,
        asked: &Asked,
        path: &str,
        key: Option<String>,
        step: Option<usize>,
    ) -> usize {
        let mut entries = lock(&self.entries);
        let entry = Entry {
            n: entries.len() + 1,
            dialect: asked.dialect,
            path: path.to_owned(),
            key,
            digest: asked.digest.clone(),
            model: asked.model.clone(),
            stream: asked.stream,
            side: asked.is_side(),
            step,
            messages: asked.messages,
            tool_results: asked.tool_results.clone(),
            last_user_text: asked.user_texts.last().cloned().unwrap_or_default(),
            user_texts: asked.user_texts.clone(),
            answer: None,
        };
        if let Some(file) = &self.file
            && let Ok(mut line) = serde_json::to_vec(&entry)
        {
            line.push(b'\n');
            // A full disk of the test's own: the test misses the line and fails.
            let _written = lock(file).write_all(&line);
        }
        let number = entry.n;
        entries.push(entry);
        self.counts.send_modify(|counts| counts.requests += 1);
        number
    }

    /// Says that an answer was produced to its end.
    pub(crate) fn finished(&self, number: usize, answer: String) {
        if let Some(entry) = lock(&self.entries).get_mut(number - 1) {
            entry.answer = Some(answer);
        }
        self.counts.send_modify(|counts| counts.finished += 1);
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string(&*lock(&self.entries)).unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
