//! What crosses crates: policies on the testbed, real clients against the server.
//!
//! Tests that need root, a kernel feature or another program say so and skip where it is missing;
//! with `CI` in the environment a missing one is a failure.
//!
//! ```
//! let able = tests::require("arithmetic", Some(2 + 2).filter(|sum| *sum == 4));
//! assert_eq!(able, Some(4));
//! ```

pub mod capture;
pub mod load;
pub mod memcached;
pub mod testbed;

/// What a test needs, or `None`, with the reason printed, where it isn't there.
///
/// # Panics
/// In CI, where nothing that can be tested may be skipped.
pub fn require<T>(what: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "skipped in CI, which must not be: no {what}");
        eprintln!("skipped: no {what}");
    }
    found
}

/// Whether this process may make the testbed's namespaces.
pub fn root() -> Option<()> {
    use rustix::thread::CapabilitySet;
    let sets = rustix::thread::capabilities(None).ok()?;
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    require("CAP_SYS_ADMIN and CAP_NET_ADMIN (run as root)", sets.effective.contains(needed).then_some(()))
}

/// A program of the test's own build.
///
/// # Panics
/// Where it was not built.
pub fn own_program(name: &str) -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let folder = test.parent().and_then(std::path::Path::parent).unwrap_or(std::path::Path::new("."));
    let program = folder.join(name);
    assert!(program.is_file(), "build the {name} command first: cargo build --workspace");
    program
}

/// A program on the path.
pub fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    require(&format!("program {name}"), found)
}
