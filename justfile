# Short names for the commands of CONTRIBUTING.md. `just` lists them; each also runs by hand.

set shell := ["bash", "-euo", "pipefail", "-c"]

# List the recipes.
default:
    @just --list --unsorted

# Compare the four policies on this machine (root).
lab *ARGS:
    cargo run --release -p lab -- {{ARGS}}

# Run the README's test command. LULL_REQUIRE_ALL=1 makes a missing privilege or program fail.
test:
    cargo test --workspace --no-fail-fast
    tests/skipped

# Run the tests that measure a time, and those that take long. One that fails is repeated, at most twice.
timing *FILTER:
    .ci/timing {{FILTER}}

# Format, clippy and documentation, with warnings denied.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Run every example. Each one ends by itself.
examples:
    .ci/examples

# Build the book into target/book (needs mdbook: cargo install mdbook --no-default-features).
book:
    mdbook build docs

# Compare the executor with tokio, async-executor and monoio.
bench:
    cargo bench -p tests --bench executor

# The spans of tasks, and what tokio-console is sent.
console:
    .ci/console

# Try every order of the steps that threads do to each other (loom).
loom:
    .ci/loom

# Licences, banned crates and sources (needs cargo-deny); the advisories where their database can be fetched.
deny:
    .ci/deny

# Compile every published crate from the package that crates.io would get.
package:
    .ci/package

# Fuzz one target for some seconds.
fuzz TARGET SECONDS="60":
    fuzz/run {{TARGET}} {{SECONDS}}

# List the public items of a crate (needs cargo-public-api; it reads rustdoc's JSON, which stable hides).
public-api CRATE="lull-runtime":
    RUSTC_BOOTSTRAP=1 cargo public-api -p {{CRATE}} --simplified

# Compare a crate's public items with those of a git revision: what was removed or changed breaks users.
api-diff REV CRATE="lull-runtime":
    RUSTC_BOOTSTRAP=1 cargo public-api -p {{CRATE}} --simplified diff {{REV}}..HEAD

# Everything that has to pass before a change lands.
ci:
    .ci/run
