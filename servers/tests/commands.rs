//! The command by itself. Cargo builds the commands of a package that has integration tests, so
//! `cargo test --workspace` builds it for the tests that cross crates, too.

use std::process::Command;

#[test]
fn the_command_prints_memcacheds_version_and_its_own() {
    let version = env!("CARGO_PKG_VERSION");
    let output = Command::new(env!("CARGO_BIN_EXE_memcached")).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("memcached 1.") && text.trim().ends_with(version), "{text}");
}
