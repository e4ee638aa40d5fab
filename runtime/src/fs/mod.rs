//! Files, on the threads of blocking work, and for short reads on the ring.
//!
//! Each call but these reads runs on a thread of [`spawn_blocking`](crate::spawn_blocking), as
//! `tokio::fs` does by default: it takes one of the
//! [`Builder::max_blocking_threads`](crate::Builder::max_blocking_threads) (512) until the kernel
//! has answered, and two switches between threads. Where many files are read or written, put the
//! whole loop into one closure of `spawn_blocking`, which is also the way to what this module
//! doesn't have.
//!
//! On the `uring` driver, reads of at most 4 KiB of an open regular [`File`] are operations of the
//! worker's ring. They need no thread, and took 0.13 to 0.67 of the CPU time of a call on a thread
//! (ext4 on a shared virtual machine, a program without optimization); longer reads, writes and
//! opens were not clearly better there. Reads are calls on threads also if the file is open for
//! direct I/O (`O_DIRECT`), and while [`time::pause`](crate::time::pause) has stopped the clock.
//! [`io::RingFd`](crate::io::RingFd) reads and writes by the ring in any case.
//!
//! # Cancelling
//! Dropping the future of a call doesn't stop the call. From the future's first poll on, the
//! operation is done, also if it was still waiting for a thread, unless the runtime ends before it
//! has begun (or, for a read on the ring, ended). Only its result is lost. So a cancelled
//! [`write()`] leaves no half of its bytes, and a cancelled [`File::write_all_at`] neither; wait
//! for them all the same before others read the file. A future that was never polled does nothing.
//!
//! # Errors and panics
//! Errors are those of the functions of the same names in [`std::fs`]. All of these functions panic
//! outside of a runtime, at the first poll of their future. A thread that has
//! [entered](crate::Handle::enter) a runtime will do.
//!
//! ```
//! # #[runtime::main(driver = "epoll", workers = 1)]
//! # async fn main() -> std::io::Result<()> {
//! let folder = std::env::temp_dir().join(format!("lull-fs-{}", std::process::id()));
//! runtime::fs::create_dir_all(&folder).await?;
//! let path = folder.join("greeting");
//! runtime::fs::write(&path, "hello").await?;
//! assert_eq!(runtime::fs::read_to_string(&path).await?, "hello");
//!
//! let file = runtime::fs::File::open(&path).await?;
//! let (read, buffer) = file.read_at(vec![0; 8], 1).await?;
//! assert_eq!(&buffer[..read], b"ello");
//! runtime::fs::remove_file(&path).await?;
//! # std::fs::remove_dir(&folder)
//! # }
//! ```

mod file;
mod open_options;
mod read_dir;
mod ring_read;

use std::fs::{Metadata, Permissions};
use std::io;
use std::path::Path;

pub use self::file::File;
pub use self::open_options::OpenOptions;
pub use self::read_dir::{ReadDir, read_dir};
use crate::pool_call::pool_call;

/// Reads a whole file.
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref().to_owned();
    pool_call(move || std::fs::read(path)).await
}

/// Reads a whole file, which must be UTF-8.
///
/// # Errors
/// As [`std::fs::read_to_string`]: `InvalidData` if it is not UTF-8.
pub async fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    let path = path.as_ref().to_owned();
    pool_call(move || std::fs::read_to_string(path)).await
}

/// Writes a whole file: creates it, or truncates the one that there is. The bytes are moved to the
/// thread, so a borrowed slice has to be `'static`.
///
/// Others may see the file while it is written. To replace a file at once, write another,
/// [`File::sync_all`] it, and [`rename`] it.
pub async fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]> + Send + 'static) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    pool_call(move || std::fs::write(path, contents)).await
}

/// The metadata of a file or folder. Follows symbolic links.
#[doc(alias = "stat")]
pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    let path = path.as_ref().to_owned();
    pool_call(move || std::fs::metadata(path)).await
}

/// Creates a folder and the folders that lead to it, as far as they don't exist.
#[doc(alias = "mkdir")]
pub async fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    pool_call(move || std::fs::create_dir_all(path)).await
}

/// Removes a file, or a symbolic link itself.
#[doc(alias = "unlink")]
pub async fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    pool_call(move || std::fs::remove_file(path)).await
}

/// Renames a file or folder, and replaces a file that has the new name. Both must be on the same
/// file system.
pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
    pool_call(move || std::fs::rename(from, to)).await
}

/// Copies a file's contents and permissions to another, which is created or replaced. Returns how
/// many bytes.
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
    pool_call(move || std::fs::copy(from, to)).await
}

/// Makes a symbolic link at `link` that leads to `original`.
pub async fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let (original, link) = (original.as_ref().to_owned(), link.as_ref().to_owned());
    pool_call(move || std::os::unix::fs::symlink(original, link)).await
}

/// Sets the permissions of a file or folder. Follows symbolic links.
#[doc(alias = "chmod")]
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    pool_call(move || std::fs::set_permissions(path, permissions)).await
}
