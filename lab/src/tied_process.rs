//! Programs that don't outlive what starts them, even if that is killed.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the kernel kill the program when the thread that starts it ends, at the latest with its
/// process.
#[allow(unsafe_code)]
pub fn kill_with_thread(command: &mut Command) -> &mut Command {
    let parent = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that ended before this call sends no signal.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from(Errno::SRCH)) }
    };
    // SAFETY: after the fork, the closure only makes three system calls. It takes no lock and
    // allocates no memory.
    unsafe { command.pre_exec(tie) }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use super::*;

    const IS_PARENT: &str = "LULL_TEST_IS_PARENT";

    #[test]
    fn a_program_ends_with_its_killed_parent() {
        if std::env::var_os(IS_PARENT).is_some() {
            eprintln!("about to start");
            let shell = ["-c", "echo started >&2; exec sleep 20"];
            kill_with_thread(Command::new("sh").args(shell)).status().unwrap();
            return;
        }
        let mut parent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tied_process::tests::a_program_ends_with_its_killed_parent", "--nocapture"])
            .env(IS_PARENT, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut messages = BufReader::new(parent.stderr.take().unwrap());
        for expected in ["about to start\n", "started\n"] {
            let mut line = String::new();
            messages.read_line(&mut line).unwrap();
            assert_eq!(line, expected);
        }
        parent.kill().unwrap();
        parent.wait().unwrap();
        // The pipe ends when the last process that holds it does.
        let killed = Instant::now();
        messages.read_to_end(&mut Vec::new()).unwrap();
        assert!(killed.elapsed() < Duration::from_secs(10), "the program outlived its parent");
    }
}
