//! `lab --against`. Cargo builds the commands of a package that has integration tests, so
//! `cargo test --workspace` builds them for the tests that cross crates, too.

#![forbid(unsafe_code)]

use std::process::Command;

#[test]
fn a_run_that_was_not_kept_is_an_error_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let against = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command.args(["--against", name, "--output"]).arg(folder.path());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = against("before");
    assert!(
        error.starts_with("lab: --against before: ") && error.contains("saved there: none is"),
        "{error}"
    );
    let error = against("../before");
    assert!(error.contains("is no name for a run"), "{error}");
}
