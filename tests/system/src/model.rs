//! The scripted model server, as a process of its own: what it was asked is an effect outside the system under test.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;

use crate::api::Api;
use crate::{Client, Res, trouble, world};

/// A running model server. Dropped, it is killed.
pub struct Model {
    child: Child,
    address: String,
    script: PathBuf,
}

impl Model {
    /// Starts it with a script.
    ///
    /// # Errors
    /// The program is not there (`cargo build --release -p model-server`), or refuses the script.
    pub fn start(script: &Value) -> Res<Self> {
        let program = world::beside_binary("model-server")?;
        let path = world::fresh_path("script");
        std::fs::write(&path, serde_json::to_vec(script)?)?;
        let mut child = Command::new(&program)
            .arg("--script")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| trouble(format!("cannot start {}: {e}", program.display())))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let told: Value = serde_json::from_str(&line).unwrap_or_default();
        let model = Self {
            child,
            address: told["address"].as_str().unwrap_or_default().to_owned(),
            script: path,
        };
        if model.address.is_empty() {
            return Err(trouble("the model server did not start"));
        }
        Ok(model)
    }

    /// Its base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn entries(value: &Value) -> Vec<Value> {
        value.as_array().cloned().unwrap_or_default()
    }

    /// What it was asked.
    ///
    /// # Errors
    /// It does not answer.
    pub fn log(&self) -> Res<Vec<Value>> {
        let log = Api::tcp(&self.address, None)?.get("/__control/log")?;
        Ok(Self::entries(&log))
    }

    /// Waits until so many requests came, were held, were answered to their end; gives up where `client` ends before.
    ///
    /// # Errors
    /// The client ended, or two minutes went by.
    pub fn wait(
        &self,
        client: &mut Client,
        requests: usize,
        held: usize,
        finished: usize,
    ) -> Res<()> {
        let path = format!("/__control/wait?requests={requests}&held={held}&finished={finished}");
        let address = self.address.clone();
        let (tell, reached) = channel();
        std::thread::spawn(move || {
            let answer = Api::tcp(&address, None).and_then(|mut api| api.get(&path));
            // Who waited may have given up.
            let _told = tell.send(answer.map(drop));
        });
        loop {
            match reached.recv_timeout(Duration::from_millis(50)) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) if client.has_ended() => {
                    return Err(trouble(format!(
                        "the client ended before the model was asked: {}",
                        client.words()
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(trouble("the model is gone")),
            }
        }
    }

    /// Lets held streams go on.
    ///
    /// # Errors
    /// It does not answer.
    pub fn release(&self) -> Res<()> {
        let mut api = Api::tcp(&self.address, None)?;
        api.call("POST", "/__control/release", &Value::Null)?;
        Ok(())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _status = self.child.wait();
        let _removed = std::fs::remove_file(&self.script);
    }
}
