//! A run in which something leaves: a request that waits for a person's word, an upload, a `git push`, a request with a secret.
//! Somebody is killed on its way. What the origin saw, what the journal says and what the program was told must agree, nothing
//! is sent twice that the program did not send twice, a word of a person is used once and not lost, and the way out goes on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use system_tests::{Client, Done, Hit, Res, Rng, World, trouble};

use crate::agent::KEY;
use crate::cell::{Cell, Point};
use crate::check::{Story, removed};
use crate::far::{Came, Far, Held, Place};
use crate::report::{Fault, Verdict};
use crate::stage::Stage;
use crate::strike::{REACH, Targets, reached, strike};

/// The exit code that tells of an unknown outcome (`durable --help`).
const LOST: i32 = 123;
/// How long the ends of effects may take to be journaled.
const SOON: Duration = Duration::from_secs(20);
/// Between two looks at what nobody tells of.
const LOOK: Duration = Duration::from_millis(5);

/// Where somebody is killed.
#[derive(Debug, Clone, Copy)]
enum At {
    /// In the daemon, the so-many-th time that it comes there.
    Daemon(&'static str, u64),
    /// With the origin in the middle of it.
    Far(Place),
}

/// The places on the way of one kind, in order.
fn places(point: Point) -> Vec<At> {
    use At::{Daemon, Far};
    let held = [Daemon("egress_parked", 0), Daemon("egress_approved", 0)];
    // A push asks for the refs first.
    let last = u64::from(point == Point::MidPush);
    let body = [Far(Place::Body)];
    let all = [
        Daemon("egress_accepted", 0),
        Daemon("egress_begun", last),
        Far(Place::Head),
        Far(Place::Whole),
        Far(Place::AnswerHead),
        Far(Place::AnswerMiddle),
        Daemon("egress_settling", last),
    ];
    let mut places = all.to_vec();
    match point {
        Point::MidApproval => places.extend(held),
        Point::MidUpload | Point::MidPush => places.extend(body),
        _ => {}
    }
    places
}

/// Whoever stands still.
enum Standing {
    Daemon(Receiver<Hit>),
    Far(Receiver<Held>),
}

enum Stood {
    Daemon { _hit: Hit },
    Far { _held: Held },
}

impl Standing {
    fn reached(&self, world: &World, far: &Far) -> Res<Stood> {
        match self {
            Self::Daemon(hits) => Ok(Stood::Daemon {
                _hit: reached(hits, world)?,
            }),
            Self::Far(held) => match held.recv_timeout(REACH) {
                Ok(held) => Ok(Stood::Far { _held: held }),
                Err(_) => {
                    far.disarm();
                    Err(trouble(format!(
                        "the request did not come to the origin; daemon.log ends:\n{}",
                        world.daemon_log()
                    )))
                }
            },
        }
    }
}

/// The script of one operation: numbered tries until one succeeds. Each is told of before it is made, and once it succeeded.
fn script(point: Point, far: &Far, world: &World, sandbox: &str, op: &str, h1: bool) -> String {
    let effects = world.effects().inside();
    let blob = world.effects().inside_file("blob");
    let curl = format!(
        "curl {} -fsS --max-time 100 -A \"{op}/$n\" -o answer",
        if h1 { "--http1.1" } else { "" }
    );
    let (before, one) = match point {
        Point::MidApproval => {
            let url = far.url(&format!("/held/{sandbox}"));
            ("", format!("{curl} -d '{{\"v\":1}}' {url}"))
        }
        Point::MidUpload => {
            let url = far.url(&format!("/take/{sandbox}"));
            let chunked = "-X POST -H 'Transfer-Encoding: chunked' -T -";
            ("", format!("cat {blob} {blob} | {curl} {chunked} {url}"))
        }
        Point::MidPush => {
            let url = far.url(&format!("/kill/{sandbox}.git"));
            // curl's library sends a request on a kept connection again by itself, so none is kept.
            let config = "-c http.version=HTTP/1.1 -c http.extraHeader='Connection: close'";
            (
                "rm -rf repo && git init -q -b main repo && cd repo && head -c 200000 BLOB > f && git add f && \
                 git -c user.name=a -c user.email=a@b.test commit -q -m x || exit 8",
                format!(
                    "GIT_HTTP_USER_AGENT=\"{op}/$n\" git {config} push -q {url} HEAD:refs/heads/main"
                ),
            )
        }
        _ => {
            let url = far.url(&format!("/take/{sandbox}"));
            ("", format!("{curl} -d x=1 {url}"))
        }
    };
    // The same commit whoever makes it, as it is for a person who pushes again.
    let before = before.replace("BLOB", &blob).replace(
        "git -c user",
        "GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000' git -c user",
    );
    format!(
        "cd /workspace\n{before}\nfor n in 1 2 3 4 5 6 7 8; do\necho '{op} try '$n > {effects}\n\
         if {one}; then echo '{op} done '$n > {effects}; exit 0; fi\ndone\nexit 9"
    )
}

struct Run<'a> {
    cell: &'a Cell,
    world: &'a World,
    far: &'a Far,
    sandbox: String,
    verdict: Verdict,
    ops: Vec<String>,
}

