//! Reads a file of the directory: a journal, or what is there in the place of one. Journals that a
//! restore has to leave.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_core::Deserialize;
use serde_json::Value;

use super::files::is_file_held;
use super::record::{Journal, Lifetime, VERSION};
use crate::error::Error;
use crate::json::field;

#[derive(Debug)]
pub(super) enum Found {
    Journal(FoundJournal),
    Unreadable(UnreadableJournal),
    /// A journal of an earlier boot, whose settings no longer exist.
    Outdated,
    /// Its owner has removed it after the directory was listed.
    Gone,
}

#[derive(Debug)]
pub(crate) struct FoundJournal {
    pub(crate) path: PathBuf,
    pub(crate) journal: Journal,
    /// Whether a process holds the file's lock.
    is_held: bool,
}

impl FoundJournal {
    /// Whether the writer has ended without restoring what it set for its own lifetime.
    pub(crate) fn is_abandoned(&self) -> bool {
        let writer = &self.journal.writer;
        if self.journal.lifetime == Lifetime::Host {
            return false;
        }
        if self.is_held {
            // A process that was forked from the writer, and has inherited its descriptors, does
            // not own the settings.
            return writer.is_certainly_gone();
        }
        // A file that was copied over the journal of a running process is not the one that this has
        // locked. What this process does not hold, it has left to others.
        !writer.is_alive() || writer.has_id(std::process::id())
    }
}

/// A journal that could not be restored or removed. The settings that it records may be left set.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LeftJournal {
    pub path: PathBuf,
    /// Why it can't be restored, as a clause.
    pub reason: String,
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

/// A file with a journal's name that can't be read as one.
#[derive(Debug)]
pub(crate) struct UnreadableJournal {
    pub(crate) left: LeftJournal,
    /// Whether a process holds the file's lock; `None` if that can't be found out.
    pub(crate) is_held: Option<bool>,
}

impl UnreadableJournal {
    /// For a process that is to hold queues, some of which the owner of this journal may hold.
    pub(crate) fn into_error(self) -> Error {
        let reason = if self.is_held == Some(true) {
            "a running process holds it, so that its queues are not known: stop that process"
        } else {
            "whether its owner runs, and which queues it holds, is not known"
        };
        let LeftJournal { path, reason: error, remedy } = self.left;
        Error::Journal { path, source: io::Error::other(format!("{error}; {reason}; {remedy}")) }
    }

    /// Whether it can be of this network namespace, and of this interface if one is given. Its name
    /// says so, if it has the form of a journal's.
    pub(crate) fn may_concern(&self, namespace: u64, ifindex: Option<u32>) -> bool {
        let name = self.left.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut parts = name.split('-');
        let (first, second) = (parts.next(), parts.next());
        let Some(named) = first.and_then(|part| part.parse::<u64>().ok()) else { return true };
        let Some(index) = second.and_then(|part| part.parse::<u32>().ok()) else { return true };
        named == namespace && ifindex.is_none_or(|wanted| wanted == index)
    }
}

/// Reads a file whose name is that of a journal. `boot` is this boot's id.
pub(super) fn read(path: &Path, boot: &str) -> Found {
    match open(path) {
        Ok(Some(file)) => parse(path, file, boot),
        Ok(None) => Found::Gone,
        // Only a file has an owner.
        Err(Problem::NotAFile) => unreadable(path, &"it is not a regular file", "remove it", Some(false)),
        Err(Problem::Error(error)) => unreadable(path, &error, remedy(&error), None),
    }
}

fn unreadable(path: &Path, reason: &dyn fmt::Display, remedy: &str, is_held: Option<bool>) -> Found {
    Found::Unreadable(UnreadableJournal { left: LeftJournal::new(path, reason, remedy), is_held })
}

pub(super) fn parse(path: &Path, file: Content, boot: &str) -> Found {
    let is_held = Some(file.is_held);
    // The fields that every version of the file format has.
    let header = serde_json::from_slice(&file.text).and_then(|json: Value| {
        Ok((field::<u32, serde_json::Error>(&json, "version")?, field::<String, _>(&json, "boot")?, json))
    });
    let (version, written_in, json) = match header {
        Ok(header) => header,
        Err(error) => return unreadable(path, &error, DAMAGED, is_held),
    };
    // Where the id can't be read, nothing is taken for outdated. Nor is what a running process
    // holds: container managers give each container another id.
    let is_known = !boot.is_empty() && !written_in.is_empty();
    if is_known && written_in != boot && !file.is_held {
        return Found::Outdated;
    }
    if version != VERSION {
        let reason = format!("version {version} is not supported (this program reads {VERSION})");
        return unreadable(path, &reason, "restore with the program that wrote it", is_held);
    }
    match Journal::deserialize(json) {
        Ok(journal) => Found::Journal(FoundJournal { path: path.to_owned(), journal, is_held: file.is_held }),
        Err(error) => unreadable(path, &error, DAMAGED, is_held),
    }
}

/// What to do about a file that is no journal.
const DAMAGED: &str = "what it recorded is lost: compare the settings with `policies show`, set them by hand, and remove the file";

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run this as the file's owner or as root",
        _ => "once that is mended, restore again",
    }
}

enum Problem {
    NotAFile,
    Error(io::Error),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Error(error)
    }
}

/// A file's content, and whether a process holds its lock.
pub(super) struct Content {
    pub(super) text: Vec<u8>,
    pub(super) is_held: bool,
}

/// The content and the lock of the same file. `None` if there is none.
fn open(path: &Path) -> Result<Option<Content>, Problem> {
    loop {
        // A pipe would wait for a writer, and a link could lead anywhere.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let mut file = match File::options().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(Problem::NotAFile),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(Problem::NotAFile);
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let is_held = is_file_held(&file).map_err(|error| {
            io::Error::new(error.kind(), format!("whether its owner runs is not known: {error}"))
        })?;
        // The owner replaces the file when it records more. Then the lock is on the new one.
        match fs::symlink_metadata(path) {
            Ok(now) if (now.dev(), now.ino()) == (metadata.dev(), metadata.ino()) => {
                return Ok(Some(Content { text, is_held }));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
