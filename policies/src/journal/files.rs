//! Files of the directory, which get their names when they are complete, so that nobody reads half
//! of one; and two locks: that of the directory, which keeps other processes from applying or
//! restoring, and that of a file, which the writer of a journal or a status file holds on it until
//! it ends.
//!
//! A file's lock is a write lock of the open file description (`F_OFD_SETLK` in fcntl(2)). The
//! kernel removes it when the last descriptor is closed, so at the latest when the process ends,
//! however that happens. A reader asks whether there is one (`F_OFD_GETLK`); the answer does not
//! depend on what `/proc` shows to it, nor on its PID namespace. A lock by flock(2) or a read lock
//! would not do: everybody who may read the file may take them, and could keep a journal from being
//! restored.

use std::cell::Cell;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::Error;
use crate::host::process::ProcessIdentity;
use crate::json::InJson;

/// How long the directory may be locked by another process. A policy is applied or restored within
/// some 100 ms; a device that rebuilds its queues may take two seconds.
const PATIENCE: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

thread_local! {
    static HELD_BY_THIS_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Exclusive access to a journal directory. Dropping it removes the directory if it has no
/// journals.
#[derive(Debug)]
pub(crate) struct JournalLock {
    directory: PathBuf,
    path: PathBuf,
    /// `None` if this thread has locked the directory before.
    file: Option<File>,
}

impl JournalLock {
    /// Waits for the lock, for at most some seconds.
    ///
    /// # Errors
    /// If the directory can't be created or locked; then no journal can be written either.
    /// `TimedOut` if another process keeps it locked: it is named.
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
            Some(lock_file(directory, &path, PATIENCE).map_err(Error::journal(&path))?)
        };
        let lock = Self { directory: directory.to_owned(), path, file };
        if lock.file.is_some() {
            HELD_BY_THIS_THREAD.set(true);
            lock.remove_unfinished_journals();
        }
        Ok(lock)
    }

    /// Removes the temporary files of processes that were killed while they wrote a journal. They
    /// had not changed anything yet, and no other process writes a journal now.
    fn remove_unfinished_journals(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(UNFINISHED)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn lock_file(directory: &Path, path: &Path, patience: Duration) -> io::Result<File> {
    let deadline = Instant::now() + patience;
    loop {
        // Not the directory itself: any user could lock that for ever. The file belongs to its
        // owner.
        let file = match File::options().write(true).create(true).truncate(false).mode(0o600).open(path) {
            Ok(file) => file,
            // The previous holder removed the directory in between.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
                continue;
            }
            Err(error) => return Err(error),
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                thread::sleep(RETRY_INTERVAL);
                continue;
            }
            Err(Errno::WOULDBLOCK) => return Err(is_kept(path)),
            Err(error) => return Err(without_locks(error.into())),
        }
        let inode = |data: fs::Metadata| data.ino();
        // The previous holder may have removed the file.
        if file.metadata().ok().map(inode) == fs::metadata(path).ok().map(inode) {
            // For those that wait in vain. Without it they name nobody.
            let own = format!("{:?}", ProcessIdentity::current().to_json());
            let _ = file.set_len(0).and_then(|()| file.write_all_at(own.as_bytes(), 0));
            return Ok(file);
        }
    }
}

/// The error of a lock that another process keeps.
fn is_kept(path: &Path) -> io::Error {
    let holder = fs::read(path).ok().and_then(|text| ProcessIdentity::read(&text));
    let seconds = PATIENCE.as_secs();
    let message = match holder.map(|holder| (holder.has_id(holder.pid), holder.pid)) {
        Some((true, pid)) => format!(
            "process {pid} has kept it locked for {seconds} s: it hangs or was stopped; let it go on (kill -CONT {pid}) or end it"
        ),
        // Here the id is of nobody, or of another process.
        Some((false, pid)) => format!(
            "process {pid} of another PID namespace (a container) has kept it locked for {seconds} s: it hangs or was stopped"
        ),
        None => format!("another process has kept it locked for {seconds} s"),
    };
    io::Error::new(io::ErrorKind::TimedOut, message)
}

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

