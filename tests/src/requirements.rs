//! What a test needs of the machine it runs on.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::CapabilitySet;

pub use requirements::{descriptors, require};

/// Requires the capabilities to make the testbed's namespaces.
pub fn root() -> Option<()> {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    let held = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    require("CAP_SYS_ADMIN and CAP_NET_ADMIN (run as root)", held.then_some(()))
}

/// The path of one of the workspace's binaries: in the folder that `LULL_PROGRAMS` names, if it has
/// one of that name, else in the build that the running test or command belongs to.
pub fn own_program(name: &str) -> PathBuf {
    // Programs that are built in another way, for example with a sanitizer.
    let other = std::env::var_os("LULL_PROGRAMS").map(|folder| Path::new(&folder).join(name));
    if let Some(program) = other.filter(|file| file.is_file()) {
        return program;
    }
    let test = std::env::current_exe().unwrap_or_default();
    // A test is in the folder `deps` beside the binaries.
    let beside = test.parent().unwrap_or(Path::new("."));
    let above = beside.parent().unwrap_or(Path::new("."));
    let program = [above, beside].map(|folder| folder.join(name)).into_iter().find(|file| file.is_file());
    let program = program.unwrap_or_else(|| above.join(name));
    assert!(
        program.is_file(),
        "build the {name} command first: cargo test --workspace --no-run --test commands"
    );
    program
}

/// The command `policies` with some arguments.
pub fn policies_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(own_program("policies"));
    command.args(arguments);
    command
}

pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    require(&format!("program {name}"), found)
}

pub fn drivers<const COUNT: usize>(names: [&'static str; COUNT]) -> Vec<&'static str> {
    requirements::drivers(names, |name| {
        let driver = name.parse().expect("a driver's name");
        runtime::Builder::new().ignore_environment().workers(1).driver(driver).build()
    })
}
