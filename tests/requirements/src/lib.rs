//! What tests need of the machine they run on. A test that lacks something is skipped and noted in
//! a list, which `tests/skipped` prints: cargo shows nothing of tests that pass.
#![forbid(unsafe_code)]

mod free_port;
mod process;
mod skipped_tests;

use std::fmt::Display;

pub use free_port::free_port;
pub use process::{descriptors, once_more, resident_kib};
pub use skipped_tests::{note, require};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_of_this_run_of_cargo() {
        let Some(run) = skipped_tests::run_of_cargo() else { return };
        let Some(path) = skipped_tests::path() else { return };
        // Removes what an earlier run has left, also where nothing is skipped. The build may belong
        // to another user.
        if skipped_tests::add("").is_err() {
            return;
        }
        let list = std::fs::read_to_string(path).unwrap();
        assert_eq!(list.lines().next(), Some(&run[..]));
    }

    #[test]
    fn what_is_found_is_returned() {
        assert_eq!(require("a number", Some(4)), Some(4));
    }
}
