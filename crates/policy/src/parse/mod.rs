//! From the text of a policy to its rules. Whatever is not understood is an error with its line; a value never stands in one,
//! since somebody may have written a secret where a reference belongs.

mod fields;
mod inject;
mod preset;
mod rule;
mod secret;
mod units;

use std::fmt;

use toml::de::DeTable;

use self::fields::Fields;
use crate::presets;
use crate::rule::Rule;
use crate::secret::SecretRef;

/// The longest policy that is read, in bytes. Roots included, no list that a person keeps is longer.
pub const MAX_TEXT: usize = 256 << 10;
/// How many doors a policy may ask for, beside those that every sandbox has: each is a socket that is kept open.
const MAX_PORTS: usize = 64;

/// Why a text is no policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyError {
    /// In which line, from 1.
    pub line: usize,
    /// At which key, with what leads there: `rule.my-repo.ports`. Empty where it is no key's fault.
    pub key: String,
    /// What is wrong.
    pub wrong: String,
    /// What is allowed there; empty where that says itself.
    pub allowed: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if !self.key.is_empty() {
            write!(f, "`{}`: ", self.key)?;
        }
        f.write_str(&self.wrong)?;
        match self.allowed.as_str() {
            "" => Ok(()),
            allowed => write!(f, " (allowed: {allowed})"),
        }
    }
}

impl std::error::Error for PolicyError {}

/// What a file says.
pub(crate) struct File {
    pub(crate) rules: Vec<Rule>,
    pub(crate) secrets: Vec<SecretRef>,
}

/// Reads a file and the presets that it names.
pub(crate) fn file(text: &str) -> Result<File, PolicyError> {
    if text.len() > MAX_TEXT {
        let wrong = format!("the policy is longer than {MAX_TEXT} bytes");
        return Err(fields::error(text, 0, "", wrong, ""));
    }
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        fields::error(
            text,
            at,
            "",
            format!("this is no TOML: {}", error.message()),
            "",
        )
    })?;
    let top = Fields::top(text, document.get_ref(), &["presets", "rule", "secret"])?;
    let mut secrets: Vec<SecretRef> = Vec::new();
    for item in top.tables("secret")? {
        let secret = secret::read(&item)?;
        if secrets.iter().any(|other| other.name == secret.name) {
            return Err(item.error(format!("there are two secrets `{}`", secret.name), ""));
        }
        secrets.push(secret);
    }
    let mut rules: Vec<Rule> = Vec::new();
    let mut with_roots = Vec::new();
    for item in top.tables("rule")? {
        let rule = rule::read(&item, &secrets)?;
        if rules.iter().any(|other| other.name == rule.name) {
            return Err(item.error(format!("there are two rules `{}`", rule.name), ""));
        }
        if let Some(above) = rules
            .iter()
            .find(|above| !rule.denies() && above.shadows(&rule))
        {
            let wrong = format!(
                "rule `{}` can never match: rule `{}` above it allows all of it; put it first",
                rule.name, above.name
            );
            return Err(item.error(wrong, ""));
        }
        if rule.roots.is_some() {
            with_roots.push((item.clone(), rule.name.clone()));
        }
        rules.push(rule);
        let ports = rules
            .iter()
            .filter_map(|rule| rule.ports.as_ref())
            .flatten();
        if ports.collect::<std::collections::BTreeSet<_>>().len() > MAX_PORTS {
            return Err(item.error(format!("the rules name more than {MAX_PORTS} ports"), ""));
        }
    }
    if let Some(item) = top.get("presets") {
        let mut seen = Vec::new();
        for item in item.items()? {
            let preset = preset::read(&item)?;
            let name = preset.name;
            let known = presets::presets().find(|preset| preset.name == name);
            let names = || {
                presets::presets()
                    .map(|preset| preset.name)
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let known = known.ok_or_else(|| item.error("there is no such preset", &names()))?;
            if seen.contains(&name) {
                return Err(item.error("this preset is named twice", ""));
            }
            seen.push(name);
            rules.extend(
                preset_rules(known.name, known.text())
                    .into_iter()
                    .map(|rule| Rule {
                        addresses: preset.addresses.clone(),
                        roots: preset.roots.clone().filter(|_| rule.needs_look()),
                        ..rule
                    }),
            );
        }
    }
    for (item, name) in with_roots {
        let rule = rules.iter().find(|rule| rule.name == name);
        if rule.is_some_and(|rule| !rules.iter().any(|other| other.looks_into(rule))) {
            return Err(item.error(
                "the connections of this rule are passed on as they are, and programs inside verify them by themselves: roots do nothing",
                "`roots` where a rule for the host looks inside: with methods, paths, query, git, inject, limits",
            ));
        }
    }
    // A rule for everybody is what is left when no other one is for a host, presets included.
    rules.sort_by_key(Rule::is_open);
    Ok(File { rules, secrets })
}

/// Returns where the first `[[table]]` of a policy begins.
pub(crate) fn first_table(text: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let tables = ["rule", "secret"]
        .into_iter()
        .filter_map(|key| document.get_ref().get(key));
    let starts = tables
        .filter_map(|tables| tables.get_ref().as_array()?.first())
        .map(|one| one.span().start);
    let at = starts.min()?;
    text[..at].rfind('\n').map_or(Some(0), |end| Some(end + 1))
}

/// Reads a preset of ours, whose rules carry its name before their own.
fn preset_rules(preset: &str, text: &str) -> Vec<Rule> {
    let File { mut rules, .. } = file(text).expect("a test reads every preset");
    for rule in &mut rules {
        rule.name = format!("{preset}/{}", rule.name);
    }
    rules
}
