//! What a repair must know of the run whose transcript it is given.

use crate::args::Args;

/// The run, as far as its transcript is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn<'a> {
    /// Whether it answers one prompt and exits.
    pub(crate) headless: bool,
    /// The prompt it was started with, where the session has turns from before: unless the transcript holds it, the turn
    /// at its end is not of this run.
    pub(crate) prompt: Option<&'a str>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(headless: bool, args: &'a Args, has_past: bool) -> Self {
        // A slash command is recorded as what it stands for, so it cannot be looked for.
        let prompt = args.rest.iter().find(|w| !w.starts_with(['@', '/']));
        Self {
            headless,
            prompt: prompt.filter(|_| has_past).map(String::as_str),
        }
    }

    /// Returns whether the run's prompt is among those recorded, the newest first.
    pub(crate) fn has_begun<'t>(&self, mut prompts: impl Iterator<Item = &'t str>) -> bool {
        let Some(prompt) = self.prompt else {
            return true;
        };
        let same = |text: &str| text.trim_end().contains(prompt.trim_end());
        if self.headless {
            prompts.next().is_some_and(same)
        } else {
            prompts.any(same)
        }
    }
}
