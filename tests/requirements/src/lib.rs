//! What tests need of the machine they run on. A test that lacks something is skipped and noted in a list, which
//! `tests/skipped` prints: cargo shows nothing of tests that pass.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// The list's name. It is in the target folder.
const LIST: &str = "skipped-tests";

/// Returns `found`, or notes that the calling test is skipped for lack of `what`.
///
/// # Panics
/// If it is missing and `LULL_REQUIRE_ALL` is set.
pub fn require<T>(what: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        let all = std::env::var_os("LULL_REQUIRE_ALL").is_some_and(|value| !value.is_empty());
        assert!(!all, "LULL_REQUIRE_ALL is set, and this is missing: {what}");
        note(what);
    }
    found
}

/// Those of some drivers that `build` can build a runtime on. The others are noted with the reason.
///
/// # Panics
/// See [`require`].
pub fn drivers<D: Copy + Display, R, E: Display>(
    drivers: impl IntoIterator<Item = D>,
    build: impl Fn(D) -> Result<R, E>,
) -> Vec<D> {
    let is_there = |driver: &D| match build(*driver) {
        Ok(_) => true,
        Err(error) => require(&format!("the {driver} driver: {error}"), None::<()>).is_some(),
    };
    drivers.into_iter().filter(is_there).collect()
}

/// Prints that the calling test is skipped for lack of `what`, and adds it to the list.
pub fn note(what: &str) {
    eprintln!("skipped: missing {what}");
    let thread = std::thread::current();
    let program = std::env::args_os().next().unwrap_or_default();
    let test = format!("{} {}", program.display(), thread.name().unwrap_or_default());
    // Of a build that belongs to another user, for example, nothing can be listed.
    let _ = add(&format!("{test}\t{what}\n"));
}

/// Adds a line to the list of this run of cargo. Lines of an earlier run are removed.
fn add(line: &str) -> io::Result<()> {
    let Some(run) = run_of_cargo() else { return Ok(()) };
    let mut list = OpenOptions::new().read(true).append(true).create(true).open(path()?)?;
    // Tests of one program run at the same time, some in processes of their own.
    list.lock()?;
    let head = format!("{run}\n");
    let mut first = vec![0; head.len()];
    if list.read_exact(&mut first).is_err() || first != head.as_bytes() {
        list.set_len(0)?;
        list.seek(SeekFrom::Start(0))?;
        list.write_all(head.as_bytes())?;
    }
    list.write_all(line.as_bytes())
}

/// Beside the folder of the profile, which has the programs of tests in `deps`.
fn path() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(3).ok_or(io::ErrorKind::NotFound)?;
    Ok(target.join(LIST))
}

/// The cargo that has started this process: its id and start time. `None` without one.
fn run_of_cargo() -> Option<String> {
    let mut pid = std::process::id();
    loop {
        let mut text = String::new();
        File::open(format!("/proc/{pid}/stat")).ok()?.read_to_string(&mut text).ok()?;
        // proc_pid_stat(5): the name, in brackets, is followed by the state and the parent; 22 is the start time.
        let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        if name.starts_with("cargo") {
            return Some(format!("cargo {pid} {}", fields.nth(17)?));
        }
        if parent == 0 {
            return None;
        }
        pid = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where nothing is skipped: the list of an earlier run is not this run's.
    #[test]
    fn the_list_is_of_this_run_of_cargo() {
        // The build may belong to another user.
        if add("").is_err() {
            return;
        }
        let Some(run) = run_of_cargo() else { return };
        let list = std::fs::read_to_string(path().unwrap()).unwrap();
        assert_eq!(list.lines().next(), Some(&run[..]));
    }

    #[test]
    fn what_is_found_is_returned() {
        assert_eq!(require("a number", Some(4)), Some(4));
    }
}
