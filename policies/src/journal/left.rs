//! Journals that a restore has to leave.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::Error;

/// A journal that could not be restored or removed. The settings that it records may be left set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LeftJournal {
    /// The file in the directory of journals.
    pub path: PathBuf,
    /// Why it can't be restored, as a clause.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for LeftJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "journal {} is left: {}; {}", self.path.display(), self.reason, self.remedy)
    }
}

impl LeftJournal {
    pub(super) fn new(path: &Path, reason: impl fmt::Display, remedy: &str) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string(), remedy: remedy.to_owned() }
    }

    pub(crate) fn into_error(self) -> Error {
        let source = io::Error::other(format!("{}; {}", self.reason, self.remedy));
        Error::Journal { path: self.path, source }
    }
}
