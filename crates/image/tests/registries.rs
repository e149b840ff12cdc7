//! Registries: Debian's `docker-registry` itself, and one of our own for what that never does.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use image::{Digest, Error, Kind, LayerError, RegistryError};
use serde_json::json;

use crate::images::{Image, Packing};
use crate::layers::Layer;
use crate::server::{Request, Response, Server, honest, ranged};
use crate::wire;
use crate::world::{World, story, tree};

/// `ada` with the password `open sesame`, as `htpasswd -nbB` writes it.
const HTPASSWD: &str = "ada:$2y$05$7CihcWoJfhayIOE0qx/QsORwT1/daNPJ4tZEzRIZ/8CtJRdfgQbhW\n";
const BASIC: &str = "Basic YWRhOm9wZW4gc2VzYW1l";

/// Debian's `docker-registry`; ends with its test.
struct Registry {
    process: Child,
    address: SocketAddr,
    storage: PathBuf,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Registry {
    /// Returns nothing where there is no such program.
    fn start(world: &World, auth: bool) -> Option<Self> {
        let storage = world.path("registry");
        fs::create_dir(&storage).unwrap();
        let mut config = json!({
            "version": "0.1", "log": {"level": "info", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": storage}}, "http": {"addr": "127.0.0.1:0", "secret": "x"},
        });
        if auth {
            fs::write(world.path("htpasswd"), HTPASSWD).unwrap();
            config["auth"] = json!({"htpasswd": {"realm": "test", "path": world.path("htpasswd")}});
        }
        let file = world.path("registry.yml");
        fs::write(&file, config.to_string()).unwrap();
        let started = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut process) = started else {
            eprintln!("SKIPPED: there is no docker-registry (Debian package docker-registry)");
            return None;
        };
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let rest = line.split("listening on ").nth(1)?;
            rest.split(['"', ' ', ',']).next()?.parse().ok()
        });
        // Its log must be read, or it stops.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Some(Self {
            process,
            address: address.expect("it says where it listens"),
            storage,
        })
    }

    fn push(&self, name: &str, image: &Image, auth: bool) {
        let auth: &[_] = if auth {
            &[("Authorization", BASIC)]
        } else {
            &[]
        };
        for blob in image.blobs.iter().chain([&image.config]) {
            let begun = wire::request(
                self.address,
                "POST",
                &format!("/v2/{name}/blobs/uploads/"),
                auth,
                b"",
            );
            let location = begun
                .location
                .unwrap_or_else(|| panic!("upload refused with {}", begun.status));
            let path = location.split_once(&self.address.to_string()).unwrap().1;
            let headers = [auth, &[("Content-Type", "application/octet-stream")]].concat();
            let put = wire::request(
                self.address,
                "PUT",
                &format!("{path}&digest={}", Digest::of(blob)),
                &headers,
                blob,
            );
            assert_eq!(put.status, 201);
        }
        let headers = [
            auth,
            &[("Content-Type", "application/vnd.oci.image.manifest.v1+json")],
        ]
        .concat();
        let put = wire::request(
            self.address,
            "PUT",
            &format!("/v2/{name}/manifests/1"),
            &headers,
            &image.manifest,
        );
        assert_eq!(put.status, 201);
    }

    fn blob(&self, blob: &[u8]) -> PathBuf {
        let hex = Digest::of(blob).hex();
        self.storage
            .join("docker/registry/v2/blobs/sha256")
            .join(&hex[..2])
            .join(hex)
            .join("data")
    }
}

fn image() -> Image {
    let one = Layer::new()
        .file("bin/hello", vec![b'h'; 300_000])
        .file("gone", "")
        .done();
    let two = Layer::new()
        .file(".wh.gone", "")
        .file("etc/motd", "hi")
        .done();
    Image::with(
        [one, two],
        Packing::Gzip,
        json!({"Entrypoint": ["/bin/hello"], "Env": ["A=1"]}),
    )
}

