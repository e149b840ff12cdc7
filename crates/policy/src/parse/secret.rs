//! `[[secret]]`.

use super::PolicyError;
use super::fields::Item;
use super::rule::name;
use crate::secret::{SCHEMES, SecretRef, Shown};

pub(super) fn read(item: &Item<'_>) -> Result<SecretRef, PolicyError> {
    let mut fields = item.table(&["name", "from", "placeholder", "require"])?;
    let name = name(&fields.need("name", "a name for the secret")?)?;
    fields.call(format!("secret.{name}"));
    let schemes = || SCHEMES.map(|scheme| format!("{scheme}:…")).join(", ");
    let from = fields.need("from", &schemes())?;
    let placeholder = match fields.get("placeholder") {
        Some(item) => Some(shown(&item)?),
        None => None,
    };
    let require = fields
        .get("require")
        .map(|item| item.boolean())
        .transpose()?;
    Ok(SecretRef {
        from: reference(&from, &name, &schemes())?,
        name,
        placeholder,
        require: require.unwrap_or(false),
    })
}

/// Reads a reference. What is none may be the secret itself: it is not repeated.
fn reference(item: &Item<'_>, name: &str, schemes: &str) -> Result<String, PolicyError> {
    let text = item.string()?;
    let rest = text
        .split_once(':')
        .filter(|(scheme, _)| SCHEMES.contains(scheme))
        .map(|(_, rest)| rest);
    match rest {
        Some(rest) if !rest.is_empty() && !text.contains(|c: char| c.is_control()) => {
            Ok(text.to_owned())
        }
        Some(_) => Err(item.error("this reference names nothing", schemes)),
        None => {
            let wrong = format!(
                "this is no reference; if it is the value itself, take it out of here, store it with `durable secret set {name}`, and write `age:{name}`"
            );
            Err(item.error(wrong, schemes))
        }
    }
}

fn shown(item: &Item<'_>) -> Result<Shown, PolicyError> {
    const ALLOWED: &str = "{ env = \"NAME\" }, { file = \"/path\" }";
    let fields = item.table(&["env", "file"])?;
    match (fields.get("env"), fields.get("file")) {
        (Some(env), None) => {
            let name = env.string()?;
            let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            match first && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                true => Ok(Shown::Env(name.to_owned())),
                false => Err(env.error("this is no name of a variable", "letters, digits, `_`")),
            }
        }
        (None, Some(file)) => {
            let path = file.string()?;
            let odd = |part: &str| matches!(part, "" | "." | "..");
            let plain = path
                .strip_prefix('/')
                .is_some_and(|rest| !rest.split('/').any(odd));
            match plain && !path.contains(|c: char| c.is_control()) {
                true => Ok(Shown::File(path.to_owned())),
                false => Err(file.error(
                    "this is no path of a file",
                    "an absolute one, without `.` and `..`",
                )),
            }
        }
        _ => Err(item.error("a placeholder is shown in one place", ALLOWED)),
    }
}
