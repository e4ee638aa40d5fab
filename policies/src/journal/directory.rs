//! The directory of journals: reads, writes and locks them.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::container::{Claim, check_outlives_container};
use super::files::{AtomicFile, JournalLock, hold_file, is_file_held, without_locks};
use super::found::{self, Found, FoundJournal, UnreadableJournal};
use super::record::{Journal, Lifetime};
use crate::error::Error;
use crate::host::process::{boot_id, network_namespace, start_time};

/// The directory of journals; `/run/lull` by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDir(PathBuf);

const DEFAULT: &str = "/run/lull";

impl Default for JournalDir {
    fn default() -> Self {
        Self(PathBuf::from(DEFAULT))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Newest first: the last policy to be applied is the first to be removed.
    pub(crate) journals: Vec<FoundJournal>,
    pub(crate) unreadable: Vec<UnreadableJournal>,
}

/// A journal's file. The process that owns the journal keeps this.
#[derive(Debug)]
pub(crate) struct JournalFile {
    pub(crate) path: PathBuf,
    /// Holds the lock until it is closed. `None` for a journal that outlives its writer.
    lock: Option<File>,
    /// Of the first file of a journal; what replaces it takes it over.
    claim: Option<Claim>,
}

impl JournalFile {
    /// Keeps the journal's lock until this process ends.
    pub(crate) fn keep_locked(self) {
        std::mem::forget((self.lock, self.claim));
    }

    /// Goes on in the place of an earlier file of the journal, which is let go.
    pub(crate) fn replace(&mut self, earlier: Option<Self>) {
        self.claim = self.claim.take().or(earlier.and_then(|earlier| earlier.claim));
    }
}

impl JournalDir {
    /// Another directory. It should be on a file system that a reboot clears, as it clears NAPI
    /// settings, and that has locks. All processes that set policies in the same network namespace
    /// must use the same one.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// All journals of this boot and this network namespace.
    ///
    /// # Errors
    /// If the directory can't be listed.
    pub(crate) fn read(&self) -> Result<Contents, Error> {
        let namespace = network_namespace();
        let mut contents = self.read_all()?;
        contents.journals.retain(|found| found.journal.namespace == namespace);
        contents.unreadable.retain(|unreadable| unreadable.may_concern(namespace, None));
        Ok(contents)
    }

