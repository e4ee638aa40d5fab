//! Files, on the threads of blocking work.
//!
//! Each call runs on a thread of [`spawn_blocking`], as `tokio::fs` does by
//! default: it takes one of the
//! [`Builder::max_blocking_threads`](crate::Builder::max_blocking_threads) (512) until the kernel
//! has answered, and two switches between threads. Where many files are read or written, put the
//! whole loop into one closure of `spawn_blocking`, which is also the way to what this module
//! doesn't have, such as the entries of a folder. On the `uring` driver
//! [`io::RingFd`](crate::io::RingFd) reads and writes without a thread.
//!
//! # Cancelling
//! Dropping the future of a call doesn't stop the call. From the future's first poll on, the
//! operation is done, also if it was still waiting for a thread, unless the runtime ends before it
//! has begun. Only its result is lost. So a cancelled [`write()`] leaves no half of its bytes, and
//! a cancelled [`File::write_all_at`] neither; wait for them all the same before others read the
//! file. A future that was never polled does nothing.
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

use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::handle::spawn_blocking;

/// Runs a call on a thread of the pool. It is run also if the future is dropped before a thread has
/// begun it, because dropping the handle of a task detaches the task.
///
/// # Errors
/// Those of the call. `Other` if the runtime ends before the call has begun, or no thread can be
/// had.
pub(crate) async fn pool_call<T, F>(call: F) -> io::Result<T>
where
    F: FnOnce() -> io::Result<T> + Send + 'static,
    T: Send + 'static,
{
    let call = move || catch_unwind(AssertUnwindSafe(call));
    match spawn_blocking(call).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        // The call never ran: the runtime has ended, or no thread could be started.
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

/// Functions of [`std::fs`] that take one path.
macro_rules! path_calls {
    ($($(#[$doc:meta])* $name:ident -> $output:ty;)*) => {
        $($(#[$doc])*
        pub async fn $name(path: impl AsRef<Path>) -> io::Result<$output> {
            let path = path.as_ref().to_owned();
            pool_call(move || std::fs::$name(path)).await
        })*
    };
}

path_calls! {
    /// Reads a whole file.
    read -> Vec<u8>;
    /// Reads a whole file; `InvalidData` if it is not UTF-8.
    read_to_string -> String;
    /// The metadata of a file or folder. Follows symbolic links.
    #[doc(alias = "stat")]
    metadata -> Metadata;
    /// Creates a folder and the folders that lead to it, as far as they don't exist.
    #[doc(alias = "mkdir")]
    create_dir_all -> ();
    /// Removes a file, or a symbolic link itself.
    #[doc(alias = "unlink")]
    remove_file -> ();
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

/// An open file. Each operation is a call on a thread of the pool.
///
/// Reads and writes take an offset, as `pread(2)` and `pwrite(2)` do, and there is no file
/// position. So any number of them may run at the same time, also on several workers, and
/// cancelling one leaves no position in doubt. A buffer goes to the thread with the operation, and
/// comes back with its result. An operation that fails, or is cancelled, drops it.
///
/// An operation keeps the descriptor open until it has ended, also if the file was dropped
/// meanwhile. Dropping the file after that closes it on the calling thread, and returns no error:
/// what has to be on the disk needs [`sync_all`](Self::sync_all) or [`sync_data`](Self::sync_data).
#[derive(Debug)]
pub struct File(Arc<std::fs::File>);

impl File {
    /// Opens a file to read it.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open_with(path, OpenOptions::new().read(true)).await
    }

    /// Opens a file to write it: creates it, or truncates the one that there is.
    pub async fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open_with(path, OpenOptions::new().write(true).create(true).truncate(true)).await
    }

    /// Opens a file with the options of the standard library. Where it is open to append, Linux
    /// ignores the offset of [`write_at`](Self::write_at) (`pwrite(2)`, BUGS).
    pub async fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> io::Result<Self> {
        let (options, path) = (options.clone(), path.as_ref().to_owned());
        pool_call(move || options.open(path)).await.map(Self::from_std)
    }

    /// Takes an open file. Its position is not used.
    pub fn from_std(file: std::fs::File) -> Self {
        Self(Arc::new(file))
    }

    /// Returns the file of the standard library.
    ///
    /// # Errors
    /// Returns the file unchanged while a cancelled operation goes on.
    pub fn try_into_std(self) -> Result<std::fs::File, Self> {
        Arc::try_unwrap(self.0).map_err(Self)
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&std::fs::File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let file = Arc::clone(&self.0);
        pool_call(move || call(&file)).await
    }

    /// Reads at most as many bytes as the buffer is long (not its capacity) from an offset on, and
    /// returns their number and the buffer, which begins with them. 0: the file ends at the offset
    /// or before it.
    #[doc(alias = "pread")]
    pub async fn read_at<B>(&self, mut buffer: B, offset: u64) -> io::Result<(usize, B)>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        self.call(move |file| Ok((file.read_at(buffer.as_mut(), offset)?, buffer))).await
    }

    /// Fills a buffer with the bytes from an offset on.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends before the buffer is full; else those of `pread(2)`.
    pub async fn read_exact_at<B>(&self, mut buffer: B, offset: u64) -> io::Result<B>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        self.call(move |file| file.read_exact_at(buffer.as_mut(), offset).map(|()| buffer)).await
    }

    /// Writes bytes from an offset on, and returns how many were written, and the buffer. Beyond
    /// the file's end there are zeros up to the offset.
    #[doc(alias = "pwrite")]
    pub async fn write_at<B>(&self, buffer: B, offset: u64) -> io::Result<(usize, B)>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        self.call(move |file| Ok((file.write_at(buffer.as_ref(), offset)?, buffer))).await
    }

    /// Writes all bytes of a buffer from an offset on, also if the future is dropped meanwhile.
    ///
    /// # Errors
    /// Those of `pwrite(2)`. Some of the bytes may be written then.
    pub async fn write_all_at<B>(&self, buffer: B, offset: u64) -> io::Result<B>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        self.call(move |file| file.write_all_at(buffer.as_ref(), offset).map(|()| buffer)).await
    }

    /// Waits until the file's content and metadata are on the disk. Its errors include those of
    /// earlier writes.
    #[doc(alias = "fsync")]
    pub async fn sync_all(&self) -> io::Result<()> {
        self.call(std::fs::File::sync_all).await
    }

    /// As [`sync_all`](Self::sync_all), with only the metadata that is needed to read the file.
    #[doc(alias = "fdatasync")]
    pub async fn sync_data(&self) -> io::Result<()> {
        self.call(std::fs::File::sync_data).await
    }

    /// Cuts the file to a length in bytes, or extends it with zeros. `InvalidInput` if it was not
    /// opened to be written.
    #[doc(alias = "ftruncate")]
    pub async fn set_len(&self, length: u64) -> io::Result<()> {
        self.call(move |file| file.set_len(length)).await
    }

    /// The file's metadata.
    #[doc(alias = "fstat")]
    pub async fn metadata(&self) -> io::Result<Metadata> {
        self.call(std::fs::File::metadata).await
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self::from_std(file)
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
