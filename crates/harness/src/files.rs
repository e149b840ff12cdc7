//! The files of a plan: how ours is laid over one that is there already.

use serde_json::Value;

use crate::{Error, PlanFile, Write};

/// The directory of ours in a home directory.
pub(crate) const OURS: &str = ".durable";

impl PlanFile {
    /// Returns what the file is to hold, given what it holds now; none where it is to be left alone.
    ///
    /// # Errors
    /// The file is to be merged and is not a JSON object.
    pub fn content(&self, existing: Option<&[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let Some(existing) = existing else {
            return Ok(Some(self.bytes.clone()));
        };
        match self.write {
            Write::Keep => Ok(None),
            Write::Replace => Ok((existing != self.bytes).then(|| self.bytes.clone())),
            Write::Merge if existing.trim_ascii().is_empty() => Ok(Some(self.bytes.clone())),
            Write::Merge => {
                let refuse = || Error::NotMergeable {
                    path: self.path.clone(),
                };
                let theirs: Value = serde_json::from_slice(existing).map_err(|_| refuse())?;
                let ours: Value = serde_json::from_slice(&self.bytes).map_err(|_| refuse())?;
                if !theirs.is_object() || !ours.is_object() {
                    return Err(refuse());
                }
                let mut merged = theirs.clone();
                lay_over(&mut merged, ours);
                Ok((merged != theirs).then(|| format!("{merged:#}\n").into_bytes()))
            }
        }
    }

    pub(crate) fn json(path: String, write: Write, value: &Value) -> Self {
        Self {
            path,
            mode: 0o600,
            bytes: format!("{value:#}\n").into_bytes(),
            write,
        }
    }

    pub(crate) fn text(path: String, text: &str) -> Self {
        Self {
            path,
            mode: 0o644,
            bytes: text.as_bytes().to_vec(),
            write: Write::Replace,
        }
    }
}

/// Lays `over` over `under`: objects key by key, lists united, anything else replaced.
pub(crate) fn lay_over(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                match under.get_mut(&key) {
                    Some(there) => lay_over(there, value),
                    None => {
                        under.insert(key, value);
                    }
                }
            }
        }
        (Value::Array(under), Value::Array(over)) => {
            for value in over {
                if !under.contains(&value) {
                    under.push(value);
                }
            }
        }
        (under, over) => *under = over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merging_keeps_what_is_not_ours_and_is_done_once() {
        let ours = json!({"a": {"b": [1]}, "c": 2});
        let file = PlanFile::json("/f".to_owned(), Write::Merge, &ours);
        let theirs = json!({"z": 1, "a": {"b": [3], "d": true}, "c": 0});
        let merged = file.content(Some(theirs.to_string().as_bytes())).unwrap();
        let merged = merged.unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&merged).unwrap(),
            json!({"z": 1, "a": {"b": [3, 1], "d": true}, "c": 2})
        );
        assert_eq!(file.content(Some(&merged)).unwrap(), None);
        assert_eq!(file.content(None).unwrap(), Some(file.bytes.clone()));
        assert!(file.content(Some(b"[]")).is_err());
        assert!(file.content(Some(b"{ // no")).is_err());
    }
}
