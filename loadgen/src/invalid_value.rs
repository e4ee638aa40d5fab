//! What is wrong with a setting as text.

/// What is wrong with a value, and what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub(crate) String);

impl InvalidValue {
    /// `expected`: what it should be, and how that is written.
    pub(crate) fn new(given: &str, expected: &str) -> Self {
        Self(format!("{given:?} is not {expected}"))
    }
}
