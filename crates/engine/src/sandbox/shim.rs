//! Requests of the shim: a harness's tool call that wants to be an operation.

use protocol::control::ToSupervisor;
use protocol::{Event, OpSpec, Origin, Replay, Role};

use super::actor::{Phase, Sandbox, Turn};
use crate::error;
use crate::state::{OpState, fingerprint};

/// The operation that a process inside belongs to; the supervisor puts it into every environment.
const OP_VARIABLE: &str = "DURABLE_OP";

impl Sandbox {
    /// Whether the shim belongs to a harness that has settled. Its successor was told that this call was not started, or
    /// will be: to start it now would make that a lie.
    fn orphaned(&self, spec: &OpSpec) -> bool {
        let asker = spec.env.get(OP_VARIABLE).and_then(|id| id.parse().ok());
        asker
            .and_then(|id: protocol::OpId| self.state.ops.get(&id))
            .is_some_and(|asker| asker.role == Role::Harness && asker.settlement().is_some())
    }

    /// Journals a tool call's operation, or attaches to the one that has its id: a resumed harness asks again.
    pub(super) fn shim(&mut self, shim: u64, request: protocol::shim::Exec, turn: &mut Turn) {
        let protocol::shim::Exec { op, argv, cwd, env } = request;
        let spec = OpSpec {
            argv,
            cwd: Some(cwd),
            env,
            user: None,
            timeout_ms: None,
            tty: None,
            stdin: false,
            replay: Replay::Never,
            role: Role::Command,
        };
        let answer = match self.state.ops.get(&op) {
            Some(known) if known.fingerprint != fingerprint(&spec, Origin::Shim) => {
                Err(error::other_command(&self.name, &op).message)
            }
            Some(_) => Ok(op.clone()),
            None if self.orphaned(&spec) => Err(format!(
                "operation `{op}` was not started: the harness that asked for it was lost before"
            )),
            None => {
                let cut_before = self.state.last_cut().cloned();
                let intent = Event::OpIntent {
                    op: op.clone(),
                    spec,
                    origin: Origin::Shim,
                    cut_before,
                };
                self.push(turn, intent);
                self.enliven(&op);
                Ok(op.clone())
            }
        };
        turn.after.push(Box::new(move |sandbox| {
            let Phase::Up { link, .. } = &sandbox.phase else {
                return;
            };
            let link = link.clone();
            let refused = answer.is_err();
            link.send(ToSupervisor::ShimAnswer { shim, answer });
            if refused {
                return;
            }
            let Some(entry) = sandbox.state.ops.get(&op) else {
                return;
            };
            match &entry.state {
                OpState::Intended { .. } => sandbox.dispatch(&op, 1),
                OpState::Running { .. } => {}
                OpState::Settled {
                    settlement,
                    attempt,
                    ..
                } => {
                    let (settlement, attempt) = (settlement.clone(), *attempt);
                    link.send(ToSupervisor::ShimSettled {
                        shim,
                        op,
                        attempt,
                        settlement,
                    });
                }
            }
        }));
    }
}