/// Holds the lock until the file is closed, here and in processes that have inherited it.
pub(crate) fn hold_file(file: &File) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, libc::F_WRLCK).map(drop)
}

/// Whether a process holds the file's lock. Takes none itself.
pub(crate) fn is_file_held(file: &File) -> io::Result<bool> {
    // Conflicts with a write lock only.
    Ok(control(file, libc::F_OFD_GETLK, libc::F_RDLCK)? != libc::F_UNLCK)
}

#[expect(unsafe_code, reason = "rustix has no locks of the open file description")]
/// Returns the type of the lock after the call: `F_UNLCK` if `F_OFD_GETLK` finds no conflict.
fn control(file: &File, operation: libc::c_int, kind: libc::c_int) -> io::Result<libc::c_int> {
    const { assert!(size_of::<libc::off_t>() == 8, "the kernel takes 64-bit offsets for these operations") };
    // The whole file. The process id must be 0.
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: both operations take a pointer to a `flock`, which is live and which nothing else
    // uses meanwhile; the descriptor is open as long as `file` is borrowed.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), operation, &raw mut lock) };
    if result == 0 { Ok(libc::c_int::from(lock.l_type)) } else { Err(io::Error::last_os_error()) }
}

/// Drops what holds the lock of the file at `path`. A process that another test starts has its
/// descriptor until it runs its program.
#[cfg(test)]
pub(crate) fn let_go<T>(holder: T, path: &Path) {
    let reader = File::open(path).unwrap();
    drop(holder);
    let end = Instant::now() + Duration::from_secs(10);
    while is_file_held(&reader).unwrap() {
        assert!(Instant::now() < end, "{} stays locked", path.display());
        thread::sleep(Duration::from_millis(1));
    }
}

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
    fn the_lock_is_seen_until_its_file_and_all_duplicates_are_closed() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let reader = File::open(named.path()).unwrap();
        assert!(!is_file_held(&reader).unwrap());
        hold_file(named.as_file()).unwrap();
        assert!(is_file_held(&reader).unwrap());
        // As a process has it that was forked.
        let duplicate = named.as_file().try_clone().unwrap();
        let other = File::options().read(true).write(true).open(named.path()).unwrap();
        assert!(hold_file(&other).is_err(), "two writers");
        let path = named.into_temp_path();
        assert!(is_file_held(&reader).unwrap());
        let_go(duplicate, &path);
        hold_file(&other).unwrap();
    }

    #[test]
    fn a_directory_that_another_process_keeps_locked_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let patience = Duration::from_millis(30);
        let kept = lock_file(folder.path(), &path, patience).unwrap();
        let error = lock_file(folder.path(), &path, patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(
            error.to_string().contains(&format!("process {} has kept it", std::process::id())),
            "{error}"
        );
        let other = serde_json::json!({ "pid": 1, "start": 1, "pid_namespace": 1 });
        fs::write(&path, other.to_string()).unwrap();
        let error = lock_file(folder.path(), &path, patience).unwrap_err().to_string();
        assert!(error.contains("process 1 of another PID namespace") && !error.contains("kill"), "{error}");
        drop(kept);
        lock_file(folder.path(), &path, patience).unwrap();
    }

    #[test]
    fn the_locks_that_every_reader_may_take_do_not_count() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let stranger = File::open(named.path()).unwrap();
        rustix::fs::flock(&stranger, FlockOperation::LockExclusive).unwrap();
        control(&stranger, libc::F_OFD_SETLK, libc::F_RDLCK).unwrap();
        assert!(hold_file(&stranger).is_err(), "it may not write");
        assert!(!is_file_held(&File::open(named.path()).unwrap()).unwrap());
    }

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
