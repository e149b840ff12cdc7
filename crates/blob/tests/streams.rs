//! Streams: appended to, cut back, and given back exactly.

use blob::Error;
use serde_json::json;

use crate::tree::Dice;
use crate::world::{World, seeds};

#[test]
fn a_stream_pushed_in_pieces_is_the_whole() {
    for seed in seeds() {
        let world = World::of(seed);
        let mut dice = Dice(seed);
        let (mut text, mut parent) = (Vec::new(), None);
        for round in 0..12 {
            // Sometimes a tail is written over: a journal that lost it.
            let from = text.len() - usize::try_from(dice.below(text.len() as u64 / 4 + 1)).unwrap();
            let len = usize::try_from(dice.below(900_000)).unwrap();
            text.truncate(from);
            text.extend(dice.bytes(len));
            let store = world.store();
            let mut push = store.begin(parent.as_ref()).unwrap();
            let len = push
                .stream("journal/1", &mut &text[from..], from as u64)
                .unwrap();
            assert_eq!(len, text.len() as u64);
            let (id, _) = push.commit(json!({ "round": round })).unwrap();
            let mut got = Vec::new();
            world
                .elsewhere()
                .pull_stream(&id, "journal/1", 0, &mut got)
                .unwrap();
            assert!(got == text, "seed {seed} round {round}");
            let at = text.len() / 3;
            got.clear();
            world
                .elsewhere()
                .pull_stream(&id, "journal/1", at as u64, &mut got)
                .unwrap();
            assert!(got == text[at..], "seed {seed} round {round}");
            assert_eq!(
                world.elsewhere().snapshot(&id).unwrap().note["round"],
                round
            );
            parent = Some(id);
        }
    }
}

#[test]
fn an_append_uploads_little_and_small_ones_do_not_pile_up() {
    let world = World::new();
    let mut dice = Dice(9);
    let mut text: Vec<u8> = (0..20_000_000 / 8)
        .flat_map(|_| dice.next().to_le_bytes())
        .collect();
    let store = world.store();
    let mut push = store.begin(None).unwrap();
    push.stream("s", &mut text.as_slice(), 0).unwrap();
    let (mut parent, _) = push.commit(json!(null)).unwrap();
    for _ in 0..20 {
        let from = text.len();
        text.extend(dice.bytes(1000));
        let mut push = store.begin(Some(&parent)).unwrap();
        push.stream("s", &mut &text[from..], from as u64).unwrap();
        let (id, report) = push.commit(json!(null)).unwrap();
        assert!(report.new_bytes < 600_000, "{report:?}");
        parent = id;
    }
    let mut got = Vec::new();
    store.pull_stream(&parent, "s", 0, &mut got).unwrap();
    assert!(got == text);
    let mut push = store.begin(Some(&parent)).unwrap();
    assert_eq!(push.keep_stream("s").unwrap(), text.len() as u64);
    let (kept, report) = push.commit(json!(null)).unwrap();
    assert_eq!(report.new_bytes, 0);
    assert_eq!(store.snapshot(&kept).unwrap().parents, [parent]);
}

#[test]
fn a_gap_and_an_unknown_stream_are_refused() {
    let world = World::new();
    let store = world.store();
    let mut push = store.begin(None).unwrap();
    assert!(matches!(
        push.stream("s", &mut &b"x"[..], 5),
        Err(Error::Invalid(_))
    ));
    push.stream("s", &mut &b"x"[..], 0).unwrap();
    let (id, _) = push.commit(json!(null)).unwrap();
    assert!(matches!(
        store.pull_stream(&id, "t", 0, &mut Vec::new()),
        Err(Error::NoPart { .. })
    ));
}
