//! A seeded command: a script for the shell in the sandbox, and what is to be seen of it outside.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use system_tests::{Effects, Gate, Res, Rng};

/// Bytes that commands write and print from; the same in every sandbox and here.
pub(crate) struct Blob {
    bytes: Vec<u8>,
    inside: String,
}

/// Large enough for an output that many pipe buffers do not hold.
const BLOB: usize = 4 << 20;

impl Blob {
    pub(crate) fn new(effects: &Effects) -> Res<Self> {
        let bytes = Rng::new(42).bytes(BLOB);
        std::fs::write(effects.dir().join("blob"), &bytes)?;
        Ok(Self {
            bytes,
            inside: effects.inside_file("blob"),
        })
    }

    /// Returns a part of at most `most` bytes.
    fn part(&self, rng: &mut Rng, most: usize) -> (usize, usize) {
        let length = rng.index(most.min(self.bytes.len())) + 1;
        (rng.index(self.bytes.len() - length + 1), length)
    }

    fn dd(&self, (from, length): (usize, usize)) -> String {
        format!(
            "dd if={} bs=64K iflag=skip_bytes,count_bytes skip={from} count={length} status=none",
            self.inside
        )
    }

    fn slice(&self, (from, length): (usize, usize)) -> &[u8] {
        &self.bytes[from..from + length]
    }
}

/// What a command has to do for a cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    /// Its output must be watched on its way.
    pub(crate) output: bool,
    /// It must change files.
    pub(crate) changes: bool,
}

/// One command.
pub(crate) struct Program {
    pub(crate) op: String,
    pub(crate) script: String,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) code: u8,
    /// Its files below its own directory in the workspace.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// Stops it in the middle, after [`Self::watch`] bytes of stdout.
    pub(crate) gate: Option<Gate>,
    /// How much of stdout is to be seen before the kill.
    pub(crate) watch: usize,
}

impl Program {
    pub(crate) fn new(
        rng: &mut Rng,
        op: String,
        needs: Needs,
        blob: &Blob,
        effects: &Effects,
    ) -> Res<Self> {
        let code = *rng.pick(&[0, 0, 0, 1, 7, 42, 99, 200, 255]);
        let mut program = Self {
            script: String::new(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            code,
            files: BTreeMap::new(),
            gate: None,
            watch: 0,
            op,
        };
        program.effect(effects, "begin");
        let changes = needs.changes || rng.chance(50);
        if changes {
            program.line(&format!("mkdir -p /workspace/{}", program.op));
            program.edit(rng, blob);
        }
        let sizes = [100, 5_000, 200_000, BLOB];
        if needs.output || rng.chance(70) {
            let most = *rng.pick(&sizes);
            program.print(rng, blob, most);
        }
        if needs.output {
            if rng.chance(60) {
                let gate = effects.gate(&format!("gate-{}", program.op))?;
                // The end of the pipe's way to the client is awaited, so all of it is to be seen.
                program.watch = program.stdout.len();
                program.line(&format!("read -r go < {}", gate.inside()));
                program.gate = Some(gate);
                let most = *rng.pick(&sizes);
                program.print(rng, blob, most);
            } else {
                program.print(rng, blob, BLOB);
                program.watch = rng.index(program.stdout.len()) + 1;
            }
        }
        if rng.chance(40) {
            let most = *rng.pick(&sizes[..3]);
            let part = blob.part(rng, most);
            program.line(&format!("{} >&2", blob.dd(part)));
            program.stderr.extend_from_slice(blob.slice(part));
        }
        if changes {
            program.edit(rng, blob);
        }
        program.effect(effects, "end");
        program.line(&format!("exit {code}"));
        Ok(program)
    }

    fn line(&mut self, line: &str) {
        // A String takes everything.
        let _written = writeln!(self.script, "{line}");
    }

    fn effect(&mut self, effects: &Effects, label: &str) {
        let line = format!("echo '{} {label}' > {}", self.op, effects.inside());
        self.line(&line);
    }

    fn print(&mut self, rng: &mut Rng, blob: &Blob, most: usize) {
        let part = blob.part(rng, most);
        self.line(&blob.dd(part));
        self.stdout.extend_from_slice(blob.slice(part));
    }

    fn edit(&mut self, rng: &mut Rng, blob: &Blob) {
        let dir = format!("/workspace/{}", self.op);
        for _ in 0..=rng.index(3) {
            let name = format!("f{}", rng.index(4));
            if rng.chance(50) {
                let part = blob.part(rng, 100_000);
                self.line(&format!("{} of={dir}/{name}", blob.dd(part)));
                self.files.insert(name, blob.slice(part).to_vec());
            } else {
                let text = format!("{:016x}", rng.draw());
                self.line(&format!("echo {text} >> {dir}/{name}"));
                let file = self.files.entry(name).or_default();
                file.extend_from_slice(text.as_bytes());
                file.push(b'\n');
            }
        }
    }

    /// Whether it changes files.
    pub(crate) fn changes(&self) -> bool {
        !self.files.is_empty()
    }
}
