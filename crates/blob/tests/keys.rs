//! Encrypted stores: who opens them, and what they tell to those who cannot.

use std::fs;

use blob::{Error, Key, Store};

use crate::tree::{self, Dice};
use crate::world::{World, push};

#[test]
fn no_key_a_wrong_key_and_a_needless_key_are_told() {
    let world = World::encrypted();
    drop(world.store());
    assert!(matches!(
        Store::open(&world.url(), None),
        Err(Error::KeyNeeded)
    ));
    assert!(matches!(
        Store::open(&world.url(), Some(&Key::generate())),
        Err(Error::WrongKey)
    ));
    let plain = World::new();
    drop(plain.store());
    assert!(matches!(
        Store::open(&plain.url(), Some(&Key::generate())),
        Err(Error::NotEncrypted)
    ));
    assert!("AGE-SECRET-KEY-1NONSENSE".parse::<Key>().is_err());
}

#[test]
fn a_second_recipient_reads_the_same_store_and_a_key_survives_as_text() {
    let mut world = World::encrypted();
    tree::make(&world.path("tree"), &mut Dice(2), 30);
    let (id, _) = push(&world.store(), &world.path("tree"), None);
    let other = Key::generate();
    world.store().add_recipient(&other.recipient()).unwrap();
    world.key = Some(other.secret().parse().unwrap());
    tree::assert_same(
        &world.path("tree"),
        world.pull(&id).unwrap().path(),
        "by the second key",
    );
    assert!(matches!(
        World::new().store().add_recipient(&other.recipient()),
        Err(Error::NotEncrypted)
    ));
}

#[test]
fn an_encrypted_store_shows_neither_names_nor_content_nor_plain_hashes() {
    let world = World::encrypted();
    fs::create_dir(world.path("tree")).unwrap();
    let secret = b"a sentence that stands in a file and nowhere else".repeat(50);
    fs::write(world.path("tree/tell-tale-name"), &secret).unwrap();
    push(&world.store(), &world.path("tree"), None);
    let plain_hash = blake3::hash(&secret);
    for (path, _) in world.objects("") {
        let bytes = fs::read(&path).unwrap();
        for clue in [&b"tell-tale"[..], b"sentence", plain_hash.as_bytes()] {
            assert!(
                !bytes.windows(clue.len()).any(|window| window == clue),
                "{}",
                path.display()
            );
        }
        assert!(
            !path
                .display()
                .to_string()
                .contains(plain_hash.to_hex().as_str())
        );
    }
}
