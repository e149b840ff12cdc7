//! docs/attacks.md is complete: every item of the list has a row, and every test that a row names is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use system_tests::{Res, trouble};

/// The items of the list: names and addresses, secrets, protocols and channels, the machine.
const LIST: [(char, &[u32]); 4] = [
    (
        'A',
        &[1, 4, 5, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20],
    ),
    (
        'B',
        &[
            2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16, 18, 19, 21, 22,
        ],
    ),
    (
        'C',
        &[
            1, 3, 4, 5, 6, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26,
        ],
    ),
    (
        'I',
        &[
            1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
        ],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every test function of the repository.
fn functions(dir: &Path, found: &mut BTreeSet<String>) -> Res<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            functions(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                    is_test = true;
                } else if let Some((_, rest)) = line.split_once("fn ")
                    && std::mem::take(&mut is_test)
                {
                    found.insert(rest.split('(').next().unwrap_or_default().to_owned());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn every_attack_has_its_test() -> Res<()> {
    let text = std::fs::read_to_string(root().join("docs/attacks.md"))?;
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| id"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let mut tests = BTreeSet::new();
    for dir in ["crates", "tests"] {
        functions(&root().join(dir), &mut tests)?;
    }
    assert!(tests.contains("every_attack_has_its_test"));
    let mut ids = BTreeSet::new();
    for row in &rows {
        let [id, _, named, result] = row[..] else {
            return Err(trouble(format!("a row has not four columns: {row:?}")));
        };
        assert!(ids.insert(id.to_owned()), "{id} is there twice");
        assert!(!result.is_empty(), "{id} has no result");
        let named: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{id} names no test");
        for test in named {
            let test = test.rsplit("::").next().unwrap_or_default();
            assert!(tests.contains(test), "{id}: there is no test `{test}`");
        }
    }
    let list = LIST
        .iter()
        .flat_map(|(section, items)| items.iter().map(move |n| format!("{section}{n}")));
    let list: BTreeSet<String> = list.collect();
    assert_eq!(ids, list, "rows and the list differ");
    Ok(())
}
