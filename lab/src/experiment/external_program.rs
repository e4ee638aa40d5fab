//! External programs: on a core, and until they listen.

use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Error;

/// How long a server may take until it accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a program on a core: a child inherits its parent's affinity.
pub(crate) fn spawn_on_core(core: u32, command: &mut Command) -> Result<Child, Error> {
    let before = sched_getaffinity(None).map_err(io::Error::from)?;
    let mut one = CpuSet::new();
    one.set(core as usize);
    sched_setaffinity(None, &one).map_err(io::Error::from)?;
    let spawned = command.spawn();
    sched_setaffinity(None, &before).map_err(io::Error::from)?;
    spawned.map_err(|error| Error::program(Path::new(command.get_program()), error))
}

/// Waits until a server accepts connections. `exited` returns its exit status once it has exited.
pub(super) fn await_listening(
    program: &Path,
    connects: impl Fn() -> bool,
    mut exited: impl FnMut() -> io::Result<Option<ExitStatus>>,
) -> Result<(), Error> {
    let deadline = Instant::now() + START_TIMEOUT;
    while !connects() {
        if let Some(status) = exited()? {
            return Err(Error::program(program, format!("exited before it listened ({status})")));
        }
        if Instant::now() > deadline {
            let seconds = START_TIMEOUT.as_secs();
            return Err(Error::program(program, format!("does not listen after {seconds} s")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
