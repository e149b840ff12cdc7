//! Refs move by compare-and-swap.

use blob::Error;
use serde_json::json;

use crate::world::World;

#[test]
fn of_many_who_move_a_ref_at_once_one_wins() {
    let world = World::new();
    let store = world.store();
    let (id, _) = store.begin(None).unwrap().commit(json!(null)).unwrap();
    assert_eq!(store.get_ref("head").unwrap(), None);
    let mut was = None;
    for _ in 0..10 {
        let won: Vec<_> = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| world.elsewhere().set_ref("head", was, &id)))
                .collect();
            racers
                .into_iter()
                .map(|racer| racer.join().unwrap())
                .collect()
        });
        assert_eq!(won.iter().filter(|one| one.is_ok()).count(), 1, "{won:?}");
        assert!(
            won.iter()
                .all(|one| matches!(one, Ok(_) | Err(Error::Moved { .. })))
        );
        was = store
            .get_ref("head")
            .unwrap()
            .map(|(_, generation)| generation);
    }
    assert_eq!(store.list_refs().unwrap(), [("head".to_owned(), id)]);
    assert!(matches!(
        store.set_ref("../x", None, &id),
        Err(Error::Invalid(_))
    ));
}
