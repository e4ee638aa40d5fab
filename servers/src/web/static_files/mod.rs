//! Files below a folder.

mod conditional;
mod encoding;
#[cfg(fuzzing)]
pub mod fuzzing;
mod lookup;
mod range;
mod request_path;
mod respond;
mod root;
mod served_file;

pub use self::lookup::Files;
pub use self::request_path::is_plain;
pub use self::root::{Root, RootError};
