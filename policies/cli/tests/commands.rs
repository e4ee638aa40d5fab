//! The commands by themselves. Cargo builds the commands of a package that has integration tests,
//! so `cargo test --workspace` builds them for the tests that cross crates, too.

use std::process::Command;

#[test]
fn the_command_prints_its_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_policies")).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        concat!("policies ", env!("CARGO_PKG_VERSION"), "\n")
    );
}