fn check(pulled: &image::Pulled) {
    let found = tree(&pulled.root);
    assert_eq!(found[b"bin/hello".as_slice()].data.len(), 300_000);
    assert!(!found.contains_key(b"gone".as_slice()));
    assert_eq!(pulled.config.entrypoint, ["/bin/hello"]);
}

fn login(world: &World, config: &serde_json::Value) {
    fs::write(world.path("docker/config.json"), config.to_string()).unwrap();
}

#[test]
fn a_real_registry_gives_an_image_by_tag_and_by_digest() {
    let world = World::new();
    let Some(registry) = Registry::start(&world, false) else {
        return;
    };
    registry.push("team/hello", &image(), false);
    let pulled = world
        .pull(&format!("oci:{}/team/hello:1", registry.address))
        .unwrap();
    assert_eq!((pulled.digest, pulled.pulled), (image().digest(), true));
    check(&pulled);
    let again = world
        .pull(&format!(
            "oci:{}/team/hello@{}",
            registry.address,
            image().digest()
        ))
        .unwrap();
    assert_eq!((again.root, again.pulled), (pulled.root, false));
    let listed = world.store().list().unwrap();
    assert_eq!(listed[0].references.len(), 2);
    let error = world
        .pull(&format!("oci:{}/team/hello:2", registry.address))
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
    let error = world
        .pull(&format!("oci:{}/team/nothing:1", registry.address))
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
}

#[test]
fn a_real_registry_wants_a_password_and_gets_the_one_of_docker_login() {
    let world = World::new();
    let Some(registry) = Registry::start(&world, true) else {
        return;
    };
    registry.push("hello", &image(), true);
    let source = format!("oci:{}/hello:1", registry.address);
    let error = world.pull(&source).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error:?}");
    assert!(error.hint().unwrap().contains("docker login"), "{error:?}");
    let auth = |text: &str| json!({"auths": {registry.address.to_string(): {"auth": base64::engine::general_purpose::STANDARD.encode(text)}}});
    login(&world, &auth("ada:wrong"));
    let error = world.pull(&source).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error:?}");
    assert!(
        !format!("{error:?} {}", story(&error)).contains("wrong"),
        "{error:?}"
    );
    login(&world, &auth("ada:open sesame"));
    check(&world.pull(&source).unwrap());
}

#[test]
fn a_blob_that_is_damaged_in_a_real_registry_is_named() {
    let world = World::new();
    let Some(registry) = Registry::start(&world, false) else {
        return;
    };
    registry.push("hello", &image(), false);
    let path = registry.blob(&image().blobs[0]);
    let mut blob = fs::read(&path).unwrap();
    let middle = blob.len() / 2;
    blob[middle] ^= 1;
    fs::write(&path, blob).unwrap();
    let error = world
        .pull(&format!("oci:{}/hello:1", registry.address))
        .unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Layer {
                number: 1,
                source: LayerError::BlobDigest { .. },
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(
        error
            .to_string()
            .contains(&Digest::of(&image().blobs[0]).to_string()),
        "{error}"
    );
    assert_eq!(
        (world.staged().len(), world.store().list().unwrap().len()),
        (0, 0)
    );
}

#[test]
fn a_helper_program_is_asked_for_the_credentials() {
    let world = World::new();
    let server = Server::start(|request| match request.headers.get("authorization") {
        Some(header) if header == BASIC => honest(&image(), request),
        _ => Response::status(401).header("WWW-Authenticate", "Basic realm=\"x\""),
    });
    // Not in PATH of the tests, which share one environment: named by a path it would be refused.
    login(
        &world,
        &json!({"credHelpers": {server.address.to_string(): "../evil"}}),
    );
    let error = world
        .pull(&format!("oci:{}/x:1", server.address))
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error:?}");
    login(&world, &json!({"credsStore": "of-no-such-name"}));
    let error = world
        .pull(&format!("oci:{}/x:1", server.address))
        .unwrap_err();
    assert!(
        story(&error).contains("docker-credential-of-no-such-name"),
        "{error:?}"
    );
    let helper = world.path("docker-credential-test");
    let script = format!(
        "#!/bin/sh\nread -r server\ntest \"$1 $server\" = 'get {}' || exit 3\necho '{{\"ServerURL\":\"x\",\"Username\":\"ada\",\"Secret\":\"open sesame\"}}'\n",
        server.address
    );
    // By another process: a file that a test beside this one holds open for writing cannot be run.
    let made = std::process::Command::new("sh")
        .args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""])
        .arg(&helper)
        .arg(script)
        .status();
    assert!(made.unwrap().success());
    login(
        &world,
        &json!({"credHelpers": {server.address.to_string(): "test"}}),
    );
    let source = format!("oci:{}/x:1", server.address);
    let out = with_path(
        &world.path("."),
        &world.path("data/images"),
        &world.path("docker"),
        &source,
    );
    assert!(out.contains("pulled true"), "{out}");
}

