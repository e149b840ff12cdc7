//! The root of `image: host`: a small generated directory under which the host's system directories are mounted.
//!
//! What is in it is chosen by name. Nothing of the host's homes, of `/var` or `/run`, no file that only some may read, and
//! of `/etc` only what programs need to run. It is made once for a state of the host's `/etc`; a changed host gets a new one
//! beside it, since sandboxes may still stand on the old one.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::plan::{Owners, Place, Tree};
use crate::Error;

/// Changes when what is generated changes.
const FORMAT: &str = "2";
/// No file that programs need from `/etc` is larger.
const MAX_FILE: u64 = 4 << 20;
/// More entries of `/opt` than anybody has; each is a mount.
const MAX_OPT: usize = 100;

/// Copied from `/etc`.
const ETC: &[&str] = &[
    "X11",
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "fedora-release",
    "fonts",
    "gai.conf",
    "groff",
    "host.conf",
    "inputrc",
    "issue",
    "java",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "login.defs",
    "lsb-release",
    "magic",
    "magic.mime",
    "manpath.config",
    "maven",
    "mime.types",
    "mke2fs.conf",
    "netconfig",
    "networks",
    "os-release",
    "perl",
    "pki",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "skel",
    "ssl",
    "terminfo",
    "timezone",
    "vim",
    "xattr.conf",
    "xml",
];
/// Never copied, wherever below they are: keys beside certificates.
const NEVER: &[&str] = &["private", "rsyslog", "entitlement", "consumer"];
/// Written by us.
const WRITTEN: &[(&str, &str)] = &[
    // Every sandbox has its own over it.
    ("machine-id", "uninitialized\n"),
    (
        "hosts",
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    ),
    (
        "resolv.conf",
        "# no resolver: nothing leaves the sandbox but through its gateway\n",
    ),
    (
        "nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nrpc: files\n",
    ),
    (
        "passwd",
        "root:x:0:0:root:/root:/bin/bash\n\
         daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
         bin:x:2:2:bin:/bin:/usr/sbin/nologin\n\
         sys:x:3:3:sys:/dev:/usr/sbin/nologin\n\
         mail:x:8:8:mail:/var/mail:/usr/sbin/nologin\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    (
        "group",
        "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\nmail:x:8:\nusers:x:100:\nnogroup:x:65534:\n",
    ),
];
const DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("opt/durable", 0o755),
    ("proc", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("run/durable", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/mail", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
    ("workspace", 0o755),
];
const LINKS: &[(&str, &str)] = &[
    ("etc/mtab", "/proc/mounts"),
    ("var/lock", "/run/lock"),
    ("var/run", "/run"),
];
/// Links into `/usr` where the host is merged, else directories that are mounted like it.
const SYSTEM: &[&str] = &["bin", "lib", "lib32", "lib64", "libx32", "sbin"];

/// What changes when a part of the host's `/etc` does.
const WITNESSES: &[&str] = &[
    "/etc",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf.d",
    "/etc/profile.d",
    "/etc/ssl",
    "/etc/ssl/certs",
    "/etc/pki",
    "/etc/localtime",
    "/opt",
    "/bin",
    "/lib",
];

/// Where in the data directory the generated roots are.
const HOME: &str = "image-host";

/// Returns the generated root in data directory `data`, making it if there is none for the host as it is.
pub(super) fn prepare(data: &Path) -> Result<PathBuf, Error> {
    let home = data.join(HOME);
    let name = fingerprint();
    let root = home.join(&name);
    if root.is_dir() {
        return Ok(root);
    }
    // Sandboxes that start at the same moment make it once; another process has a draft of its own.
    static MAKING: Mutex<()> = Mutex::new(());
    let _turn = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if root.is_dir() {
        return Ok(root);
    }
    let draft = home.join(format!("new-{name}-{}", std::process::id()));
    let steps = || -> io::Result<()> {
        remove(&draft)?;
        fs::create_dir_all(&draft)?;
        generate(&draft)?;
        // A power cut must not leave the name without the content: it would stay for ever.
        rustix::fs::syncfs(fs::File::open(&draft)?)?;
        match fs::rename(&draft, &root) {
            // Made by somebody else meanwhile.
            Err(_) if root.is_dir() => remove(&draft),
            done => done,
        }
    };
    steps().map_err(|e| {
        Error::step(
            format!("generate the root of `image: host` in {}", home.display()),
            e,
        )
    })?;
    Ok(root)
}

/// Removes generated roots other than the current one. Returns how many.
pub(super) fn sweep(data: &Path) -> Result<usize, Error> {
    let home = data.join(HOME);
    let current = home.join(fingerprint());
    let mut removed = 0;
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let path = entry.path();
        if path != current {
            remove(&path).map_err(|e| Error::step(format!("remove {}", path.display()), e))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// The host directories that are mounted in it. What contains one of `hidden` is left out, or refused where it is needed.
pub(super) fn trees(hidden: &[&Path]) -> Result<Vec<Tree>, Error> {
    let at = |path: PathBuf| Tree {
        source: path.clone(),
        place: Place::At(path),
        owners: Owners::Nobody,
    };
    let hides = |path: &Path| hidden.iter().find(|h| h.starts_with(path));
    let mut found = Vec::new();
    for name in ["usr", "nix"].iter().chain(SYSTEM) {
        let path = Path::new("/").join(name);
        let is_directory = fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir());
        if !is_directory {
            continue;
        }
        if let Some(hidden) = hides(&path) {
            return Err(Error::Image {
                path,
                why: format!(
                    "sandboxes see it, and it contains the data directory's {}",
                    hidden.display()
                ),
            });
        }
        found.push(at(path));
    }
    let entries = fs::read_dir("/opt").into_iter().flatten().flatten();
    let opt = entries
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()) && e.file_name() != "durable")
        .map(|e| e.path())
        .filter(|path| hides(path).is_none());
    found.extend(opt.take(MAX_OPT).map(at));
    Ok(found)
}

fn fingerprint() -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(FORMAT.as_bytes());
    for path in WITNESSES {
        if let Ok(m) = fs::symlink_metadata(path) {
            for number in [
                m.ino(),
                m.size(),
                m.mtime().cast_unsigned(),
                m.mtime_nsec().cast_unsigned(),
            ] {
                hash.update(&number.to_le_bytes());
            }
        }
        hash.update(&[0]);
    }
    hash.finalize().to_hex()[..16].to_owned()
}

