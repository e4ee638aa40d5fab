//! Why a runtime could not be built.

/// Why a runtime could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting of the environment, an attribute or the builder is not valid.
    #[error("{source_name}: {reason}")]
    Setting {
        /// Where it came from, for example `RUNTIME_POLICY`.
        source_name: String,
        /// Why it is not valid.
        reason: String,
    },
    /// The interface could not be read.
    #[error(transparent)]
    Host(#[from] policies::Error),
    /// A worker could not be started.
    #[error("cannot start worker {worker}: {source}")]
    Worker {
        /// The worker's number, from 0.
        worker: usize,
        /// The error of starting its thread, of pinning it, or of opening its driver.
        source: std::io::Error,
    },
}
