//! Inside a test with the attribute [`isolated`](macro@crate::isolated), which runs it in its own process.

use std::process::Command;

use runtime::DriverKind;

/// The driver that this process tests, of those that the attribute lists.
pub fn driver() -> DriverKind {
    let name = std::env::var("LULL_TEST_DRIVER").unwrap_or_default();
    name.parse().expect("#[isolated] lists drivers")
}

/// A command that runs the calling test in one more process.
pub fn once_more() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test's own program"));
    // An isolated process is started with the arguments that select its test.
    command.args(std::env::args_os().skip(1));
    command
}
