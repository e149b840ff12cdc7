//! Removes what a harness keeps of old conversations, before another one begins in the same files.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::{Error, failed};

/// Removes what the patterns name, directories with all in them; nothing where nothing is. `*` and `?` stand for parts of
/// a name.
pub(super) fn forget(patterns: &[&OsStr]) -> Result<(), Error> {
    for pattern in patterns {
        for path in named(pattern.as_bytes())? {
            let meta = match fs::symlink_metadata(&path) {
                Err(error) if is_absent(&error) => continue,
                other => other.map_err(failed("look at", &path))?,
            };
            let removed = match meta.is_dir() {
                true => fs::remove_dir_all(&path),
                false => fs::remove_file(&path),
            };
            removed.map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}

/// Returns the paths that a pattern may mean. One whose last parts hold no `*` or `?` need not be there.
fn named(pattern: &[u8]) -> Result<Vec<PathBuf>, Error> {
    let Some(pattern) = pattern.strip_prefix(b"/") else {
        return Err(Error::Usage("a pattern begins with `/`"));
    };
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.split(|byte| *byte == b'/') {
        if matches!(part, b"" | b"." | b"..") {
            return Err(Error::Usage("a pattern is made of names"));
        }
        let mut next = Vec::new();
        for dir in found {
            if part.iter().any(|byte| matches!(byte, b'*' | b'?')) {
                in_dir(&dir, part, &mut next)?;
            } else {
                next.push(dir.join(OsStr::from_bytes(part)));
            }
        }
        found = next;
    }
    Ok(found)
}

fn in_dir(dir: &Path, pattern: &[u8], found: &mut Vec<PathBuf>) -> Result<(), Error> {
    let entries = match fs::read_dir(dir) {
        Err(error) if is_absent(&error) => return Ok(()),
        other => other.map_err(failed("list", dir))?,
    };
    for entry in entries {
        let name = entry.map_err(failed("list", dir))?.file_name();
        if matches(pattern, name.as_bytes()) {
            found.push(dir.join(name));
        }
    }
    Ok(())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Whether a name is one that the pattern means. The last `*` is the only point of return that is ever needed.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    let mut star = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, in_name));
            }
            Some(byte) if *byte == b'?' || *byte == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => {
                let Some((back, from)) = star else {
                    return false;
                };
                star = Some((back, from + 1));
                (at, in_name) = (back, from + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_shells_mean() {
        let is = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes());
        assert!(is("*", "") && is("*.jsonl", "a.b.jsonl") && is("??-*Z_*.j", "12-Z_Z_x.j"));
        assert!(is("a*b*c", "axbxbxc") && is("plain", "plain"));
        assert!(!is("*.jsonl", "a.json") && !is("??", "a") && !is("a*b*c", "axbx") && !is("", "a"));
    }

    #[test]
    fn what_is_named_goes_and_all_else_stays() {
        let world = tempfile::tempdir().unwrap();
        let at = |path: &str| world.path().join(path);
        for dir in ["p/one/memory", "p/two/0000-1111/sub", "elsewhere"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        for file in [
            "p/one/a.jsonl",
            "p/one/a.md",
            "p/two/0000-1111/sub/x",
            "elsewhere/y",
            "p/z",
        ] {
            fs::write(at(file), "").unwrap();
        }
        // A link is removed, not what it leads to.
        std::os::unix::fs::symlink(at("elsewhere"), at("p/one/b.jsonl")).unwrap();
        let patterns = ["p/*/*.jsonl", "p/*/????-????", "never/*/x", "p/z/x", "gone"];
        let patterns: Vec<PathBuf> = patterns.iter().map(|p| at(p)).collect();
        let patterns: Vec<&OsStr> = patterns.iter().map(|p| p.as_os_str()).collect();
        // It may be asked for again.
        for _ in 0..2 {
            forget(&patterns).unwrap();
            for (path, stays) in [
                ("p/one/a.jsonl", false),
                ("p/one/b.jsonl", false),
                ("p/two/0000-1111", false),
                ("p/one/a.md", true),
                ("p/one/memory", true),
                ("elsewhere/y", true),
                ("p/z", true),
            ] {
                assert_eq!(at(path).exists(), stays, "{path}");
            }
        }
        for bad in ["relative/*", "/a/../b", "/", "//x"] {
            assert!(forget(&[OsStr::new(bad)]).is_err(), "{bad}");
        }
    }
}
