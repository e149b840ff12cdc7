//! TOML, value by value, with the place of each.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::PolicyError;

/// Makes an error at a byte of a text.
pub(super) fn error(
    text: &str,
    at: usize,
    key: &str,
    wrong: impl Into<String>,
    allowed: &str,
) -> PolicyError {
    let before = &text.as_bytes()[..at.min(text.len())];
    PolicyError {
        line: before.iter().filter(|&&byte| byte == b'\n').count() + 1,
        key: key.to_owned(),
        wrong: wrong.into(),
        allowed: allowed.to_owned(),
    }
}

/// A table, all of whose keys are known ones.
pub(super) struct Fields<'a> {
    text: &'a str,
    at: usize,
    path: String,
    entries: BTreeMap<&'a str, (usize, &'a Spanned<DeValue<'a>>)>,
}

/// A value and where it stands.
#[derive(Clone)]
pub(super) struct Item<'a> {
    text: &'a str,
    at: usize,
    path: String,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Fields<'a> {
    pub(super) fn top(
        text: &'a str,
        table: &'a DeTable<'a>,
        known: &[&str],
    ) -> Result<Self, PolicyError> {
        Self::new(text, 0, String::new(), table, known)
    }

    fn new(
        text: &'a str,
        at: usize,
        path: String,
        table: &'a DeTable<'a>,
        known: &[&str],
    ) -> Result<Self, PolicyError> {
        let mut entries = BTreeMap::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            if !known.is_empty() && !known.contains(&name) {
                let wrong = format!("there is no key `{}`", crate::shown::cut(name));
                return Err(error(
                    text,
                    key.span().start,
                    &path,
                    wrong,
                    &known.join(", "),
                ));
            }
            entries.insert(name, (key.span().start, value));
        }
        Ok(Self {
            text,
            at,
            path,
            entries,
        })
    }

    pub(super) fn get(&self, key: &str) -> Option<Item<'a>> {
        let (at, value) = *self.entries.get(key)?;
        Some(Item {
            text: self.text,
            at,
            path: self.below(key),
            value,
        })
    }

    pub(super) fn need(&self, key: &str, allowed: &str) -> Result<Item<'a>, PolicyError> {
        let missing = || {
            error(
                self.text,
                self.at,
                &self.below(key),
                "this is missing",
                allowed,
            )
        };
        self.get(key).ok_or_else(missing)
    }

    /// Returns all of it, by key.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'a str, Item<'a>)> {
        self.entries
            .keys()
            .filter_map(move |key| Some((*key, self.get(key)?)))
    }

    /// Returns the tables `[[key]]`.
    pub(super) fn tables(&self, key: &str) -> Result<Vec<Item<'a>>, PolicyError> {
        let Some(item) = self.get(key) else {
            return Ok(Vec::new());
        };
        match item.value.get_ref() {
            DeValue::Array(_) => item.items(),
            _ => Err(item.error(format!("write `[[{key}]]`, with two brackets"), "")),
        }
    }

    /// Calls what follows this table by another path from here on.
    pub(super) fn call(&mut self, path: String) {
        self.path = path;
    }

    fn below(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }
}

impl<'a> Item<'a> {
    pub(super) fn error(&self, wrong: impl Into<String>, allowed: &str) -> PolicyError {
        error(self.text, self.at, &self.path, wrong, allowed)
    }

    /// Returns the value as it was written.
    pub(super) fn source(&self) -> &'a str {
        self.text.get(self.value.span()).unwrap_or_default()
    }

    pub(super) fn is_string(&self) -> bool {
        matches!(self.value.get_ref(), DeValue::String(_))
    }

    pub(super) fn string(&self) -> Result<&'a str, PolicyError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            other => Err(self.error(format!("this is {}", a(other)), "a string")),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool, PolicyError> {
        match self.value.get_ref() {
            DeValue::Boolean(value) => Ok(*value),
            other => Err(self.error(format!("this is {}", a(other)), "true, false")),
        }
    }

    /// Returns a number of a range, written in decimal.
    pub(super) fn number(&self, least: u64, most: u64) -> Result<u64, PolicyError> {
        let allowed = format!("a number from {least} to {most}");
        let DeValue::Integer(number) = self.value.get_ref() else {
            return Err(self.error(format!("this is {}", a(self.value.get_ref())), &allowed));
        };
        let number = number.to_string().parse::<u64>().ok();
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.error("this number does not fit here", &allowed))
    }

    /// Returns the items of a list that is not empty: an empty one reads like `all` to one person and like `none` to the next.
    pub(super) fn items(&self) -> Result<Vec<Self>, PolicyError> {
        let DeValue::Array(array) = self.value.get_ref() else {
            return Err(self.error(
                format!("this is {}", a(self.value.get_ref())),
                "a list, in brackets",
            ));
        };
        let items: Vec<_> = array.iter().map(|value| self.inner(value)).collect();
        match items.is_empty() {
            true => Err(self.error(
                "the list is empty, which allows nothing: leave the key or the rule out",
                "",
            )),
            false => Ok(items),
        }
    }

    pub(super) fn table(&self, known: &[&str]) -> Result<Fields<'a>, PolicyError> {
        match self.value.get_ref() {
            DeValue::Table(table) => {
                Fields::new(self.text, self.at, self.path.clone(), table, known)
            }
            other => Err(self.error(format!("this is {}", a(other)), "a table, in braces")),
        }
    }

    fn inner(&self, value: &'a Spanned<DeValue<'a>>) -> Self {
        Self {
            at: value.span().start,
            value,
            ..self.clone()
        }
    }
}

fn a(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
