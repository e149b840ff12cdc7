//! Sets of rules that a policy takes in by name: the hosts that well-known tools ask, those that they are sent on to included.
//!
//! Each is a policy in this crate's own format. What a preset allows is to read; only the model providers are written to. Any
//! host that is allowed can be told something, and be it by the path of a `GET`: presets keep to hosts whose makers are known.

/// A set of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// How a policy names it.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    text: &'static str,
}

const ALL: [Preset; 8] = [
    Preset {
        name: "anthropic",
        about: "the API of Anthropic",
        text: include_str!("../presets/anthropic.toml"),
    },
    Preset {
        name: "crates",
        about: "crates.io and Rust's toolchains: cargo, rustup; no publishing",
        text: include_str!("../presets/crates.toml"),
    },
    Preset {
        name: "debian",
        about: "Debian's archives: apt",
        text: include_str!("../presets/debian.toml"),
    },
    Preset {
        name: "github-read",
        about: "what GitHub shows to everybody: clones, releases, raw files, the API's GET",
        text: include_str!("../presets/github-read.toml"),
    },
    Preset {
        name: "go",
        about: "Go's module proxy, checksums and toolchains",
        text: include_str!("../presets/go.toml"),
    },
    Preset {
        name: "npm",
        about: "the npm registry and audit, yarn's names for it, headers of Node.js; no publishing",
        text: include_str!("../presets/npm.toml"),
    },
    Preset {
        name: "openai",
        about: "the API of OpenAI",
        text: include_str!("../presets/openai.toml"),
    },
    Preset {
        name: "pypi",
        about: "PyPI: pip, uv, poetry; no publishing",
        text: include_str!("../presets/pypi.toml"),
    },
];

/// Returns the presets that there are, by name.
pub fn presets() -> impl Iterator<Item = &'static Preset> {
    ALL.iter()
}

impl Preset {
    /// Returns its rules, as the text of a policy.
    #[must_use]
    pub fn text(&self) -> &'static str {
        self.text
    }
}
