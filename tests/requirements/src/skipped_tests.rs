//! What a test does that lacks something of the machine: it is skipped and noted in a list, or
//! fails.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// With this variable set, a test that lacks something fails.
const REQUIRE_ALL: &str = "LULL_REQUIRE_ALL";

/// Names the list. It is set for the tests of this repository, by `.cargo/config.toml`.
const LIST: &str = "LULL_SKIPPED_TESTS";

/// Returns `found`, or notes that the calling test is skipped for lack of `what`.
///
/// # Panics
/// If it is missing and `LULL_REQUIRE_ALL` is set.
pub fn require<T>(what: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        let all = std::env::var_os(REQUIRE_ALL).is_some_and(|value| !value.is_empty());
        assert!(!all, "{REQUIRE_ALL} is set, and this is missing: {what}");
        note(what);
    }
    found
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
pub fn add(line: &str) -> io::Result<()> {
    let (Some(path), Some(run)) = (path(), run_of_cargo()) else { return Ok(()) };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut list = OpenOptions::new().read(true).append(true).create(true).open(path)?;
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

pub fn path() -> Option<PathBuf> {
    std::env::var_os(LIST).map(PathBuf::from)
}

/// The cargo that has started this process: its id and start time. `None` without one.
pub fn run_of_cargo() -> Option<String> {
    let mut pid = std::process::id();
    loop {
        let mut text = String::new();
        File::open(format!("/proc/{pid}/stat")).ok()?.read_to_string(&mut text).ok()?;
        // proc_pid_stat(5): the name, in brackets, is followed by the state and the parent; 22 is
        // the start time.
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
