//! How long does an operation of `true` take inside the supervisor, and how fast does output get to disk?
//!
//! Held against: a bare spawn and wait of the same program, two synced appends to a prepared file on the same disk, and the
//! same output piped into `cat > FILE` and `cat > /dev/null`. All interleaved in one run. `cargo run --release -p
//! durable-supervisor --example measure [DIR]`

#![expect(clippy::print_stdout, reason = "its answer")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use protocol::control::{FromSupervisor, ToSupervisor, decode, encode};
use protocol::table::RunSpec;
use protocol::{Epoch, Head, Outcome};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, verb, dir] = args.as_slice()
        && verb == "supervise"
    {
        std::process::exit(supervise(Path::new(dir))?);
    }
    let dir = args.get(1).map_or("/tmp", String::as_str);
    let dir = tempfile::Builder::new()
        .prefix("durable-supervisor-measure-")
        .tempdir_in(dir)?;
    let mut supervisor = Command::new(std::env::current_exe()?)
        .arg("supervise")
        .arg(dir.path())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut ready = supervisor.stdout.take().ok_or("no stdout")?;
    ready.read_exact(&mut [0])?;
    let measured = measure(dir.path(), supervisor.id());
    supervisor.kill()?;
    supervisor.wait()?;
    measured
}

fn supervise(dir: &Path) -> Result<i32> {
    let state = dir.join("state");
    std::fs::create_dir_all(&state)?;
    Ok(supervisor::run(supervisor::Handles {
        control: UnixListener::bind(state.join("control.sock"))?,
        shim: UnixListener::bind(dir.join("shim.sock"))?,
        state: OwnedFd::from(std::fs::File::open(&state)?),
        model: Some(TcpListener::bind("127.0.0.1:0")?),
        ready: Some(std::io::stdout().as_fd().try_clone_to_owned()?),
        doors: None,
        has_ca: false,
        limits: protocol::Limits::default(),
    }))
}

fn measure(dir: &Path, pid: u32) -> Result<()> {
    let mut daemon = Daemon {
        socket: UnixStream::connect(dir.join("state/control.sock"))?,
        input: BytesMut::new(),
    };
    daemon.send(&ToSupervisor::Fence { epoch: Epoch(1) })?;
    daemon.hear()?;

    let file = std::fs::File::create(dir.join("appends"))?;
    file.write_all_at(&vec![0; 4 << 20], 0)?;
    file.sync_all()?;
    let (mut ops, mut echoes, mut spawns, mut appends) = (vec![], vec![], vec![], vec![]);
    for n in 0..500u64 {
        ops.push(timed(|| daemon.run(&format!("true-{n}"), &["true"]))?);
        echoes.push(timed(|| daemon.run(&format!("echo-{n}"), &["echo", "x"]))?);
        spawns.push(timed(|| {
            Command::new("true").output()?;
            Ok(())
        })?);
        appends.push(timed(|| {
            for half in 0..2 {
                file.write_all_at(&[b'x'; 400], n * 800 + half * 400)?;
                file.sync_data()?;
            }
            Ok(())
        })?);
    }
    report("operation of `true`, durable", &mut ops);
    report("operation of `echo x`, durable", &mut echoes);
    report("bare spawn of `true` with pipes", &mut spawns);
    report("two synced appends of 400 bytes", &mut appends);

    let begun = Instant::now();
    for n in 0..64 {
        daemon.start(&format!("many-{n}"), &["true"])?;
    }
    for _ in 0..64 {
        daemon.settled()?;
    }
    println!(
        "{:40} {:8.2} ms",
        "64 operations of `true` at once",
        ms(begun.elapsed())
    );

    const PRODUCE: &str = "head -c 1G /dev/zero";
    for round in 0..3 {
        let name = format!("much-{round}");
        let spool = dir.join(format!("state/spool/{name}.1.stdout"));
        let begun = Instant::now();
        daemon.start(&name, &["/bin/sh", "-c", PRODUCE])?;
        daemon.settled()?;
        let ours = begun.elapsed();
        assert_eq!(
            std::fs::metadata(&spool)?.len(),
            1 << 30,
            "output is missing"
        );
        std::fs::remove_file(spool)?;
        let target = dir.join("cat");
        let to_file = timed(|| shell(&format!("{PRODUCE} | cat > {}", target.display())))?;
        std::fs::remove_file(&target)?;
        let synced = timed(|| {
            shell(&format!(
                "{PRODUCE} | cat > {0}; sync -d {0}",
                target.display()
            ))
        })?;
        std::fs::remove_file(&target)?;
        let to_null = timed(|| shell(&format!("{PRODUCE} | cat > /dev/null")))?;
        println!(
            "1 GiB: supervisor, synced {:.0} ms · cat > file {:.0} ms · the same, synced {:.0} ms · cat > /dev/null {:.0} ms",
            ms(ours),
            ms(to_file),
            ms(synced),
            ms(to_null)
        );
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    for line in status
        .lines()
        .filter(|l| l.starts_with("VmRSS") || l.starts_with("VmHWM"))
    {
        println!("{line}");
    }
    Ok(())
}

fn shell(command: &str) -> Result<()> {
    let status = Command::new("/bin/sh").args(["-c", command]).status()?;
    status
        .success()
        .then_some(())
        .ok_or("the shell failed".into())
}

fn timed(mut what: impl FnMut() -> Result<()>) -> Result<Duration> {
    let begun = Instant::now();
    what()?;
    Ok(begun.elapsed())
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: usize| ms(times[times.len() * share / 100]);
    println!(
        "{what:40} {:8.2} ms median, {:.2} p90, {:.2} p99",
        at(50),
        at(90),
        at(99)
    );
}

struct Daemon {
    socket: UnixStream,
    input: BytesMut,
}

impl Daemon {
    fn send(&mut self, message: &ToSupervisor) -> Result<()> {
        let mut wire = BytesMut::new();
        encode(message, &mut wire)?;
        Ok(self.socket.write_all(&wire)?)
    }

    fn hear(&mut self) -> Result<FromSupervisor> {
        let mut buffer = [0; 64 << 10];
        loop {
            if let Some(message) = decode(&mut self.input)? {
                return Ok(message);
            }
            match self.socket.read(&mut buffer)? {
                0 => return Err("the supervisor ended the connection".into()),
                length => self.input.extend_from_slice(&buffer[..length]),
            }
        }
    }

    fn start(&mut self, op: &str, argv: &[&str]) -> Result<()> {
        let run = RunSpec {
            argv: argv.iter().map(|&a| a.to_owned()).collect(),
            cwd: "/tmp".to_owned(),
            env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
            user: None,
            timeout_ms: None,
            tty: None,
            stdin: false,
            role: protocol::Role::Command,
        };
        self.send(&ToSupervisor::Start {
            op: op.parse()?,
            attempt: 1,
            run,
            witness: Head::EMPTY,
        })
    }

    fn settled(&mut self) -> Result<()> {
        loop {
            if let FromSupervisor::Settled { op, settlement, .. } = self.hear()? {
                assert_eq!(settlement.outcome, Outcome::Exited { exit_code: 0 }, "{op}");
                let witness = Head::EMPTY;
                return self.send(&ToSupervisor::Announce { op, witness });
            }
        }
    }

    fn run(&mut self, op: &str, argv: &[&str]) -> Result<()> {
        self.start(op, argv)?;
        self.settled()
    }
}
