//! The lock that the writer of a journal or a status file holds on it until it ends.
//!
//! It is a write lock of the open file description (`F_OFD_SETLK` in fcntl(2)). The kernel removes it when the last
//! descriptor is closed, so at the latest when the process ends, however that happens. A reader asks whether there is one
//! (`F_OFD_GETLK`); the answer does not depend on what `/proc` shows to it, nor on its PID namespace. A lock by flock(2) or
//! a read lock would not do: everybody who may read the file may take them, and could keep a journal from being
//! restored.

#![expect(unsafe_code, reason = "rustix has no locks of the open file description")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Holds the lock until the file is closed, here and in processes that have inherited it.
///
/// # Errors
/// If the file is not open for writing or is locked, or if the file system has no locks.
pub(crate) fn hold(file: &File) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, libc::F_WRLCK).map(drop)
}

/// Whether a process holds the file's lock. Takes none itself.
///
/// # Errors
/// If the file system has no locks.
pub(crate) fn is_held(file: &File) -> io::Result<bool> {
    // Conflicts with a write lock only.
    Ok(control(file, libc::F_OFD_GETLK, libc::F_RDLCK)? != libc::F_UNLCK)
}

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
    // SAFETY: both operations take a pointer to a `flock`, which is live and which nothing else uses meanwhile; the
    // descriptor is open as long as `file` is borrowed.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), operation, &raw mut lock) };
    if result == 0 { Ok(libc::c_int::from(lock.l_type)) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FlockOperation;

    use super::*;

    #[test]
    fn the_lock_is_seen_until_its_file_and_all_duplicates_are_closed() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let reader = File::open(named.path()).unwrap();
        assert!(!is_held(&reader).unwrap());
        hold(named.as_file()).unwrap();
        assert!(is_held(&reader).unwrap());
        // As a process has it that was forked.
        let duplicate = named.as_file().try_clone().unwrap();
        let other = File::options().read(true).write(true).open(named.path()).unwrap();
        assert!(hold(&other).is_err(), "two writers");
        let path = named.into_temp_path();
        assert!(is_held(&reader).unwrap());
        drop(duplicate);
        assert!(!is_held(&reader).unwrap());
        hold(&other).unwrap();
        drop(path);
    }

    #[test]
    fn the_locks_that_every_reader_may_take_do_not_count() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let stranger = File::open(named.path()).unwrap();
        rustix::fs::flock(&stranger, FlockOperation::LockExclusive).unwrap();
        control(&stranger, libc::F_OFD_SETLK, libc::F_RDLCK).unwrap();
        assert!(hold(&stranger).is_err(), "it may not write");
        assert!(!is_held(&File::open(named.path()).unwrap()).unwrap());
    }
}
