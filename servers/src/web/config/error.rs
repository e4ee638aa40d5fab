//! What is wrong with a configuration.

use std::path::PathBuf;

/// A configuration can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read, or says something that is not understood.
    #[error("{path}: {problem}")]
    File {
        /// The TOML file.
        path: PathBuf,
        /// Where, and what is wrong.
        problem: String,
    },
    /// A value, or a combination of values, is impossible.
    #[error("{0}")]
    Impossible(&'static str),
}
