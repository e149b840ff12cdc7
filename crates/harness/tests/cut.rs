//! Whatever a crash leaves of a transcript, the repair of it is whole lines of JSON that begin as the old ones did.

use harness::{CallResult, ToolUse, driver};
use proptest::prelude::*;
use protocol::Outcome;

use crate::{fixture, lines, start};

const FIXTURES: &[&str] = &[
    "claude-prompt",
    "claude-dangling",
    "claude-one-answered",
    "claude-done",
    "claude-resumed",
    "claude-resumed-tty",
    "pi-prompt",
    "pi-dangling",
    "pi-done",
    "pi-resumed",
];

/// Returns the repaired transcript, having checked it against the old one.
fn check(name: &str, old: &[u8], tty: bool, results: &dyn Fn(&ToolUse) -> CallResult) -> Vec<u8> {
    let driver = driver(name.split('-').next().unwrap()).unwrap();
    let repair = driver.repair(&start(&["go"], tty), old, results);
    let kept = repair
        .bytes
        .iter()
        .zip(old)
        .take_while(|(new, old)| new == old)
        .count();
    let kept = repair.bytes[..kept]
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    let added = lines(&repair.bytes[kept..]);
    assert_eq!(
        added.len(),
        repair.repaired.len(),
        "{name} cut at {}",
        old.len()
    );
    driver.resume(&start(&["go"], tty), repair.phase).unwrap();
    repair.bytes
}

#[test]
fn cut_at_every_byte() {
    let lost = |_: &ToolUse| CallResult::Lost {
        output: b"x".to_vec(),
    };
    for name in FIXTURES {
        let whole = fixture(name);
        for cut in 0..=whole.len() {
            let tty = cut % 2 == 0;
            let once = check(name, &whole[..cut], tty, &lost);
            lines(&once);
            // A crash of the repair itself is repaired the same way.
            if cut % 32 < 2 {
                assert!(
                    check(name, &once, tty, &lost) == once,
                    "{name} cut at {cut}"
                );
            }
        }
    }
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        any::<u8>().prop_map(|exit_code| Outcome::Exited { exit_code }),
        any::<u8>().prop_map(|signal| Outcome::Signaled { signal }),
        Just(Outcome::TimedOut),
        Just(Outcome::Cancelled),
        Just(Outcome::Lost),
    ]
}

fn result() -> impl Strategy<Value = CallResult> {
    let output = || {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            (any::<u8>(), 0_usize..70_000).prop_map(|(byte, n)| vec![byte; n]),
        ]
    };
    prop_oneof![
        (outcome(), output()).prop_map(|(outcome, output)| CallResult::Settled { outcome, output }),
        output().prop_map(|output| CallResult::Lost { output }),
        output().prop_map(|output| CallResult::Running { output }),
        Just(CallResult::NotStarted),
        Just(CallResult::NotOurs),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_output_makes_a_whole_record(which in 0..FIXTURES.len(), tty in any::<bool>(), result in result()) {
        let name = FIXTURES[which];
        check(name, &fixture(name), tty, &|_| result.clone());
    }

    #[test]
    fn damage_anywhere_is_survived(
        which in 0..FIXTURES.len(), tty in any::<bool>(), at in any::<prop::sample::Index>(),
        new in prop::collection::vec(any::<u8>(), 0..8), gone in 0_usize..40, result in result(),
    ) {
        let name = FIXTURES[which];
        let mut old = fixture(name);
        let at = at.index(old.len());
        let end = (at + gone).min(old.len());
        old.splice(at..end, new);
        check(name, &old, tty, &|_| result.clone());
    }
}
