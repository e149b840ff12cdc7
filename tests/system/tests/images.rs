//! Images that are unpacked: made by hand here, as `docker save` writes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::{Res, World, process, trouble};

/// Two layers over busybox: the second deletes a file of the first.
const MAKE: &str = r#"
set -eu
cd "$1"
mkdir -p one/bin one/etc one/srv one/root two/srv out
cp /bin/busybox one/bin/busybox
for a in sh cat ls id env pwd echo hostname; do ln -s busybox one/bin/$a; done
printf 'root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/srv:/bin/sh\n' > one/etc/passwd
printf 'root:x:0:\nada:x:1000:\n' > one/etc/group
echo gone > one/srv/gone; echo kept > one/srv/kept
: > two/srv/.wh.gone; echo added > two/srv/added
for l in one two; do tar --sort=name --owner=0 --group=0 -C $l -cf out/$l.tar .; done
sum() { sha256sum < out/$1.tar | cut -d' ' -f1; }
cat > out/config.json <<CONFIG
{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:$(sum one)","sha256:$(sum two)"]},
 "config":{"Entrypoint":["/bin/echo","hello"],"Cmd":["world"],"Env":["PATH=/bin","COLOUR=blue"],"User":"ada","WorkingDir":"/srv"}}
CONFIG
echo '[{"Config":"config.json","RepoTags":["test:1"],"Layers":["one.tar","two.tar"]}]' > out/manifest.json
tar -C out -cf image.tar manifest.json config.json one.tar two.tar
"#;

fn archive(dir: &Path) -> Res<PathBuf> {
    let arch = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    let script = MAKE.replace("amd64", arch);
    let made = Command::new("bash")
        .args(["-c", &script, "make"])
        .arg(dir)
        .output()?;
    if !made.status.success() {
        return Err(trouble(String::from_utf8_lossy(&made.stderr).into_owned()));
    }
    Ok(dir.join("image.tar"))
}

#[test]
fn an_image_is_unpacked_once_and_what_it_says_of_programs_holds() -> Res<()> {
    let world = World::new("images")?;
    let file = archive(world.root())?;
    let image = format!("docker-archive:{}", file.display());
    world.create("a", &["--image", &image])?;
    world.create("b", &["--image", &image, "--sandbox-env", "COLOUR=red"])?;
    let run = |name: &str, script: &str| world.must(&["exec", name, "--", "sh", "-c", script]);
    assert_eq!(
        run("a", "id -un; pwd; echo $COLOUR; ls; cat kept")?.out(),
        "ada\n/srv\nblue\nadded\nkept\nkept\n"
    );
    assert_eq!(run("b", "echo $COLOUR")?.out(), "red\n");
    assert_eq!(
        world.must(&["exec", "a", "--op", "own"])?.out(),
        "hello world\n"
    );
    let list = world.must(&["image", "ls", "--json"])?.out();
    let one: serde_json::Value = serde_json::from_str(list.trim())?;
    assert_eq!(one["used_by"], serde_json::json!(["a", "b"]));
    let used = world.run(&["image", "rm", &image])?;
    assert_eq!(used.code, Some(125), "{}", used.err());
    // The image's own files are part of no diff, and stay when the archive is gone.
    std::fs::remove_file(&file)?;
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    let change = "echo changed > kept; echo new > new";
    world.must(&["exec", "a", "-u", "0", "--", "sh", "-c", change])?;
    let diff = world.must(&["diff", "a", "--patch"])?.out();
    assert!(
        diff.contains("-kept\n+changed") && diff.contains("+new"),
        "{diff}"
    );
    assert!(!diff.contains("busybox"), "{diff}");
    let log = world.must(&["log", "a", "--json"])?.out();
    let first = log.lines().next().unwrap_or_default();
    assert!(first.contains(r#""image_digest":"sha256:"#), "{first}");
    world.must(&["rm", "a", "b"])?;
    world.must(&["image", "rm", &image])?;
    assert_eq!(world.must(&["image", "ls"])?.out(), "");
    world.end_clean()
}

#[test]
fn what_is_no_image_is_told_in_a_line_and_leaves_nothing() -> Res<()> {
    let world = World::new("no-image")?;
    let file = world.root().join("not.tar");
    std::fs::write(&file, "this is no archive")?;
    for image in [
        format!("docker-archive:{}", file.display()),
        format!("oci-archive:{}/missing", world.root().display()),
        "oci:127.0.0.1:1/none:latest".to_owned(),
        "oci:Not/A/Reference".to_owned(),
        "tar:x".to_owned(),
    ] {
        let done = world.run(&["create", "x", "--image", &image])?;
        assert_eq!(done.code, Some(125), "{image}");
        assert_eq!(done.err().lines().count(), 1, "{image}: {}", done.err());
    }
    let all = world.must(&["ps"])?.out();
    assert!(!all.lines().any(|line| line.starts_with('x')), "{all}");
    assert_eq!(world.must(&["image", "ls"])?.out(), "");
    world.end_clean()
}
