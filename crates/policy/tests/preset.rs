//! Presets hold what real tools ask for.

use policy::{Policy, presets};

use crate::world::{policy, said};

#[test]
fn every_preset_is_a_policy_and_names_itself() {
    let names: Vec<_> = presets().map(|preset| preset.name).collect();
    assert_eq!(
        names,
        [
            "anthropic",
            "crates",
            "debian",
            "github-read",
            "go",
            "npm",
            "openai",
            "pypi"
        ]
    );
    for preset in presets() {
        Policy::parse(preset.text()).unwrap_or_else(|error| panic!("{}: {error}", preset.name));
        assert!(
            policy(&format!("presets = [\"{}\"]", preset.name))
                .ports()
                .is_empty()
        );
    }
}

#[test]
fn what_the_tools_ask_leaves() {
    let all = format!(
        "presets = {:?}",
        presets().map(|preset| preset.name).collect::<Vec<_>>()
    );
    let rules = policy(&all);
    for (method, url, by) in [
        (
            "GET",
            "https://registry.npmjs.org/@babel%2fcore",
            "npm/registry",
        ),
        (
            "GET",
            "https://registry.npmjs.org/react/-/react-19.0.0.tgz",
            "npm/registry",
        ),
        (
            "POST",
            "https://registry.npmjs.org/-/npm/v1/security/advisories/bulk",
            "npm/audit",
        ),
        (
            "GET",
            "https://registry.yarnpkg.com/left-pad",
            "npm/registry",
        ),
        (
            "GET",
            "https://nodejs.org/download/release/v24.0.0/node-v24.0.0-headers.tar.gz",
            "npm/node",
        ),
        ("GET", "https://pypi.org/simple/requests/", "pypi/index"),
        (
            "GET",
            "https://files.pythonhosted.org/packages/aa/bb/x-1.0-py3-none-any.whl",
            "pypi/index",
        ),
        (
            "GET",
            "https://index.crates.io/se/rd/serde",
            "crates/registry",
        ),
        (
            "GET",
            "https://static.crates.io/crates/serde/1.0.0/download",
            "crates/registry",
        ),
        (
            "GET",
            "https://static.rust-lang.org/dist/channel-rust-stable.toml.sha256",
            "crates/rustup",
        ),
        (
            "GET",
            "https://github.com/rust-lang/crates.io-index/info/refs?service=git-upload-pack",
            "crates/git-index",
        ),
        (
            "GET",
            "http://deb.debian.org/debian/./dists/stable/InRelease",
            "debian/archive",
        ),
        (
            "GET",
            "https://security.debian.org/debian-security/dists/stable-security/InRelease",
            "debian/archive",
        ),
        (
            "GET",
            "https://proxy.golang.org/github.com/!azure/x/@v/list",
            "go/proxy",
        ),
        (
            "GET",
            "https://sum.golang.org/lookup/golang.org/x/net@v0.1.0",
            "go/proxy",
        ),
        (
            "GET",
            "https://dl.google.com/go/go1.25.0.linux-amd64.tar.gz",
            "go/downloads",
        ),
        (
            "GET",
            "https://github.com/a/b.git/info/refs?service=git-upload-pack",
            "github-read/git",
        ),
        (
            "POST",
            "https://github.com/a/b.git/git-upload-pack",
            "github-read/git",
        ),
        (
            "GET",
            "https://github.com/a/b/releases/download/v1/x.tar.gz",
            "github-read/web",
        ),
        (
            "GET",
            "https://release-assets.githubusercontent.com/x?sig=y",
            "github-read/content",
        ),
        (
            "GET",
            "https://api.github.com/repos/a/b/issues",
            "github-read/api",
        ),
        (
            "POST",
            "https://api.anthropic.com/v1/messages",
            "anthropic/api",
        ),
        ("POST", "https://api.openai.com/v1/responses", "openai/api"),
        ("GET", "wss://api.openai.com/v1/responses", "openai/api"),
    ] {
        assert_eq!(
            said(&rules, method, url),
            format!("allow {by}"),
            "{method} {url}"
        );
    }
}

#[test]
fn a_preset_takes_the_addresses_of_a_mirror() {
    let host = crate::world::host("api.anthropic.com");
    let ip = "10.1.2.3".parse().unwrap();
    let without = policy("presets = [\"anthropic\"]");
    assert!(without.dial(&host, 443, ip).is_err());
    let with =
        policy("presets = [{ name = \"anthropic\", addresses = [\"10.1.0.0/16\"] }, \"openai\"]");
    assert!(with.dial(&host, 443, ip).is_ok());
    let other = crate::world::host("api.openai.com");
    assert!(with.dial(&other, 443, ip).is_err());
}
