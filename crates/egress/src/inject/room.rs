//! Room for secrets: what stands in their places is taken away, placeholders are remembered, and those that stand anywhere
//! else are found.

use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use policy::{How, Injection, Place};
use protocol::DenyReason;

use super::query::Encoded;
use super::{Given, Giving, Work, header_name};
use crate::deny::Denial;
use crate::placeholder::{basic, in_header, in_text, misplaced, percent_decode, replace};
use crate::seam::Placeholder;

impl Work {
    /// Takes out of the request what stands in the place of a secret.
    pub(super) fn make_room(
        &mut self,
        giving: &Giving<'_>,
        injection: &Injection,
    ) -> Result<(), Denial> {
        let secret = &injection.secret;
        let declared = giving.policy.secret(secret);
        let require = declared.is_some_and(|declared| declared.require);
        let own = giving.placeholders.iter().find(|one| one.secret == *secret);
        match &injection.how {
            How::Bearer | How::Basic { .. } | How::GitHubApp { .. } => {
                self.clear_header(giving, AUTHORIZATION, own, require, secret)
            }
            How::Header { name, .. } => {
                self.clear_header(giving, header_name(name)?, own, require, secret)
            }
            // Its signature says nothing but which placeholder was used.
            How::SigV4 { .. } => Ok(()),
            How::Query { key } => {
                let found = self.take_query(key);
                let foreign = found.iter().any(|value| {
                    own.is_none_or(|own| percent_decode(value.as_bytes()) != own.text.as_bytes())
                });
                refuse_foreign(
                    require && foreign,
                    secret,
                    &format!("query parameter `{key}`"),
                )
            }
            How::Placeholder { places } => {
                for place in places {
                    self.take_placeholder(place, own, require, secret)?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn clear_header(
        &mut self,
        giving: &Giving<'_>,
        name: HeaderName,
        own: Option<&Placeholder>,
        require: bool,
        secret: &str,
    ) -> Result<(), Denial> {
        let own = own.map(std::slice::from_ref).unwrap_or_default();
        let values: Vec<_> = self.headers.get_all(&name).iter().cloned().collect();
        self.headers.remove(&name);
        for value in &values {
            let is_own = in_header(own, value).is_some();
            refuse_foreign(require && !is_own, secret, &format!("header `{name}`"))?;
            // Another secret's placeholder is not made right by being overwritten: the program mixed something up.
            if let Some(other) =
                in_header(giving.placeholders, value).filter(|one| one.secret != secret)
            {
                return Err(misplaced(&other.secret, &format!("header `{name}`")));
            }
        }
        Ok(())
    }

    /// Takes a placeholder out of its place, to be replaced there.
    pub(super) fn take_placeholder(
        &mut self,
        place: &Place,
        own: Option<&Placeholder>,
        require: bool,
        secret: &str,
    ) -> Result<(), Denial> {
        let Some(own) = own else {
            return match place {
                Place::Header(name) if require => {
                    let there = self.headers.contains_key(header_name(name)?);
                    refuse_foreign(there, secret, &format!("header `{name}`"))
                }
                _ => Ok(()),
            };
        };
        match place {
            Place::Header(name) => {
                let name = header_name(name)?;
                let mut values = self.headers.get_all(&name).iter();
                let (Some(value), second) = (values.next().cloned(), values.next()) else {
                    return Ok(());
                };
                let holds = in_header(std::slice::from_ref(own), &value).is_some();
                if second.is_some() || !holds {
                    return refuse_foreign(require, secret, &format!("header `{name}`"));
                }
                let user =
                    basic(&value).filter(|_| replace(value.as_bytes(), &own.text, b"").is_none());
                self.headers.remove(&name);
                self.given.push(Given {
                    secret: secret.to_owned(),
                    place: place.clone(),
                    text: own.text.clone(),
                    is_basic: user.is_some(),
                    original: user.unwrap_or_else(|| value.as_bytes().to_vec()),
                });
            }
            Place::Query(key) => {
                for value in self.take_query(key) {
                    let decoded = percent_decode(value.as_bytes());
                    if replace(&decoded, &own.text, b"").is_some() {
                        self.given.push(Given {
                            secret: secret.to_owned(),
                            place: place.clone(),
                            text: own.text.clone(),
                            is_basic: false,
                            original: decoded,
                        });
                    } else {
                        refuse_foreign(require, secret, &format!("query parameter `{key}`"))?;
                        self.add_query(key, value.as_bytes(), Encoded::Already);
                    }
                }
            }
        }
        Ok(())
    }

    /// Refuses placeholders in all that is left.
    pub(super) fn look_for_others(&self, placeholders: &[Placeholder]) -> Result<(), Denial> {
        if let Some(one) = in_text(placeholders, self.path.as_bytes()) {
            return Err(misplaced(&one.secret, "the path"));
        }
        let query = self.query.as_deref().unwrap_or_default();
        if let Some(one) = in_text(placeholders, query.as_bytes()) {
            return Err(misplaced(&one.secret, "the query"));
        }
        for (name, value) in &self.headers {
            // What AWS's clients sign with shows up in their signature.
            if let Some(one) = in_header(placeholders, value).filter(|_| !is_signature(name, value))
            {
                return Err(misplaced(&one.secret, &format!("header `{name}`")));
            }
        }
        // Around a placeholder another one may stand.
        for given in &self.given {
            let rest = replace(&given.original, &given.text, b"").unwrap_or_default();
            if let Some(one) = in_text(placeholders, &rest) {
                return Err(misplaced(&one.secret, "the place of another"));
            }
        }
        Ok(())
    }
}

fn is_signature(name: &HeaderName, value: &HeaderValue) -> bool {
    *name == AUTHORIZATION && value.as_bytes().starts_with(b"AWS4-HMAC-SHA256 ")
}

fn refuse_foreign(refused: bool, secret: &str, place: &str) -> Result<(), Denial> {
    if !refused {
        return Ok(());
    }
    Err(Denial::forbidden(
        DenyReason::Secret,
        format!(
            "{place} holds a credential that is not secret `{secret}`, which the policy requires there; leave it out, or use \
             the placeholder"
        ),
    ))
}
