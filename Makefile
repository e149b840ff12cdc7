# The words of this file are the same in CI and by hand. Root is needed for the full suite; what lacks it says so.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

SEEDS ?= 200
SECONDS ?= 60
FUZZED ?=
POWER_SEEDS ?= 100
TARGET := target/x86_64-unknown-linux-gnu/release
export DURABLE_BIN ?= $(CURDIR)/$(TARGET)/durable
# Debian packages by name: the pool's tools, what tests look at the machine with, and the peers of `make bench`.
RUN_PACKAGES := btrfs-progs gcc jq libc6-dev
DEMO_PACKAGES := $(RUN_PACKAGES) bsdextrautils git
TEST_PACKAGES := $(RUN_PACKAGES) age busybox-static curl docker-registry e2fsprogs git iproute2 openssl php-cli procps python3-venv ruby sqlite3 uidmap util-linux wget
BENCH_PACKAGES := $(TEST_PACKAGES) bubblewrap crun make mitmproxy restic runc zstd

# A test that hangs says so here, and not an hour later.
LIMIT := timeout -k 10 900

define install
	@missing=(); for p in $(1); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing+=($$p); done; \
	if [ $${#missing[@]} -gt 0 ]; then \
	  if [ $$(id -u) = 0 ]; then apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null; \
	  else echo "needs the Debian packages $${missing[*]}: install them as root" >&2; exit 1; fi; fi
endef

.PHONY: build deps deps-demo deps-test deps-bench fmt lint unit system test demo demo-fork bench bench-workspace bench-gateway kill-matrix test-power test-boundary fuzz openapi clean

deps:
	$(call install,$(RUN_PACKAGES))
deps-demo:
	$(call install,$(DEMO_PACKAGES))
deps-test:
	$(call install,$(TEST_PACKAGES))
deps-bench:
	$(call install,$(BENCH_PACKAGES))

build: deps
	cargo build --release -p durable

fmt:
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml

lint:
	cargo fmt --all -- --check
	cargo fmt --manifest-path fuzz/Cargo.toml -- --check
	cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

unit:
	cargo test --workspace --exclude system-tests --exclude power-test --no-run
	$(LIMIT) cargo test --no-fail-fast --workspace --exclude system-tests --exclude power-test

system: build
	cargo build --release -p model-server
	cargo test --release -p system-tests --no-run
	$(LIMIT) cargo test --release -p system-tests
	$(LIMIT) cargo run --release -p system-tests --bin kill-matrix -- --seeds 2 --harness pi

# The fuzz targets are those for what strangers write: policies, names, HTTP.
test: deps-test lint unit system
	$(MAKE) fuzz FUZZED="policy host front"

demo: build
	cargo build --release -p model-server
	demo/run

demo-fork: deps-demo build
	demo/fork

bench: deps-bench build
	cargo build --release -p bench
	cargo run --release -p bench --bin bench

bench-workspace: deps-bench build
	cargo build --release -p bench
	cargo run --release -p bench --bin bench -- --only workspace

bench-gateway: deps-bench build
	cargo build --release -p bench
	cargo run --release -p bench --bin bench -- --only gateway

kill-matrix: deps-test build
	cargo build --release -p model-server
	cargo run --release -p system-tests --bin kill-matrix -- --seeds $(SEEDS)

test-power: deps-test build
	cargo run --release -p power-test -- --seeds $(POWER_SEEDS)

test-boundary: deps-test build
	$(LIMIT) cargo test --no-fail-fast -p durable-policy -p durable-secret -p durable-egress -p durable-isolation -p durable-supervisor
	cargo test --release -p system-tests --no-run
	$(LIMIT) cargo test --release -p system-tests --test main -- boundary:: egress:: github::
	DURABLE_TEST_LARGE=1 $(LIMIT) cargo test --release -p system-tests --test main -- clients::

fuzz:
	$(call install,gcc g++ libc6-dev)
	fuzz/run $(SECONDS) $(FUZZED)

openapi: build
	$(DURABLE_BIN) __openapi > docs/openapi.json

clean:
	cargo clean