/// Pulls in a process of its own, with another `PATH`.
fn with_path(path: &Path, store: &Path, docker: &Path, source: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "registries::pulls_with_the_environment",
            "--exact",
            "--nocapture",
            "--ignored",
        ])
        .env(
            "PATH",
            format!("{}:{}", path.display(), std::env::var("PATH").unwrap()),
        )
        .env("DOCKER_CONFIG", docker)
        .env("IMAGE_TEST_STORE", store)
        .env("IMAGE_TEST_SOURCE", source)
        .output()
        .unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
#[ignore = "a part of another test"]
fn pulls_with_the_environment() {
    let (Some(store), Ok(source)) = (
        std::env::var_os("IMAGE_TEST_STORE"),
        std::env::var("IMAGE_TEST_SOURCE"),
    ) else {
        return;
    };
    let store = image::Store::open(Path::new(&store)).unwrap();
    let pulled = crate::world::block_on(store.pull(&source.parse().unwrap(), |_| {}));
    eprintln!("pulled {:?}", pulled.unwrap().pulled);
}

#[test]
fn a_token_is_fetched_where_the_registry_says() {
    let world = World::new();
    let tokens = Server::start(|request| {
        assert!(
            request.path.starts_with(
                "/token?service=here%20%26%20there&scope=repository%3Ateam%2Fx%3Apull"
            ),
            "{}",
            request.path
        );
        match request.headers.get("authorization").map(String::as_str) {
            Some(BASIC) => Response::ok(r#"{"token":"t0ken"}"#),
            _ => Response::status(401),
        }
    });
    let realm = format!("http://{}/token", tokens.address);
    let server = Server::start(move |request| {
        match request.headers.get("authorization").map(String::as_str) {
            Some("Bearer t0ken") => honest(&image(), request),
            _ => {
                let challenge = format!(
                    "Bearer realm=\"{realm}\",service=\"here & there\",scope=\"repository:team/x:pull,push\""
                );
                Response::status(401).header("WWW-Authenticate", challenge)
            }
        }
    });
    let source = format!("oci:{}/team/x:1", server.address);
    assert_eq!(world.pull(&source).unwrap_err().kind(), Kind::Denied);
    login(
        &world,
        &json!({"auths": {format!("http://{}/v2/", server.address): {"username": "ada", "password": "open sesame"}}}),
    );
    check(&world.pull(&source).unwrap());
    assert!(server.asked().iter().all(|r| {
        r.headers
            .get("authorization")
            .is_none_or(|h| h == "Bearer t0ken")
    }));
}

#[test]
fn an_identity_token_is_posted_for_a_token() {
    let world = World::new();
    let tokens = Server::start(|request| {
        let good = request.method == "POST"
            && request.body.contains("grant_type=refresh_token")
            && request.body.contains("refresh_token=id%2Ftoken");
        if good {
            Response::ok(r#"{"access_token":"t0ken"}"#)
        } else {
            Response::status(400)
        }
    });
    let realm = format!("http://{}/token", tokens.address);
    let server = Server::start(move |request| {
        match request.headers.get("authorization").map(String::as_str) {
            Some("Bearer t0ken") => honest(&image(), request),
            _ => Response::status(401)
                .header("WWW-Authenticate", format!("Bearer realm=\"{realm}\"")),
        }
    });
    login(
        &world,
        &json!({"auths": {server.address.to_string(): {"identitytoken": "id/token"}}}),
    );
    check(&world.pull(&format!("oci:{}/x:1", server.address)).unwrap());
}

#[test]
fn a_redirect_to_another_host_does_not_see_the_credentials() {
    let world = World::new();
    let store = Server::start(|request| honest(&image(), request));
    let elsewhere = store.address;
    let server = Server::start(move |request| {
        match request.headers.get("authorization").map(String::as_str) {
            Some(BASIC) if request.path.contains("/blobs/") => Response::status(307).header(
                "Location",
                format!("http://{elsewhere}{}?signed=1", request.path).replace("?signed=1", ""),
            ),
            Some(BASIC) => honest(&image(), request),
            _ => Response::status(401).header("WWW-Authenticate", "Basic realm=x"),
        }
    });
    login(
        &world,
        &json!({"auths": {server.address.to_string(): {"username": "ada", "password": "open sesame"}}}),
    );
    check(&world.pull(&format!("oci:{}/x:1", server.address)).unwrap());
    let asked = store.asked();
    assert_eq!(asked.len(), 3);
    assert!(
        asked
            .iter()
            .all(|request| !request.headers.contains_key("authorization")),
        "{asked:?}"
    );
}

#[test]
fn a_redirect_to_an_unencrypted_host_or_in_circles_is_refused() {
    for (location, reason) in [
        ("http://192.0.2.1/x", "only https"),
        ("file:///etc/passwd", ""),
        ("/v2/x/manifests/1", "too many redirects"),
        ("http://a:b@localhost/x", "credentials"),
    ] {
        let world = World::new();
        let server = Server::start(move |_| Response::status(302).header("Location", location));
        let error = world
            .pull(&format!("oci:{}/x:1", server.address))
            .unwrap_err();
        assert!(
            matches!(
                &error,
                Error::Registry {
                    source: RegistryError::Misled { .. },
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(story(&error).contains(reason), "{error:?}");
    }
}

#[test]
fn a_download_that_breaks_off_goes_on_where_it_was() {
    for knows_ranges in [true, false] {
        let world = World::new();
        let big = Image::with(
            [Layer::new().file("x", noise(2 << 20)).done()],
            Packing::Plain,
            json!({}),
        );
        let (served, breaks) = (big.clone(), AtomicUsize::new(0));
        let server = Server::start(move |request| {
            let mut request = request.clone();
            if !knows_ranges {
                request.headers.remove("range");
            }
            let mut response = honest(&served, &request);
            if response.body.len() > 100_000 && breaks.fetch_add(1, Ordering::Relaxed) < 3 {
                let more = 500_000 * breaks.load(Ordering::Relaxed);
                response.cut =
                    Some(if knows_ranges { 500_000 } else { more }.min(response.body.len() - 1));
            }
            response
        });
        let pulled = world.pull(&format!("oci:{}/x:1", server.address)).unwrap();
        assert!(tree(&pulled.root)[b"x".as_slice()].data == noise(2 << 20));
        let ranges: Vec<Option<String>> = blobs(&server, &big)
            .iter()
            .map(|r| r.headers.get("range").cloned())
            .collect();
        assert_eq!(ranges.len(), 4, "{ranges:?}");
        if knows_ranges {
            assert_eq!(ranges[3].as_deref(), Some("bytes=1500000-"));
        }
    }
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

fn blobs(server: &Server, image: &Image) -> Vec<Request> {
    let layer = Digest::of(&image.blobs[0]).to_string();
    server
        .asked()
        .into_iter()
        .filter(|r| r.path.ends_with(&layer))
        .collect()
}

#[test]
fn a_download_that_never_comes_through_is_given_up() {
    let world = World::new();
    let server = Server::start(|request| {
        let mut response = honest(&image(), request);
        if request
            .path
            .ends_with(&Digest::of(&image().blobs[0]).to_string())
        {
            response.cut = Some(0);
        }
        response
    });
    let error = world
        .pull(&format!("oci:{}/x:1", server.address))
        .unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Registry {
                source: RegistryError::Broken { sent: 0, .. },
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!((error.kind(), world.staged().len()), (Kind::Unavailable, 0));
}

#[test]
fn a_registry_that_is_busy_is_asked_again() {
    let world = World::new();
    let count = AtomicUsize::new(0);
    let server = Server::start(move |request| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Response::status(503),
        1 => Response::status(429).header("Retry-After", "0"),
        _ => honest(&image(), request),
    });
    check(&world.pull(&format!("oci:{}/x:1", server.address)).unwrap());
}

#[test]
fn what_is_longer_than_it_should_be_is_cut_off() {
    let world = World::new();
    let server = Server::start(|request| {
        if request
            .path
            .ends_with(&Digest::of(&image().blobs[0]).to_string())
        {
            return ranged(&[&image().blobs[0][..], &[0; 100_000]].concat(), request);
        }
        honest(&image(), request)
    });
    let error = world
        .pull(&format!("oci:{}/x:1", server.address))
        .unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Layer {
                source: LayerError::BlobSize { .. },
                ..
            }
        ),
        "{error:?}"
    );
    let server = Server::start(|_| Response::ok(vec![b' '; 9 << 20]));
    let error = world
        .pull(&format!("oci:{}/x:1", server.address))
        .unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Registry {
                source: RegistryError::TooLarge { .. },
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_manifest_or_configuration_that_was_swapped_is_refused() {
    let world = World::new();
    let other = Image::of([Layer::new().file("evil", "").done()]);
    let server = Server::start(move |request| {
        if request.path.contains("/manifests/") {
            Response::ok(other.manifest.clone())
        } else {
            honest(&other, request)
        }
    });
    let error = world
        .pull(&format!("oci:{}/x@{}", server.address, image().digest()))
        .unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Registry {
                source: RegistryError::Digest {
                    what: "manifest",
                    ..
                },
                ..
            }
        ),
        "{error:?}"
    );
    let server = Server::start(|request| {
        let is_config = request
            .path
            .ends_with(&Digest::of(&image().config).to_string());
        if is_config {
            Response::ok(vec![b' '; image().config.len()])
        } else {
            honest(&image(), request)
        }
    });
    let error = world
        .pull(&format!("oci:{}/x:1", server.address))
        .unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Registry {
                source: RegistryError::Digest {
                    what: "configuration",
                    ..
                },
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn an_index_leads_to_this_machines_image() {
    let world = World::new();
    let server = Server::start(|request| {
        if request.path.ends_with("/manifests/many") {
            let mut descriptor = image().descriptor();
            descriptor["platform"] =
                json!({"os": "linux", "architecture": crate::images::architecture()});
            let other = json!({"mediaType": "x", "digest": Digest::of(b"other"), "size": 1, "platform": {"os": "windows", "architecture": "amd64"}});
            let list = "application/vnd.docker.distribution.manifest.list.v2+json";
            let index =
                json!({"schemaVersion": 2, "mediaType": list, "manifests": [other, descriptor]});
            return Response::ok(index.to_string()).header("Content-Type", list);
        }
        honest(&image(), request)
    });
    let pulled = world
        .pull(&format!("oci:{}/x:many", server.address))
        .unwrap();
    assert_eq!(pulled.digest, image().digest());
}

#[test]
fn a_registry_that_is_not_there_is_named() {
    let world = World::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = world.pull(&format!("oci:{address}/x:1")).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(story(&error).contains(&address.to_string()), "{error:?}");
}