pub(crate) fn run(stage: &mut Stage, cell: &Cell, seed: u64) -> Res<Verdict> {
    let mut rng = Rng::named(seed, &cell.to_string());
    let sandbox = stage.next();
    let (world, far, policy) = stage.far()?;
    let repository = far.repository(&sandbox)?;
    world.create(&sandbox, &["--policy", &policy.to_string_lossy()])?;
    let places = places(cell.point);
    // In turns, from a place of the cell's own on: a few seeds see them all.
    let first = Rng::named(0, &cell.to_string()).index(places.len());
    let turn = usize::try_from(seed).unwrap_or(0);
    let at = places[(first + turn) % places.len()];
    let mut run = Run {
        cell,
        world,
        far,
        sandbox,
        verdict: Verdict::default(),
        ops: Vec::new(),
    };
    run.play(at, &repository, &mut rng)
        .map_err(|trouble_| trouble(format!("{at:?}: {trouble_}")))?;
    removed(world, &run.sandbox, &mut run.verdict)?;
    for finding in &mut run.verdict.findings {
        finding.words = format!("{at:?}: {}", finding.words);
    }
    Ok(run.verdict)
}

impl Run<'_> {
    fn play(&mut self, at: At, repository: &Path, rng: &mut Rng) -> Res<()> {
        let (world, far) = (self.world, self.far);
        let h1 = rng.chance(50);
        let standing = match at {
            At::Daemon(point, skip) => Standing::Daemon(world.points()?.arm(&[point], skip)),
            At::Far(place) => Standing::Far(far.arm(place)),
        };
        let op = self.op();
        let first = self.start(&op, h1)?;
        let is_before_word = matches!(at, At::Daemon("egress_accepted" | "egress_parked", _));
        let word = if self.cell.point == Point::MidApproval && !is_before_word {
            Some(self.give_one()?)
        } else {
            None
        };
        let stood = standing.reached(world, far)?;
        let mut clients = [first];
        let targets = Targets {
            world,
            sandbox: &self.sandbox,
            clients: &mut clients,
            harness: Vec::new(),
            relay: false,
        };
        strike(self.cell.victim, targets, rng)?;
        drop(stood);
        if let Some(word) = word {
            // Where the daemon died under it nobody knows whether it was heard; the journal says so below.
            word.finish()?;
        }

        // What a user does: the same again.
        let again = self.start(&op, h1)?;
        let done = self.finish(again)?;
        self.judge_end(&op, &done)?;
        let [first] = clients;
        if !self.cell.victim.takes_client() {
            let heard = first.finish()?;
            if heard.code != done.code {
                let words = format!("two clients hear {:?} and {:?}", heard.code, done.code);
                self.verdict.find(Fault::Disagreement, words);
            }
        }
        if done.code != Some(0) {
            // The supervisor took it along: now the person asks for the same once more.
            let next = self.op();
            let client = self.start(&next, h1)?;
            let done = self.finish(client)?;
            if done.code != Some(0) {
                self.wrong(&next, &done);
            }
        }
        self.after()?;
        self.settled()?;
        self.judge(repository)
    }

    fn op(&mut self) -> String {
        let op = format!("{}-op{}", self.sandbox, self.ops.len());
        self.ops.push(op.clone());
        op
    }

    fn start(&self, op: &str, h1: bool) -> Res<Client> {
        let script = script(self.cell.point, self.far, self.world, &self.sandbox, op, h1);
        self.world.start(&[
            "exec",
            &self.sandbox,
            "--op",
            op,
            "--",
            "bash",
            "-c",
            &script,
        ])
    }

    /// Waits for a client, and says yes to whatever is asked meanwhile.
    fn finish(&self, client: Client) -> Res<Done> {
        if self.cell.point != Point::MidApproval {
            return client.finish();
        }
        std::thread::scope(|scope| {
            let done = scope.spawn(|| client.finish());
            while !done.is_finished() {
                // A daemon may just be starting; the next look finds it.
                let _unheard = self.say_yes();
                std::thread::sleep(LOOK);
            }
            done.join().map_err(|_| trouble("a thread failed"))?
        })
    }

    fn questions(&self) -> Res<Vec<String>> {
        let path = format!("/v1/sandboxes/{}/approvals", self.sandbox);
        let list = self.world.api()?.get(&path)?;
        let open = list.as_array().into_iter().flatten();
        Ok(open
            .filter(|view| view["allowed"].is_null())
            .filter_map(|view| view["id"].as_str().map(str::to_owned))
            .collect())
    }

    fn say_yes(&self) -> Res<()> {
        for id in self.questions()? {
            let path = format!("/v1/sandboxes/{}/approvals/{id}", self.sandbox);
            self.world
                .api()?
                .call("PUT", &path, &json!({ "allow": true }))?;
        }
        Ok(())
    }

    /// Waits for the question and gives the word, by a client of its own: the daemon may stand still under it.
    fn give_one(&self) -> Res<Client> {
        let until = Instant::now() + REACH;
        loop {
            if let Some(id) = self.questions()?.first() {
                return self.world.start(&["approve", &self.sandbox, id]);
            }
            if Instant::now() > until {
                return Err(trouble("nobody was asked"));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn wrong(&mut self, op: &str, done: &Done) {
        let words = format!("{op}: ended with {:?}: {}", done.code, done.err().trim());
        self.verdict.find(Fault::WrongCode, words);
    }

    fn judge_end(&mut self, op: &str, done: &Done) -> Res<()> {
        let is_lost = done.code == Some(LOST) && done.err().contains("lost");
        if is_lost && self.cell.victim.takes_supervisor() {
            self.verdict.told_lost += 1;
        } else if done.code != Some(0) {
            self.wrong(op, done);
        }
        Ok(())
    }

    /// After all of it a request with the secret works.
    fn after(&mut self) -> Res<()> {
        let op = format!("{}-after", self.sandbox);
        let url = self.far.url(&format!("/take/{}/after", self.sandbox));
        let args = [
            "exec",
            &self.sandbox,
            "--op",
            &op,
            "--",
            "curl",
            "-fsS",
            "-A",
            "after",
            "--max-time",
            "60",
            "-o",
            "/dev/null",
            &url,
        ];
        let done = self.world.run(&args)?;
        if done.code != Some(0) {
            self.wrong(&op, &done);
        }
        Ok(())
    }

    /// Waits until no effect is open: their ends are journaled behind the answers.
    fn settled(&mut self) -> Res<()> {
        let path = format!("/v1/sandboxes/{}/effects", self.sandbox);
        let until = Instant::now() + SOON;
        loop {
            let list = self.world.api()?.get(&path)?;
            let open: Vec<&Value> = list
                .as_array()
                .into_iter()
                .flatten()
                .filter(|effect| effect["state"] == "open")
                .collect();
            if open.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                let words = format!("effects never settle: {}", json!(open));
                self.verdict.find(Fault::Disagreement, words);
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn judge(&mut self, repository: &Path) -> Res<()> {
        let story = Story::read(self.world, &self.sandbox, &mut self.verdict)?;
        let came = self.far.came(&self.sandbox);
        let ops = self.ops.clone();
        for op in &ops {
            let view = self
                .world
                .json(&["op", &self.sandbox, op, "--wait", "--json"])?;
            story.operation(op, &view, &mut self.verdict);
            self.tries(op, &came)?;
        }
        self.effects(&story, &came);
        self.words(&story);
        story.files(self.world, &mut self.verdict)?;
        for one in came
            .iter()
            .filter(|one| one.authorization != format!("Bearer {KEY}"))
        {
            let words = format!("{} {} came without the secret", one.method, one.path);
            self.verdict.find(Fault::Disagreement, words);
        }
        if !came.iter().any(|one| one.agent == "after" && one.answered) {
            let words = "no request came after all";
            self.verdict.find(Fault::LostOutput, words);
        }
        if self.cell.point == Point::MidPush && self.far.branch(repository)?.len() != 40 {
            let words = "what was pushed is not there";
            self.verdict.find(Fault::LostOutput, words);
        }
        Ok(())
    }

    /// Compares what the program tried and was told with what came.
    fn tries(&mut self, op: &str, came: &[Came]) -> Res<()> {
        let told = self.world.effects().lines(&format!("{op} "))?;
        let mut mutations: BTreeMap<&str, Vec<&Came>> = BTreeMap::new();
        let of_op = came.iter().filter(|one| {
            let of = one.agent.rsplit_once('/');
            one.method == "POST" && of.is_some_and(|(of, _)| of == op)
        });
        for one in of_op {
            mutations.entry(&one.agent).or_default().push(one);
        }
        for (agent, all) in &mutations {
            let number = agent.rsplit('/').next().unwrap_or_default();
            if all.len() > 1 {
                let words = format!("try {number} of {op} came {} times", all.len());
                self.verdict.find(Fault::Duplicated, words);
            }
            if !told.contains(&format!("{op} try {number}")) {
                let words = format!("{agent} came and was never sent");
                self.verdict.find(Fault::Duplicated, words);
            }
        }
        let digest = match self.cell.point {
            Point::MidUpload => {
                let blob = std::fs::read(self.world.effects().dir().join("blob"))?;
                Some(
                    blake3::hash(&[blob.clone(), blob].concat())
                        .to_hex()
                        .to_string(),
                )
            }
            _ => None,
        };
        for number in told.iter().filter_map(|line| line.split(" done ").nth(1)) {
            let agent = format!("{op}/{number}");
            let all = mutations.get(agent.as_str());
            let is_there = all.and_then(|all| all.last()).is_some_and(|one| {
                one.whole
                    && one.answered
                    && digest.as_ref().is_none_or(|digest| one.digest == *digest)
            });
            // A push that finds everything there already sends nothing.
            if !is_there && self.cell.point != Point::MidPush {
                let words = format!("{agent} was told to have arrived, and did not as it was sent");
                self.verdict.find(Fault::LostOutput, words);
            }
        }
        Ok(())
    }

    /// Compares the journal's effects with what came.
    fn effects(&mut self, story: &Story, came: &[Came]) {
        let mut paths: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
        for one in came {
            let counts = paths.entry((&one.method, &one.path)).or_default();
            counts.0 += 1;
            counts.1 += usize::from(one.answered);
        }
        for ((method, path), (arrived, answered)) in paths {
            let begun: Vec<&Value> = story
                .of("effect_begun")
                .filter(|event| event["method"] == method && event["path"] == path)
                .collect();
            // What only read is journaled a few milliseconds after it began, and a daemon that is killed before has lost it.
            let may_be_lost = matches!(method, "GET" | "HEAD");
            if begun.len() < arrived && !may_be_lost {
                let words = format!(
                    "{method} {path} arrived {arrived} times, and the journal has {} effects of it",
                    begun.len()
                );
                self.verdict.find(Fault::Disagreement, words);
            }
            let ends = begun.iter().map(|event| {
                let ends = story.of("effect_settled");
                ends.filter(|end| {
                    end["effect"] == event["effect"] && end["seq"].as_u64() > event["seq"].as_u64()
                })
                .collect::<Vec<_>>()
            });
            let mut whole = 0;
            for ends in ends {
                if ends.len() != 1 {
                    let words = format!("an effect of {method} {path} has {} ends", ends.len());
                    self.verdict.find(Fault::Disagreement, words);
                }
                let is_whole = ends
                    .first()
                    .is_some_and(|end| end["status"] == 200 && end["error"].is_null());
                whole += usize::from(is_whole);
            }
            if whole > answered {
                let words = format!(
                    "{whole} effects of {method} {path} are told to have ended well, and {answered} were answered"
                );
                self.verdict.find(Fault::Disagreement, words);
            }
        }
    }

    /// Every word that was given let one request out, in the append in which its effect began.
    fn words(&mut self, story: &Story) {
        let of = |kind| story.of(kind).collect::<Vec<_>>();
        let given: Vec<&Value> = of("approval_decided");
        let used = of("approval_used");
        let begun: Vec<&Value> = story
            .of("effect_begun")
            .filter(|event| event["rule"] == "held")
            .collect();
        for word in &given {
            let uses: Vec<&&Value> = used
                .iter()
                .filter(|one| one["approval"] == word["approval"])
                .collect();
            let is_once = uses.len() == 1
                && begun.iter().any(|event| {
                    event["seq"].as_u64() == uses[0]["seq"].as_u64().map(|seq| seq + 1)
                });
            if !is_once {
                let words = format!(
                    "word {} was used {} times, or by no effect",
                    word["approval"],
                    uses.len()
                );
                self.verdict.find(Fault::Disagreement, words);
            }
        }
        if begun.len() != given.len() {
            let words = format!(
                "{} words were given, and {} requests left by one",
                given.len(),
                begun.len()
            );
            self.verdict.find(Fault::Duplicated, words);
        }
    }
}
