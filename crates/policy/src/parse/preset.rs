//! An entry of `presets`: a name, or a name with where its hosts are on this network.

use super::PolicyError;
use super::fields::Item;
use super::rule::{addresses, roots};
use crate::net::Net;

/// What a file says of a preset.
pub(super) struct Named<'a> {
    pub(super) name: &'a str,
    pub(super) addresses: Vec<Net>,
    pub(super) roots: Option<String>,
}

pub(super) fn read<'a>(item: &Item<'a>) -> Result<Named<'a>, PolicyError> {
    if item.is_string() {
        return Ok(Named {
            name: item.string()?,
            addresses: Vec::new(),
            roots: None,
        });
    }
    let fields = item.table(&["addresses", "name", "roots"])?;
    Ok(Named {
        name: fields.need("name", "a name of a preset")?.string()?,
        addresses: addresses(&fields)?,
        roots: fields.get("roots").map(|item| roots(&item)).transpose()?,
    })
}
