//! The commands by themselves. Cargo builds the commands of a package that has integration tests,
//! so `cargo test --workspace` builds them for the tests that cross crates, too.

use std::process::Command;

#[test]
fn each_command_prints_its_version() {
    let version = env!("CARGO_PKG_VERSION");
    for (program, begin) in
        [(env!("CARGO_BIN_EXE_memcached"), "memcached 1."), (env!("CARGO_BIN_EXE_web"), "web ")]
    {
        let output = Command::new(program).arg("--version").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(begin) && text.trim().ends_with(version), "{program}: {text}");
    }
}
