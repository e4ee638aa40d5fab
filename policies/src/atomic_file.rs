//! Files that get their name when they are complete, so that nobody reads half of one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What the names of incomplete files begin with.
pub(crate) const UNFINISHED: &str = ".tmp";

/// A new file under a temporary name, which is removed unless the file gets its own.
pub(crate) struct AtomicFile {
    pub(crate) file: File,
    unfinished: Unfinished,
}

struct Unfinished(Option<PathBuf>);

impl AtomicFile {
    /// Creates a file in the folder, which only its owner may open.
    pub(crate) fn new_in(folder: &Path) -> io::Result<Self> {
        let mut number = 0_u32;
        loop {
            // A process of another PID namespace may have this id, and one that was killed may have
            // left a file.
            let path = folder.join(format!("{UNFINISHED}-{}-{number}", std::process::id()));
            match File::options().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Ok(Self { file, unfinished: Unfinished(Some(path)) }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives the file its name, and replaces what has had it.
    pub(crate) fn persist(mut self, path: &Path) -> io::Result<File> {
        if let Some(present) = &self.unfinished.0 {
            fs::rename(present, path)?;
        }
        self.unfinished.0 = None;
        Ok(self.file)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Fails only if somebody else has removed it.
        let _ = self.0.as_ref().map(fs::remove_file);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_has_its_name_only_when_it_is_complete_and_leaves_nothing_if_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it");
        fs::write(&path, "before").unwrap();
        let (mut first, second) =
            (AtomicFile::new_in(folder.path()).unwrap(), AtomicFile::new_in(folder.path()).unwrap());
        first.file.write_all(b"after").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        first.persist(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        drop(second);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
