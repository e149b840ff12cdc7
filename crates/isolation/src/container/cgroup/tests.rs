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
fn a_group_is_in_all_hierarchies_or_in_none_and_its_name_is_new() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let blocked = b.path().join("file");
    let hierarchies = |second: &Path| {
        let both = [(a.path(), "pids"), (second, "memory")];
        both.iter()
            .map(|(dir, controller)| hierarchy(Version::One, dir, &[controller]))
            .collect()
    };
    let groups = Cgroups {
        hierarchies: hierarchies(b.path()),
        refused: vec![],
    };
    let (first, second) = (
        groups.fresh().unwrap().unwrap(),
        groups.fresh().unwrap().unwrap(),
    );
    first.make().unwrap();
    second.make().unwrap();
    assert_ne!(first.name, second.name);
    assert_eq!(first.end().unwrap(), (0, 2));
    assert_eq!(groups.names(), BTreeSet::from([second.name.clone()]));
    assert_eq!(second.end().unwrap(), (0, 2));
    fs::write(&blocked, "").unwrap();
    let groups = Cgroups {
        hierarchies: hierarchies(&blocked),
        refused: vec![],
    };
    groups.fresh().unwrap().unwrap().make().unwrap_err();
    assert_eq!(fs::read_dir(a.path()).unwrap().count(), 0);
}
