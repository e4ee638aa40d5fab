//! What a crash prints is what `.ci/test` knows: such a test must not pass by being repeated.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};

use super::KillOnDrop;
use super::web::Web;

/// A `cargo` whose test prints what `$MESSAGE` has and fails, and passes when it runs again.
const CARGO: &str = "#!/bin/sh
cd \"$(dirname \"$0\")\"
[ -e ran ] && { echo 'test result: ok. 1 passed; 0 failed'; exit 0; }
touch ran
printf '%s\\n' 'failures:' '' '---- a_test stdout ----' \"$MESSAGE\" '' 'failures:' '    a_test' ''
printf '%s\\n' 'test result: FAILED. 0 passed; 1 failed' 'error: test failed, to rerun pass `-p tests --test x`'
exit 101
";

/// Whether `.ci/test` lets a test pass at its second attempt that has printed a message at the first.
fn is_repeated(python: &Path, message: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let cargo = folder.path().join("cargo");
    // A child writes the file. If this process did, a test that forks meanwhile would inherit the open descriptor, and
    // executing the file would fail with ETXTBSY.
    let mut write = shell("printf '%s' \"$CARGO\" > \"$0\" && chmod 755 \"$0\"");
    assert!(write.arg(&cargo).env("CARGO", CARGO).status().unwrap().success());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/test");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(python);
    command.arg(script).args(["cargo", "test", "--no-fail-fast"]).env("MESSAGE", message);
    let output = command.env("PATH", format!("{}:{path}", folder.path().display())).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let refused = text.contains("a crash is not repeated");
    assert_eq!(output.status.success(), !refused, "{text}");
    assert_eq!(text.contains("passed at attempt 2"), !refused, "{text}");
    !refused
}

/// The message of a panic.
fn message(panic: Box<dyn Any + Send>) -> String {
    panic.downcast_ref::<String>().expect("a panic with a text").clone()
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn a_test_that_saw_a_crash_is_not_repeated_and_one_that_was_late_is() {
    let Some(python) = crate::program("python3") else { return };
    let abort = "ulimit -c 0; kill -ABRT $$";
    let dropped = catch_unwind(AssertUnwindSafe(|| {
        let mut child = KillOnDrop::from(shell(abort).spawn().unwrap());
        child.wait().unwrap();
    }));
    let waited = catch_unwind(|| {
        let child = KillOnDrop::from(shell(abort).stdout(Stdio::piped()).spawn().unwrap());
        child.wait_with_output().map(|_| ())
    });
    let panics = "echo \"thread 'lull-0' panicked at a.rs:1:1:\" >&2
        echo http://127.0.0.1:1; echo ready; exec sleep 60";
    let panicked = catch_unwind(|| drop(Web::run(&mut shell(panics))));
    let status = shell(abort).status().unwrap();
    for crash in [
        message(dropped.unwrap_err()),
        message(waited.unwrap_err()),
        message(panicked.unwrap_err()),
        format!("{status}"),
        format!("{status:?}"),
        "process didn't exit successfully: `x` (signal: 6, SIGABRT: process abort signal)".to_owned(),
        "process didn't exit successfully: `x` (exit status: 134)".to_owned(),
    ] {
        assert!(!is_repeated(&python, &crash), "{crash}");
    }
    for late in [
        "timed out waiting for: the server listens",
        "process didn't exit successfully: `x` (exit status: 124)",
        "the server's standard error:\n INFO listening",
    ] {
        assert!(is_repeated(&python, late), "{late}");
    }
}
