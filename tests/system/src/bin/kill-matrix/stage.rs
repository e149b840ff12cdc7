//! The world that one worker runs its cells in: used again from run to run, looked through when it is given up.

use std::path::PathBuf;

use system_tests::{Res, World, harnesses};

use crate::far::Far;
use crate::program::Blob;
use crate::report::{Fault, Verdict};

/// A worker's world.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) blob: Blob,
    /// What is at the far end of the way out, once somebody sends there.
    far: Option<Far>,
    linked: Vec<&'static str>,
    runs: u32,
}

impl Stage {
    pub(crate) fn new(worker: usize) -> Res<Self> {
        let world = World::new(&format!("matrix{worker}"))?
            .with_points()?
            .with_env("MATRIX_KEY", crate::agent::KEY);
        let blob = Blob::new(world.effects())?;
        Ok(Self {
            world,
            blob,
            far: None,
            linked: Vec::new(),
            runs: 0,
        })
    }

    /// Returns a name for the next sandbox.
    pub(crate) fn next(&mut self) -> String {
        self.runs += 1;
        self.world.effects().clear();
        format!("s{}", self.runs)
    }

    /// Returns what is at the far end of the way out, with its policy in a file.
    pub(crate) fn far(&mut self) -> Res<(&World, &Far, PathBuf)> {
        let policy = self.world.root().join("policy.toml");
        let far = match &mut self.far {
            Some(far) => far,
            none => {
                let far = Far::new(&self.world.root().join("git"))?;
                std::fs::write(&policy, far.policy())?;
                none.insert(far)
            }
        };
        Ok((&self.world, far, policy))
    }

    /// Makes a real harness available in its sandboxes.
    pub(crate) fn link(&mut self, harness: &'static str) -> Res<()> {
        if !self.linked.contains(&harness) {
            harnesses::link(harness, &self.world.data().join("harness"))?;
            self.linked.push(harness);
        }
        Ok(())
    }

    /// How many runs it has seen.
    pub(crate) fn runs(&self) -> u32 {
        self.runs
    }

    /// Ends the world and adds what is left of it to the verdict of the last run.
    pub(crate) fn end(self, verdict: &mut Verdict) {
        match self.world.end() {
            Err(trouble) => verdict.find(Fault::Broken, format!("at the end: {trouble}")),
            Ok(litter) => {
                for (pid, command) in litter.processes {
                    verdict.find(Fault::Process, format!("left: process {pid} ({command})"));
                }
                for mount in litter.mounts {
                    verdict.find(Fault::Mount, format!("left: {mount}"));
                }
                for group in litter.cgroups {
                    verdict.find(Fault::Cgroup, format!("left: {}", group.display()));
                }
            }
        }
    }
}
