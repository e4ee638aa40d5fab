//! The folder that files are served from.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, Mode, OFlags, ResolveFlags, openat2};

/// An open folder. Nothing outside of it is opened through it, whatever symbolic links are in it:
/// the kernel resolves paths beneath it only (`RESOLVE_BENEATH` of `openat2(2)`).
#[derive(Debug, Clone)]
pub struct Root(Arc<File>);

/// A folder can't be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve files from {path}: {source}")]
pub struct RootError {
    path: PathBuf,
    source: io::Error,
}

/// Never waits: a named pipe would be waited for otherwise.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

impl Root {
    /// Opens a folder.
    ///
    /// # Errors
    /// If it is not one, can't be read, or the kernel has no `openat2`.
    pub fn open(path: &Path) -> Result<Self, RootError> {
        let failed = |source: io::Error| RootError { path: path.to_owned(), source };
        let folder =
            rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let root = Self(Arc::new(folder.map_err(|error| failed(error.into()))?.into()));
        match root.open_with(Path::new("."), BENEATH | ResolveFlags::CACHED) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => {
                let reason = "this kernel, or a filter of system calls, has no openat2 with RESOLVE_CACHED (Linux 5.12)";
                Err(failed(io::Error::new(io::ErrorKind::Unsupported, reason)))
            }
            // EAGAIN only means that the dentry cache could not answer.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(failed(error)),
            _ => Ok(root),
        }
    }

    /// Whether the user that the process runs as now may look for files in a folder. One that was
    /// opened by root is no help.
    ///
    /// # Errors
    /// If it may not.
    pub fn check_access(path: &Path) -> Result<(), RootError> {
        let allowed = rustix::fs::access(path, Access::EXEC_OK);
        allowed.map_err(|error| RootError { path: path.to_owned(), source: error.into() })
    }

    /// Opens a file or folder beneath it. If the path is not in the kernel's cache, a thread of
    /// blocking work opens it, so that no disk holds the worker up.
    ///
    /// # Errors
    /// Those of `openat2(2)`; `EXDEV` if the path leads out of the root.
    pub async fn open_beneath(&self, path: &Path) -> io::Result<File> {
        match self.open_with(path, BENEATH | ResolveFlags::CACHED) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
        let (root, path) = (self.clone(), path.to_owned());
        let opened = runtime::spawn_blocking(move || root.open_again(&path)).await;
        opened.map_err(|_| io::Error::other("the thread that opens the file has panicked"))?
    }

    /// `EAGAIN`: something was renamed meanwhile, so the kernel can't say whether the path is
    /// beneath the root.
    fn open_again(&self, path: &Path) -> io::Result<File> {
        const ATTEMPTS: usize = 8;
        let again = |result: &io::Result<File>| matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        let mut result = self.open_with(path, BENEATH);
        for _ in 1..ATTEMPTS {
            if !again(&result) {
                break;
            }
            result = self.open_with(path, BENEATH);
        }
        result
    }

    fn open_with(&self, path: &Path, resolve: ResolveFlags) -> io::Result<File> {
        Ok(openat2(&*self.0, path, FLAGS, Mode::empty(), resolve)?.into())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[runtime::test]
    async fn links_are_followed_within_the_root_and_not_out_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let served = folder.path().join("served");
        std::fs::create_dir_all(served.join("inner")).unwrap();
        std::fs::write(folder.path().join("secret"), "s").unwrap();
        std::fs::write(served.join("file"), "f").unwrap();
        symlink("../file", served.join("inner/within")).unwrap();
        symlink("../secret", served.join("relative")).unwrap();
        symlink(folder.path().join("secret"), served.join("absolute")).unwrap();
        symlink("/proc/self/root/etc/passwd", served.join("magic")).unwrap();
        let root = Root::open(&served).unwrap();
        for within in ["file", "inner/within", ".", "inner"] {
            root.open_beneath(Path::new(within)).await.unwrap();
        }
        for out in ["relative", "absolute", "magic", "../secret", "/etc/passwd", "inner/../../secret"] {
            assert!(root.open_beneath(Path::new(out)).await.is_err(), "{out} was opened");
        }
    }

    #[test]
    fn a_root_that_is_no_folder_is_refused_by_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Root::open(file.path()).unwrap_err().to_string();
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        assert!(Root::open(Path::new("/nonexistent")).unwrap_err().to_string().contains("No such file"));
    }
}
