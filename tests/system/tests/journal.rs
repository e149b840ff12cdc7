//! A damaged journal is told, as far as it can be read, and nothing goes on in silence.

use std::path::PathBuf;
use std::time::Duration;

use system_tests::{Res, World, process, trouble};

/// Flips one bit of the only place in the database that holds `text`.
fn flip(world: &World, text: &str) -> Res<()> {
    let path: PathBuf = world.data().join("journal/journal.db");
    // A daemon that ends under load may leave its log to the next one, and that would bring the page back whole.
    let conn = rusqlite::Connection::open(&path)?;
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    conn.close().map_err(|(_, e)| e)?;
    let mut bytes = std::fs::read(&path)?;
    let places: Vec<usize> = bytes
        .windows(text.len())
        .enumerate()
        .filter(|(_, w)| *w == text.as_bytes())
        .map(|(at, _)| at)
        .collect();
    let [place] = places[..] else {
        return Err(trouble(format!("`{text}` stands at {places:?}")));
    };
    bytes[place] ^= 1;
    std::fs::write(path, bytes)?;
    Ok(())
}

#[test]
fn a_flipped_bit_is_told_with_what_can_still_be_read() -> Res<()> {
    let world = World::new("flip")?;
    for name in ["hurt", "whole"] {
        world.create(name, &[])?;
        world.must(&["exec", name, "--op", "before", "--", "true"])?;
    }
    world.must(&[
        "exec",
        "hurt",
        "--op",
        "victim",
        "--",
        "echo",
        "needle-7319",
    ])?;
    world.must(&["exec", "hurt", "--op", "after", "--", "true"])?;
    for name in ["hurt", "whole"] {
        world.must(&["stop", name])?;
    }
    let daemon = world.daemon().unwrap();
    assert!(process::terminate(daemon, Duration::from_secs(20)));
    flip(&world, "needle-7319")?;

    let log = world.run(&["log", "hurt"])?;
    assert_eq!(log.code, Some(125), "{}", log.out());
    assert!(log.err().contains("events 1 to"), "{}", log.err());
    let events = log.out().lines().count();
    assert!(
        log.out().contains("op_settled") && !log.out().contains("needle"),
        "{}",
        log.out()
    );
    assert!(
        log.err().contains(&format!("events 1 to {events} ")),
        "{events}: {}",
        log.err()
    );
    let done = world.run(&["exec", "hurt", "--", "true"])?;
    assert_eq!(done.code, Some(125));
    assert!(done.err().contains("corrupt"), "{}", done.err());
    let list = world.must(&["ps"])?.out();
    assert!(
        list.lines()
            .any(|l| l.contains("hurt") && l.contains("damaged")),
        "{list}"
    );
    // The neighbour goes on.
    world.must(&["exec", "whole", "--op", "more", "--", "true"])?;
    world.must(&["log", "whole"])?;
    world.must(&["rm", "hurt"])?;
    world.end_clean()
}

#[test]
fn a_journal_that_lost_its_tail_is_told_by_the_witness() -> Res<()> {
    let world = World::new("tail")?;
    world.create("a", &[])?;
    world.must(&["exec", "a", "--op", "one", "--", "true"])?;
    let journal = world.data().join("journal");
    let copy = world.root().join("copy");
    process::terminate(world.daemon().unwrap(), Duration::from_secs(20));
    copy_dir(&journal, &copy)?;
    world.must(&["exec", "a", "--op", "two", "--", "true"])?;
    process::terminate(world.daemon().unwrap(), Duration::from_secs(20));
    // As a backup that was put back would do.
    std::fs::remove_dir_all(&journal)?;
    copy_dir(&copy, &journal)?;
    let done = world.run(&["exec", "a", "--op", "three", "--", "true"])?;
    assert_eq!(done.code, Some(125));
    assert!(done.err().contains("lost its tail"), "{}", done.err());
    world.must(&["rm", "-f", "a"])?;
    world.end_clean()
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) -> Res<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
