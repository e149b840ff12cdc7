//! A tree whose paths take far more room than itself is told of, and not told.

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use tree::{Error, Options, View, changes};

#[test]
fn paths_without_end_are_an_error_and_not_all_of_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (deep, empty) = (dir.path().join("deep"), dir.path().join("empty"));
    std::fs::create_dir(&deep).unwrap();
    std::fs::create_dir(&empty).unwrap();
    let name = "d".repeat(250);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, &deep, flags, Mode::empty()).unwrap();
    // 250 bytes more at each step: some 300 MiB together.
    for _ in 0..1600 {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = openat(&at, &name, flags, Mode::empty()).unwrap();
    }
    let view = |path: &std::path::Path| View {
        upper: Some(path.to_owned()),
        lower: None,
    };
    let found = changes(&view(&empty), &view(&deep), &Options::default());
    let error = found.map(|list| list.len()).unwrap_err();
    assert!(matches!(error, Error::TooMuch { .. }), "{error}");
    assert!(error.to_string().len() < 1000, "{error}");
}