    /// All journals of this boot. Those of an earlier boot describe settings that no longer exist,
    /// and are removed.
    pub(super) fn read_all(&self) -> Result<Contents, Error> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
            Err(error) => return Err(Error::journal(&self.0)(error)),
        };
        let boot = boot_id();
        let mut contents = Contents::default();
        for entry in entries {
            let path = entry.map_err(Error::journal(&self.0))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                remove_abandoned_status_file(&path);
                continue;
            }
            match found::read(&path, &boot) {
                Found::Journal(journal) => contents.journals.push(journal),
                Found::Unreadable(unreadable) => contents.unreadable.push(unreadable),
                Found::Outdated => {
                    if let Err(error) = self.remove(&path) {
                        tracing::debug!("the journal of an earlier boot stays: {error}");
                    }
                }
                Found::Gone => {}
            }
        }
        contents.journals.sort_unstable_by_key(|journal| Reverse(journal.journal.sequence));
        contents.unreadable.sort_unstable_by(|one, other| one.left.path.cmp(&other.left.path));
        Ok(contents)
    }

    /// Keeps other processes from applying or restoring until the lock is dropped.
    ///
    /// # Errors
    /// If the directory can't be created or locked; then no journal can be written either.
    pub(crate) fn lock(&self) -> Result<JournalLock, Error> {
        JournalLock::acquire(&self.0)
    }

    /// Writes a journal atomically, under the directory's lock. At each moment the journal's file
    /// is complete, and, if it ends with this process, locked.
    ///
    /// # Errors
    /// If the file can't be written or locked. The journal that it was to replace is unchanged.
    pub(crate) fn write(&self, journal: &mut Journal) -> Result<JournalFile, Error> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.0).map_err(Error::journal(&self.0))?;
        if journal.sequence > 0 {
            return self.write_file(journal);
        }
        let claim = self.claim(journal.ifindex).map_err(Error::journal(&self.0))?;
        journal.sequence = self.next_sequence()?;
        match self.write_file(journal) {
            Ok(file) => Ok(JournalFile { claim, ..file }),
            Err(error) => {
                // Another journal may get the number.
                journal.sequence = 0;
                Err(error)
            }
        }
    }

    /// Claims the default directory for an interface. Another directory is not claimed: its callers
    /// make sure that all processes use the same one ([`JournalDir::at`]).
    fn claim(&self, ifindex: u32) -> io::Result<Option<Claim>> {
        if self.0 != Path::new(DEFAULT) {
            return Ok(None);
        }
        check_outlives_container(&self.0)?;
        Claim::make(&self.0, ifindex).map(Some)
    }

    fn write_file(&self, journal: &Journal) -> Result<JournalFile, Error> {
        let owner = match journal.lifetime {
            Lifetime::Process => journal.writer.pid.to_string(),
            Lifetime::Host => "host".to_owned(),
        };
        // Index instead of the interface's name, which may change. The process id is only for the
        // reader: in containers that share the directory, several processes may have the same one.
        let name = format!("{}-{}-{owner}-s{}.json", journal.namespace, journal.ifindex, journal.sequence);
        let path = self.0.join(name);
        let file = self.write_to(&path, journal, journal.lifetime == Lifetime::Process)?;
        let lock = (journal.lifetime == Lifetime::Process).then_some(file);
        Ok(JournalFile { path, lock, claim: None })
    }

    /// Writes a journal that has no owner any more in the place of what it was read from.
    ///
    /// # Errors
    /// If the file can't be written. The one that it was to replace is unchanged.
    pub(crate) fn replace(&self, found: &FoundJournal) -> Result<(), Error> {
        self.write_to(&found.path, &found.journal, false).map(|_| ())
    }

    fn write_to(&self, path: &Path, journal: &Journal, is_locked: bool) -> Result<File, Error> {
        let mut new = AtomicFile::new_in(&self.0).map_err(Error::journal(path))?;
        // Before the file has its name, and while only its owner may open it.
        if is_locked {
            hold_file(&new.file).map_err(|error| Error::journal(path)(without_locks(error)))?;
        }
        // Serialized first: serde_json's writer makes one system call for each token.
        let text = serde_json::to_vec_pretty(journal).map_err(|error| Error::journal(path)(error.into()))?;
        new.file.write_all(&text).map_err(Error::journal(path))?;
        // Readable by everybody, so that `policies explain` can show who holds which queues.
        new.file.set_permissions(fs::Permissions::from_mode(0o644)).map_err(Error::journal(path))?;
        new.file.sync_all().map_err(Error::journal(path))?;
        new.persist(path).map_err(Error::journal(path))
    }

    /// A number above those of all journals in the directory. The last journal that is removed ends
    /// the row: only journals that exist at the same time have an order.
    fn next_sequence(&self) -> Result<u64, Error> {
        let mut last = 0;
        for entry in fs::read_dir(&self.0).map_err(Error::journal(&self.0))? {
            let name = entry.map_err(Error::journal(&self.0))?.file_name();
            // Also of those that can't be read.
            last = last.max(name.to_str().and_then(sequence_of).unwrap_or(0));
        }
        last.checked_add(1).ok_or_else(|| {
            Error::journal(&self.0)(io::Error::other("a journal has the highest possible number; remove it"))
        })
    }

    /// Removes a journal. It is no error if there is none.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), Error> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::journal(path)(error)),
            _ => Ok(()),
        }
    }
}

pub(super) fn sequence_of(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.rsplit('-').next()?.strip_prefix('s')?.parse().ok()
}

/// Removes the status file (`status.rs`) of a process that was killed.
fn remove_abandoned_status_file(path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let pid = |name: &str| name.rsplit('-').next()?.parse::<u32>().ok();
    let is_left = match (name.strip_suffix(".workers"), name.strip_suffix(".workers-new")) {
        // Its process holds the lock. Another one may have the id by now.
        (Some(name), _) => pid(name).is_some(),
        // It is locked after it was created.
        (_, Some(name)) => pid(name).is_some_and(|pid| start_time(pid).is_none()),
        _ => false,
    };
    let is_abandoned = || -> io::Result<bool> {
        let file = File::open(path)?;
        if is_file_held(&file)? {
            return Ok(false);
        }
        // Its process may have replaced it since, and holds the new one.
        let (opened, present) = (file.metadata()?, fs::symlink_metadata(path)?);
        Ok((opened.dev(), opened.ino()) == (present.dev(), present.ino()))
    };
    if is_left && is_abandoned().unwrap_or(false) {
        // Without permission, or already removed: another process cleans up.
        let _ = fs::remove_file(path);
    }
}
