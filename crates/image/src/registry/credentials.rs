//! The credentials that `docker login` has left on this machine: in its file, or with a helper program.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;

use super::error::RegistryError;
use crate::text::shown;

/// A helper may ask a key store that is slow; one that asks a person would wait for ever.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);
/// The key of Docker Hub, which is older than registries with names.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// What proves who asks. Never printed.
pub(super) enum Credentials {
    Password {
        user: String,
        password: String,
    },
    /// Is given to the token service for a token.
    IdentityToken(String),
    /// Is shown to the registry as it stands.
    RegistryToken(String),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    auths: HashMap<String, Entry>,
    cred_helpers: HashMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// Finds the credentials for a registry. `directory` is where `config.json` is, if not where docker has it.
pub(super) async fn find(
    registry: &str,
    directory: Option<&Path>,
) -> Result<Option<Credentials>, RegistryError> {
    let Some(directory) = directory.map(Path::to_path_buf).or_else(docker_config) else {
        return Ok(None);
    };
    let path = directory.join("config.json");
    let failed = |why: String| RegistryError::Credentials {
        from: path.display().to_string(),
        why,
    };
    let bytes = match tokio::fs::read(&path).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            let path = path.display().to_string();
            return Err(RegistryError::Config { path, source });
        }
    };
    // The parser's own words could quote a secret; where it stumbled is enough.
    let config: Config = serde_json::from_slice(&bytes).map_err(|e| {
        failed(format!(
            "it is malformed at line {}, column {}",
            e.line(),
            e.column()
        ))
    })?;
    if let Some(helper) = config
        .cred_helpers
        .iter()
        .find(|(key, _)| is_for(key, registry))
    {
        return ask(helper.1, key(registry)).await;
    }
    if let Some(store) = config
        .creds_store
        .as_deref()
        .filter(|store| !store.is_empty())
        && let Some(found) = ask(store, key(registry)).await?
    {
        return Ok(Some(found));
    }
    let mut entries: Vec<_> = config
        .auths
        .into_iter()
        .filter(|(key, _)| is_for(key, registry))
        .collect();
    // The exact name goes before one that means the same.
    entries.sort_by_key(|(name, _)| (name != key(registry), name.clone()));
    match entries.into_iter().next() {
        None => Ok(None),
        Some((_, entry)) => entry
            .credentials()
            .ok_or_else(|| failed("its entry is malformed".into())),
    }
}

impl Entry {
    /// Returns nothing if the entry cannot be understood; one that is empty says that a helper knows.
    fn credentials(self) -> Option<Option<Credentials>> {
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        if let Some(token) = filled(self.registrytoken) {
            return Some(Some(Credentials::RegistryToken(token)));
        }
        if let Some(token) = filled(self.identitytoken) {
            return Some(Some(Credentials::IdentityToken(token)));
        }
        if let Some(auth) = filled(self.auth) {
            let text = String::from_utf8(STANDARD.decode(auth.trim()).ok()?).ok()?;
            let (user, password) = text.split_once(':')?;
            let password = password.trim_end_matches('\0');
            return Some(Some(password_of(user, password)));
        }
        Some(match (self.username, self.password) {
            (Some(user), Some(password)) => Some(password_of(&user, &password)),
            _ => None,
        })
    }
}

fn password_of(user: &str, password: &str) -> Credentials {
    Credentials::Password {
        user: user.to_owned(),
        password: password.to_owned(),
    }
}

fn docker_config() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("DOCKER_CONFIG").or_else(|| Some(set("HOME")?.join(".docker")))
}

fn key(registry: &str) -> &str {
    if registry == "docker.io" {
        DOCKER_HUB
    } else {
        registry
    }
}

/// Keys are hosts, or old URLs with a scheme and a path.
fn is_for(key: &str, registry: &str) -> bool {
    let host = key.split_once("://").map_or(key, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    let host = match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    };
    host.eq_ignore_ascii_case(registry)
}

/// Asks `docker-credential-NAME get`.
async fn ask(name: &str, server: &str) -> Result<Option<Credentials>, RegistryError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        username: String,
        secret: String,
    }
    let program = format!("docker-credential-{name}");
    let failed = |why: String| RegistryError::Credentials {
        from: shown(program.as_bytes()),
        why,
    };
    if name.contains(['/', '\0']) {
        return Err(failed("that is no name of a helper".into()));
    }
    let run = async {
        let mut child = tokio::process::Command::new(&program)
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that ends without reading has its own reasons, and its status tells.
            drop(stdin.write_all(format!("{server}\n").as_bytes()).await);
        }
        child.wait_with_output().await
    };
    let output = match tokio::time::timeout(HELPER_TIMEOUT, run).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => {
            return Err(failed(format!(
                "it did not answer within {} seconds",
                HELPER_TIMEOUT.as_secs()
            )));
        }
    };
    if !output.status.success() {
        // The protocol's own words for "I know none".
        if String::from_utf8_lossy(&output.stdout).contains("credentials not found") {
            return Ok(None);
        }
        return Err(failed(format!("it failed ({})", output.status)));
    }
    let answer: Answer = serde_json::from_slice(&output.stdout)
        .map_err(|_| failed("its answer is malformed".into()))?;
    Ok(Some(if answer.username == "<token>" {
        Credentials::IdentityToken(answer.secret)
    } else {
        password_of(&answer.username, &answer.secret)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_old_and_new_form_mean_their_registry_and_no_other() {
        for key in [
            "localhost:5000",
            "http://localhost:5000",
            "https://localhost:5000/v2/",
        ] {
            assert!(is_for(key, "localhost:5000"), "{key}");
        }
        assert!(is_for(DOCKER_HUB, "docker.io"));
        assert!(!is_for("localhost:5001", "localhost:5000"));
        assert!(!is_for("evil.example/localhost:5000", "localhost:5000"));
    }
}
