//! The cells of the matrix: who is killed, where, and under what.

use std::fmt;
use std::str::FromStr;

use system_tests::{Trouble, trouble};

/// Who is killed, with SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Client,
    Harness,
    Daemon,
    Supervisor,
    All,
}

/// Where it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    BeforeIntent,
    IntentToStart,
    MidOutput,
    ExitToSettlement,
    SettlementToAnnouncement,
    MidModelStream,
    MidCut,
    /// While a request that waits for a person's word is somewhere on its way. The four of this kind have places of their own.
    MidApproval,
    MidUpload,
    MidPush,
    MidInjected,
}

/// What runs in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    /// Commands of a client.
    Plain,
    Pi,
    Claude,
}

/// One cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) victim: Victim,
    pub(crate) point: Point,
    pub(crate) under: Under,
}

const VICTIMS: [Victim; 5] = [
    Victim::Client,
    Victim::Harness,
    Victim::Daemon,
    Victim::Supervisor,
    Victim::All,
];

const POINTS: [Point; 11] = [
    Point::BeforeIntent,
    Point::IntentToStart,
    Point::MidOutput,
    Point::ExitToSettlement,
    Point::SettlementToAnnouncement,
    Point::MidModelStream,
    Point::MidCut,
    Point::MidApproval,
    Point::MidUpload,
    Point::MidPush,
    Point::MidInjected,
];

impl Victim {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Harness => "harness",
            Self::Daemon => "daemon",
            Self::Supervisor => "supervisor",
            Self::All => "all",
        }
    }

    /// Whether the supervisor dies: only then may an outcome be lost.
    pub(crate) fn takes_supervisor(self) -> bool {
        matches!(self, Self::Supervisor | Self::All)
    }

    pub(crate) fn takes_client(self) -> bool {
        matches!(self, Self::Client | Self::All)
    }

    pub(crate) fn takes_daemon(self) -> bool {
        matches!(self, Self::Daemon | Self::All)
    }
}

impl Point {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BeforeIntent => "before-intent",
            Self::IntentToStart => "intent-start",
            Self::MidOutput => "mid-output",
            Self::ExitToSettlement => "exit-settlement",
            Self::SettlementToAnnouncement => "settlement-announcement",
            Self::MidModelStream => "mid-model-stream",
            Self::MidCut => "mid-cut",
            Self::MidApproval => "mid-approval",
            Self::MidUpload => "mid-upload",
            Self::MidPush => "mid-push",
            Self::MidInjected => "mid-injected",
        }
    }

    /// The places at which a process can be stopped between the two ends of this point. None: output is awaited instead.
    pub(crate) fn places(self) -> &'static [&'static str] {
        match self {
            Self::BeforeIntent => &["before_intent"],
            Self::IntentToStart => &["after_intent", "sup_starting"],
            Self::MidOutput => &[],
            Self::ExitToSettlement => &["sup_exited", "before_settled"],
            Self::SettlementToAnnouncement => &["sup_settled", "before_announce"],
            Self::MidModelStream => &["mid_model_stream"],
            Self::MidCut => &["mid_cut"],
            Self::MidApproval | Self::MidUpload | Self::MidPush | Self::MidInjected => &[],
        }
    }

    /// Whether it is about something that leaves the sandbox.
    pub(crate) fn leaves(self) -> bool {
        matches!(
            self,
            Self::MidApproval | Self::MidUpload | Self::MidPush | Self::MidInjected
        )
    }
}

/// Whether losing the supervisor at this place may leave an operation's outcome unknown: only where its program may have
/// run and its settlement was not durable.
pub(crate) fn may_lose(place: Option<&str>) -> bool {
    match place {
        Some("before_intent" | "after_intent") => false,
        Some("before_settled" | "before_announce" | "sup_settled" | "mid_cut") => false,
        Some(_) | None => true,
    }
}

impl Under {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "none",
            Self::Pi => "pi",
            Self::Claude => "claude",
        }
    }
}

impl Cell {
    /// How often it runs for a number of seeds: a real harness takes seconds, and where it is not what the cell is about
    /// a few runs show that it makes no difference.
    pub(crate) fn runs(&self, seeds: u64) -> u64 {
        let about_harness = self.victim == Victim::Harness || self.point == Point::MidModelStream;
        match self.under {
            // All places of one take turns, so a few runs of each are as many as there are of the other cells.
            Under::Plain if self.point.leaves() => (seeds / 5).max(2),
            Under::Plain => seeds,
            Under::Pi | Under::Claude if about_harness => (seeds / 20).max(2),
            Under::Pi | Under::Claude => (seeds / 100).max(1),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.victim.name(), self.point.name())?;
        if self.under != Under::Plain {
            write!(f, " ({})", self.under.name())?;
        }
        Ok(())
    }
}

/// Which cells are wanted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) victim: Option<Victim>,
    pub(crate) point: Option<Point>,
    pub(crate) under: Option<Under>,
}

impl Wanted {
    /// Reads `VICTIM:POINT`; either may be `*`.
    pub(crate) fn cell(&mut self, text: &str) -> Result<(), Trouble> {
        let (victim, point) = text
            .split_once(':')
            .ok_or_else(|| trouble("--cell takes VICTIM:POINT"))?;
        let unknown = |what: &str, names: Vec<&str>| {
            trouble(format!("unknown {what}; there are: {}", names.join(", ")))
        };
        if victim != "*" {
            let found = VICTIMS.into_iter().find(|v| v.name() == victim);
            let names = VICTIMS.iter().map(|v| v.name()).collect();
            self.victim = Some(found.ok_or_else(|| unknown("victim", names))?);
        }
        if point != "*" {
            let found = POINTS.into_iter().find(|p| p.name() == point);
            let names = POINTS.iter().map(|p| p.name()).collect();
            self.point = Some(found.ok_or_else(|| unknown("point", names))?);
        }
        Ok(())
    }

    fn has(&self, cell: &Cell, and_plain: bool) -> bool {
        self.victim.is_none_or(|v| v == cell.victim)
            && self.point.is_none_or(|p| p == cell.point)
            && self
                .under
                .is_none_or(|u| u == cell.under || (and_plain && cell.under == Under::Plain))
    }

    /// Returns the wanted cells: first those without a harness. A named harness is wanted besides the plain cells, unless
    /// one cell was named too.
    pub(crate) fn cells(&self) -> Vec<Cell> {
        let and_plain = self.victim.is_none() && self.point.is_none();
        let mut cells = Vec::new();
        for under in [Under::Plain, Under::Pi, Under::Claude] {
            for victim in VICTIMS {
                for point in POINTS {
                    let needs_harness = victim == Victim::Harness || point == Point::MidModelStream;
                    let cell = Cell {
                        victim,
                        point,
                        under,
                    };
                    let is_odd = under != Under::Plain || victim == Victim::All;
                    if point.leaves() && is_odd {
                        continue;
                    }
                    if (under != Under::Plain || !needs_harness) && self.has(&cell, and_plain) {
                        cells.push(cell);
                    }
                }
            }
        }
        cells
    }
}

impl FromStr for Under {
    type Err = Trouble;
    fn from_str(text: &str) -> Result<Self, Trouble> {
        match text {
            "none" => Ok(Self::Plain),
            "pi" => Ok(Self::Pi),
            "claude" => Ok(Self::Claude),
            _ => Err(trouble("--harness takes claude, pi or none")),
        }
    }
}
