# Short names for the commands of CONTRIBUTING.md. `just` lists them; each also runs by hand.

set shell := ["bash", "-euo", "pipefail", "-c"]

# List the recipes.
default:
    @just --list --unsorted

# Compare kernel polling with interrupts on this machine (root).
lab *ARGS:
    cargo run --release -p lab -- {{ARGS}}

# Run the README's test command.
test:
    cargo test --workspace --no-fail-fast && tests/skipped

# Run the tests that measure a time, and those that take long.
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

# Tasks and operations under AddressSanitizer, the spans of tasks, and what tokio-console is sent.
sanitizer:
    .ci/sanitizer

# Check every interleaving of the code that several threads run (loom).
loom:
    .ci/loom

# Check licences, sources and advisories (needs cargo-deny).
deny:
    .ci/deny

# Compile every published crate from the package that crates.io would get.
package:
    .ci/package

# Fuzz one target for some seconds.
fuzz TARGET SECONDS="60":
    fuzz/run {{TARGET}} {{SECONDS}}

# Document all crates, and compare their public items with .ci/public-items.
public:
    .ci/public

# Everything that has to pass before a change lands.
ci:
    .ci/run