fn generate(root: &Path) -> io::Result<()> {
    set_mode(root, 0o755)?;
    for (dir, mode) in DIRECTORIES {
        let path = root.join(dir);
        fs::create_dir(&path)?;
        set_mode(&path, *mode)?;
    }
    for (link, target) in LINKS {
        symlink(target, root.join(link))?;
    }
    for name in SYSTEM {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            symlink(target, root.join(name))?;
        }
    }
    // A place to mount on that is missing here would be made in every workspace: a change that nobody made.
    for tree in trees(&[]).map_err(io::Error::other)? {
        let path = root.join(tree.source.strip_prefix("/").unwrap_or(&tree.source));
        fs::create_dir(&path)?;
        set_mode(&path, 0o755)?;
    }
    for name in ETC {
        copy(&Path::new("/etc").join(name), &root.join("etc").join(name))?;
    }
    for (name, text) in WRITTEN {
        let path = root.join("etc").join(name);
        fs::write(&path, text)?;
        set_mode(&path, 0o644)?;
    }
    Ok(())
}

/// Copies what everybody may read; passes over the rest and over what vanishes meanwhile.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(from) else {
        return Ok(());
    };
    let kind = found.file_type();
    let open_to_all = found.mode() & 0o004 != 0;
    if kind.is_symlink() {
        let Ok(target) = fs::read_link(from) else {
            return Ok(());
        };
        symlink(target, to)
    } else if kind.is_dir() && found.mode() & 0o005 == 0o005 {
        let Ok(entries) = fs::read_dir(from) else {
            return Ok(());
        };
        fs::create_dir(to)?;
        set_mode(to, 0o755)?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !NEVER.iter().any(|n| n.as_bytes() == name.as_bytes()) {
                copy(&entry.path(), &to.join(name))?;
            }
        }
        Ok(())
    } else if kind.is_file() && open_to_all && found.size() <= MAX_FILE {
        let Ok(content) = fs::read(from) else {
            return Ok(());
        };
        fs::write(to, content)?;
        set_mode(
            to,
            if found.mode() & 0o100 != 0 {
                0o755
            } else {
                0o644
            },
        )
    } else {
        Ok(())
    }
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_programs_need_and_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let root = prepare(dir.path()).unwrap();
        assert_eq!(prepare(dir.path()).unwrap(), root);
        for there in [
            "etc/passwd",
            "etc/hosts",
            "etc/ld.so.cache",
            "tmp",
            "workspace",
            "var/tmp",
        ] {
            assert!(root.join(there).exists(), "{there}");
        }
        for never in [
            "etc/shadow",
            "etc/gshadow",
            "etc/sudoers",
            "etc/ssh",
            "etc/ssl/private",
            "etc/pip.conf",
            "etc/npmrc",
        ] {
            assert!(!root.join(never).exists(), "{never}");
        }
        for tree in trees(&[]).unwrap() {
            let point = root.join(tree.source.strip_prefix("/").unwrap());
            assert!(
                point.is_dir(),
                "{} would be made in workspaces",
                point.display()
            );
        }
        let id = fs::read_to_string(root.join("etc/machine-id")).unwrap();
        assert_eq!(id, "uninitialized\n", "the host's own stays outside");
        let passwd = fs::read_to_string(root.join("etc/passwd")).unwrap();
        assert!(passwd.starts_with("root:x:0:0:"));
        assert_eq!(
            fs::metadata(root.join("tmp")).unwrap().mode() & 0o7777,
            0o1777
        );
    }

    #[test]
    fn starts_at_the_same_moment_find_a_whole_root() {
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let root = prepare(dir.path()).unwrap();
                        assert!(root.join("etc/group").exists());
                        assert!(fs::symlink_metadata(root.join("bin")).is_ok());
                    });
                }
            });
        }
    }

    #[test]
    fn only_old_roots_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let current = prepare(dir.path()).unwrap();
        let old = current.with_file_name("old");
        fs::create_dir(&old).unwrap();
        assert_eq!(sweep(dir.path()).unwrap(), 1);
        assert!(current.exists() && !old.exists());
    }

    #[test]
    fn a_directory_of_ours_in_a_system_directory_is_refused() {
        assert!(matches!(
            trees(&[Path::new("/usr/local/data")]),
            Err(Error::Image { .. })
        ));
        let opt = Path::new("/opt/ours/data");
        assert!(
            trees(&[opt])
                .unwrap()
                .iter()
                .all(|t| !opt.starts_with(&t.source))
        );
    }
}
