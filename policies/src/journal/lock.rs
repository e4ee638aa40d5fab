//! The lock that keeps other processes from applying or restoring.

use std::cell::Cell;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::Error;

thread_local! {
    static HELD_BY_THIS_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Exclusive access to a journal directory. Dropping it removes the directory if it has no journals.
#[derive(Debug)]
pub(crate) struct JournalLock {
    directory: PathBuf,
    path: PathBuf,
    /// `None` if this thread has locked the directory before.
    file: Option<File>,
}

impl JournalLock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// If the directory can't be created or locked; then no journal can be written either.
    pub(super) fn acquire(directory: &Path) -> Result<Self, Error> {
        let path = directory.join("lock");
        let file = if HELD_BY_THIS_THREAD.get() {
            // A panic while holding the lock drops a guard, which restores.
            None
        } else {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .map_err(Error::journal(directory))?;
            Some(lock_file(directory, &path).map_err(Error::journal(&path))?)
        };
        let lock = Self { directory: directory.to_owned(), path, file };
        if lock.file.is_some() {
            HELD_BY_THIS_THREAD.set(true);
            lock.remove_unfinished_journals();
        }
        Ok(lock)
    }

    /// Removes the temporary files of processes that were killed while they wrote a journal. They had not
    /// changed anything yet, and no other process writes a journal now.
    fn remove_unfinished_journals(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(".tmp")) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn lock_file(directory: &Path, path: &Path) -> io::Result<File> {
    loop {
        // Not the directory itself: any user could lock that for ever. The file belongs to its owner.
        let file = match File::options().write(true).create(true).truncate(false).mode(0o600).open(path) {
            Ok(file) => file,
            // The previous holder removed the directory in between.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(without_locks(error.into())),
        }
        let inode = |data: fs::Metadata| data.ino();
        // The previous holder may have removed the file.
        if file.metadata().ok().map(inode) == fs::metadata(path).ok().map(inode) {
            return Ok(file);
        }
    }
}

/// Adds what to do to an error of locking a file.
pub(super) fn without_locks(error: io::Error) -> io::Error {
    let message = format!("cannot be locked: {error}; journals need a file system with locks, such as tmpfs");
    io::Error::new(error.kind(), message)
}

impl Drop for JournalLock {
    fn drop(&mut self) {
        if self.file.is_none() {
            return;
        }
        HELD_BY_THIS_THREAD.set(false);
        let others = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        if others.filter(|entry| entry.path() != self.path).count() == 0 {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_dir(&self.directory);
        }
    }
}
