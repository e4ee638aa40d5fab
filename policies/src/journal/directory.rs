//! The directory of journals: reads, writes and locks them.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::lock::JournalLock;
use super::record::{Journal, JournalHeader, Lifetime, VERSION};
use crate::error::Error;
use crate::host::identity::{boot_id, network_namespace, start_time};

/// The directory of journals; `/run/lull` by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDir(PathBuf);

impl Default for JournalDir {
    fn default() -> Self {
        Self(PathBuf::from("/run/lull"))
    }
}

impl JournalDir {
    /// Another directory. It should be on a file system that a reboot clears, as it clears NAPI settings.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn error(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::Journal { path, source }
    }

    /// All journals of this boot and this network namespace, newest first.
    pub(crate) fn read(&self) -> Result<Vec<(PathBuf, Journal)>, Error> {
        let namespace = network_namespace();
        let mut journals = self.read_all()?;
        journals.retain(|(_, journal)| journal.namespace == namespace);
        Ok(journals)
    }

    /// The other network namespaces whose journals record something of other processes: the namespaces in which
    /// `policies attach` runs are those of its targets.
    pub(super) fn other_namespaces(&self) -> Result<BTreeSet<u64>, Error> {
        let own = network_namespace();
        let journals = self.read_all()?.into_iter().map(|(_, journal)| journal);
        Ok(journals
            .filter(|journal| journal.namespace != own && !journal.is_own())
            .map(|journal| journal.namespace)
            .collect())
    }

    /// All journals of this boot, newest first. Journals of an earlier boot describe settings that no longer exist, and
    /// are removed. An unreadable journal is an error.
    fn read_all(&self) -> Result<Vec<(PathBuf, Journal)>, Error> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Self::error(&self.0)(error)),
        };
        let boot = boot_id();
        let mut journals = Vec::new();
        for entry in entries {
            let path = entry.map_err(Self::error(&self.0))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                remove_abandoned_status_file(&path);
                continue;
            }
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                // Its owner removed it after the directory was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Self::error(&path)(error)),
            };
            let invalid = |error: serde_json::Error| Error::Journal {
                path: path.clone(),
                source: io::Error::new(io::ErrorKind::InvalidData, error),
            };
            let header: JournalHeader = serde_json::from_str(&text).map_err(invalid)?;
            if header.boot != boot {
                fs::remove_file(&path).map_err(Self::error(&path))?;
                continue;
            }
            if header.version != VERSION {
                return Err(Error::Journal {
                    path,
                    source: io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!(
                            "version {} is not supported (this program reads {VERSION}); restore with the program \
                             that wrote it",
                            header.version
                        ),
                    ),
                });
            }
            let journal: Journal = serde_json::from_str(&text).map_err(invalid)?;
            journals.push((path, journal));
        }
        // Restored in this order: the last policy to be applied is the first to be removed.
        journals.sort_by_key(|(path, _)| {
            Reverse(fs::metadata(path).map_or((0, 0), |data| (data.mtime(), data.mtime_nsec())))
        });
        Ok(journals)
    }

    /// Keeps other processes from applying or restoring until the lock is dropped. `None` if the directory
    /// can't be created or locked; then no journal can be written either.
    pub(crate) fn lock(&self) -> Option<JournalLock> {
        JournalLock::acquire(&self.0)
    }

    /// Writes a journal atomically.
    pub(crate) fn write(&self, journal: &Journal) -> Result<PathBuf, Error> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.0).map_err(Self::error(&self.0))?;
        let owner = match journal.lifetime {
            Lifetime::Process => journal.writer.pid.to_string(),
            Lifetime::Host => "host".to_owned(),
        };
        // Index and number instead of the interface's name, which may change; a process may hold several
        // sets of queues.
        let path =
            self.0.join(format!("{}-{}-{owner}-{}.json", journal.namespace, journal.ifindex, journal.number));
        let mut file = tempfile::NamedTempFile::new_in(&self.0).map_err(Self::error(&self.0))?;
        // Serialized first: serde_json's writer makes one system call for each token.
        let text = serde_json::to_vec_pretty(journal).map_err(|error| Self::error(&path)(error.into()))?;
        file.write_all(&text).map_err(Self::error(&path))?;
        // Readable by everybody, so that `policies explain` can show who holds which queues.
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644)).map_err(Self::error(&path))?;
        file.as_file().sync_all().map_err(Self::error(&path))?;
        file.persist(&path).map_err(|error| Self::error(&path)(error.error))?;
        Ok(path)
    }

    pub(crate) fn remove(&self, path: &Path) -> Result<(), Error> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Self::error(path)(error)),
            _ => Ok(()),
        }
    }
}

/// Removes the status file (`supervise/status.rs`) of a process that was killed.
fn remove_abandoned_status_file(path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.and_then(|name| name.strip_suffix(".workers").or(name.strip_suffix(".workers-new")));
    let pid = name.and_then(|name| name.rsplit('-').next()?.parse::<u32>().ok());
    if pid.is_some_and(|pid| start_time(pid).is_none()) {
        // Without permission, or already removed: another process cleans up.
        let _ = fs::remove_file(path);
    }
}
