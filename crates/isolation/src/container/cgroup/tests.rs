use super::*;

fn hierarchy(version: Version, base: &Path, controllers: &[&'static str]) -> Hierarchy {
    Hierarchy {
        version,
        outside: base.to_owned(),
        base: base.to_owned(),
        controllers: controllers.iter().copied().collect(),
    }
}

#[test]
fn both_versions_are_found_where_they_are_mounted() {
    let text = "\
30 24 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:6 - cgroup cgroup rw,cpu,cpuacct
33 30 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";
    let found = parse_mounts(text);
    assert_eq!(
        found[0],
        (
            Version::Two,
            "/sys/fs/cgroup/unified".into(),
            BTreeSet::new()
        )
    );
    assert_eq!(
        found[1],
        (
            Version::One,
            "/sys/fs/cgroup/cpu,cpuacct".into(),
            BTreeSet::from(["cpu"])
        )
    );
    assert!(found[2].2.is_empty());
}

#[test]
fn a_limit_without_its_controller_is_refused_unless_it_is_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let groups = Cgroups {
        hierarchies: vec![hierarchy(Version::One, dir.path(), &["memory"])],
        refused: vec![],
    };
    groups.check(&Limits::default()).unwrap();
    groups
        .check(&Limits {
            memory_bytes: Some(1 << 20),
            ..Limits::default()
        })
        .unwrap();
    let pids = groups.check(&Limits {
        pids: Some(7),
        ..Limits::default()
    });
    assert!(matches!(pids, Err(Error::Limit { limit: "pids", .. })));
    let cpu = groups.check(&Limits {
        cpu_milli: Some(500),
        ..Limits::default()
    });
    assert!(matches!(cpu, Err(Error::Limit { limit: "cpu", .. })));
}

#[test]
fn limits_are_written_in_the_words_of_each_version() {
    let limits = Limits {
        memory_bytes: Some(4096),
        pids: Some(9),
        cpu_milli: Some(1500),
        ..Limits::default()
    };
    let dir = Path::new("/nowhere");
    let one = settings(&hierarchy(Version::One, dir, &CONTROLLERS), &limits);
    assert!(one.contains(&("memory.limit_in_bytes", "4096".to_owned(), true)));
    assert!(one.contains(&("cpu.cfs_quota_us", "150000".to_owned(), true)));
    let two = settings(&hierarchy(Version::Two, dir, &CONTROLLERS), &limits);
    assert!(two.contains(&("cpu.max", "150000 100000".to_owned(), true)));
    assert!(two.contains(&("memory.swap.max", "0".to_owned(), false)));
    assert!(two.contains(&("pids.max", "9".to_owned(), true)));
    assert_eq!(settings(&hierarchy(Version::Two, dir, &[]), &limits), []);
}

#[test]
fn a_name_that_is_taken_in_one_hierarchy_is_used_in_none() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let hierarchies = vec![
        hierarchy(Version::One, a.path(), &["pids"]),
        hierarchy(Version::One, b.path(), &["memory"]),
    ];
    let groups = Cgroups {
        hierarchies,
        refused: vec![],
    };
    let taken = format!("{}-0", std::process::id());
    fs::create_dir(b.path().join(&taken)).unwrap();
    let group = groups.create().unwrap().unwrap();
    assert_ne!(group.name, taken);
    assert!(!a.path().join(&taken).exists());
    assert_eq!(group.end().unwrap(), (0, 2));
    assert_eq!(groups.names(), BTreeSet::from([taken]));
}
