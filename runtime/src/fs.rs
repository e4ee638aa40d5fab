//! Files, on the threads of blocking work.
//!
//! Each call runs on a thread of [`spawn_blocking`](crate::spawn_blocking), as `tokio::fs` does by
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
//! runtime::fs::remove_dir_all(&folder).await
//! # }
//! ```

use std::fs::{Metadata, OpenOptions, Permissions};
use std::io::{self, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite};

use crate::pool_io::{MOST_AT_ONCE, PendingCall, Reading, Writing, pool_call};

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
    /// The metadata of a file or folder, or of a symbolic link itself.
    #[doc(alias = "lstat")]
    symlink_metadata -> Metadata;
    /// The absolute path without symbolic links, `.` and `..`. The file must exist.
    #[doc(alias = "realpath")]
    canonicalize -> PathBuf;
    /// Where a symbolic link points to.
    #[doc(alias = "readlink")]
    read_link -> PathBuf;
    /// Creates a folder in one that exists.
    #[doc(alias = "mkdir")]
    create_dir -> ();
    /// Creates a folder and the folders that lead to it, as far as they don't exist.
    #[doc(alias = "mkdir")]
    create_dir_all -> ();
    /// Removes a file, or a symbolic link itself.
    #[doc(alias = "unlink")]
    remove_file -> ();
    /// Removes an empty folder.
    #[doc(alias = "rmdir")]
    remove_dir -> ();
    /// Removes a folder and everything in it. Symbolic links are removed, and not followed.
    remove_dir_all -> ();
}

/// Functions of [`std::fs`], or of the named module, that take the path of what there is and that
/// of what there will be.
macro_rules! two_path_calls {
    ($($(#[$doc:meta])* $name:ident -> $output:ty, $function:path;)*) => {
        $($(#[$doc])*
        pub async fn $name(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<$output> {
            let (from, to) = (from.as_ref().to_owned(), to.as_ref().to_owned());
            pool_call(move || $function(from, to)).await
        })*
    };
}

two_path_calls! {
    /// Renames a file or folder, and replaces a file that has the new name. Both must be on the
    /// same file system.
    rename -> (), std::fs::rename;
    /// Copies a file's contents and permissions to another, which is created or replaced. Returns
    /// how many bytes.
    copy -> u64, std::fs::copy;
    /// Gives a file a second name, on the same file system.
    #[doc(alias = "link")]
    hard_link -> (), std::fs::hard_link;
    /// Creates a symbolic link, the second path, which points to the first.
    symlink -> (), std::os::unix::fs::symlink;
}

/// Whether there is a file or folder. `false` also for a symbolic link that points nowhere.
///
/// # Errors
/// If that can't be known, for example because a folder that leads to it may not be read.
pub async fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    let path = path.as_ref().to_owned();
    pool_call(move || std::fs::exists(path)).await
}

/// Sets the permissions of a file or folder. Follows symbolic links.
#[doc(alias = "chmod")]
pub async fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    let path = path.as_ref().to_owned();
    pool_call(move || std::fs::set_permissions(path, permissions)).await
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

/// An open file. Each operation is a call on a thread of the pool.
///
/// Its own reads and writes take an offset, as `pread(2)` and `pwrite(2)` do. Any number of them
/// may run at the same time, also on several workers, and cancelling one leaves no position in
/// doubt. A buffer goes to the thread with the operation, and comes back with its result. An
/// operation that fails, or is cancelled, drops it.
///
/// The futures-io traits read and write from a position on, which is 0 at first, and not the
/// descriptor's (`lseek(2)`): the file must be seekable, and for pipes there is
/// [`pipe`](crate::pipe). They move up to 64 KiB at once, and copy them; `AsyncBufRead` reads as
/// much ahead.
/// - A **read** that was dropped loses nothing: the next one returns its bytes, unless a seek or a
///   write comes before.
/// - A **write** returns when its bytes are copied, and a thread writes them. Its error is that of
///   the next operation of these traits, and the position is then where that write began: flush
///   before the file is dropped, given back or read by others, and before the runtime ends, since a
///   write that no thread has begun by then is dropped. A file that is open to append is written at
///   its end, wherever the position is.
/// - A **seek** drops what was read ahead, except by 0 from the current position. Later writes that
///   name an offset, and those of others, don't change it.
///
/// ```
/// use futures_util::{AsyncBufReadExt, TryStreamExt};
///
/// # #[runtime::main(driver = "epoll", workers = 1)]
/// # async fn main() -> std::io::Result<()> {
/// let mut lines = runtime::fs::File::open("Cargo.toml").await?.lines();
/// assert_eq!(lines.try_next().await?.as_deref(), Some("[package]"));
/// # Ok(())
/// # }
/// ```
///
/// An operation keeps the descriptor open until it has ended, also if the file was dropped
/// meanwhile. Dropping the file after that closes it on the calling thread, and returns no error:
/// what has to be on the disk needs [`sync_all`](Self::sync_all) or [`sync_data`](Self::sync_data).
pub struct File {
    file: Arc<std::fs::File>,
    stream: Box<FileStream>,
    unwritten: Arc<Unwritten>,
}

/// Whether the last write of the traits has not been made yet.
#[derive(Default)]
struct Unwritten {
    pending: Mutex<bool>,
    made: Condvar,
}

impl Unwritten {
    /// Waits, on a thread of the pool. Threads take calls in their order, so another one has begun
    /// the write, which is older than this call, or has dropped it.
    fn wait(&self) {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.made.wait_while(pending, |pending| *pending).unwrap_or_else(PoisonError::into_inner));
    }
}

/// Held by the call of a write until that has ended, or was dropped.
struct PendingWrite(Arc<Unwritten>);

impl PendingWrite {
    /// Each write has its own flag. A call that is still queued when this write begins, because it was
    /// cancelled, runs before the write: if it waited for the write, the two could deadlock.
    fn begin(unwritten: &mut Arc<Unwritten>) -> Self {
        *unwritten = Arc::new(Unwritten { pending: Mutex::new(true), made: Condvar::new() });
        Self(Arc::clone(unwritten))
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        *self.0.pending.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.made.notify_all();
    }
}

/// A file as the traits see it.
#[derive(Default)]
struct FileStream {
    /// Of the next byte that a read takes, and that a write begins with.
    position: u64,
    /// What comes from the position on.
    reading: Reading,
    writing: Writing,
    /// Where the last write began.
    write_began: u64,
    /// A seek from the end asks for the length.
    length: Option<PendingCall<u64>>,
}

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

    /// Takes an open file. Its descriptor's position is not used, nor changed.
    pub fn from_std(file: std::fs::File) -> Self {
        Self { file: Arc::new(file), stream: Box::default(), unwritten: Arc::default() }
    }

    /// Returns the file of the standard library.
    ///
    /// # Errors
    /// Returns the file, unchanged, after a write that was not flushed, and while an operation goes
    /// on that was cancelled.
    pub fn try_into_std(self) -> Result<std::fs::File, Self> {
        if self.stream.writing.is_pending() {
            return Err(self);
        }
        let Self { file, stream, unwritten } = self;
        Arc::try_unwrap(file).map_err(|file| Self { file, stream, unwritten })
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&std::fs::File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let file = Arc::clone(&self.file);
        pool_call(move || call(&file)).await
    }

    /// As [`File::call`], after the write of the traits before.
    async fn call_after_write<T: Send + 'static>(
        &self,
        call: impl FnOnce(&std::fs::File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let unwritten = Arc::clone(&self.unwritten);
        self.call(move |file| {
            unwritten.wait();
            call(file)
        })
        .await
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

    /// Waits until the file's content and metadata are on the disk, also of a write of the traits
    /// that was not flushed. The error of that write is still the next flush's; a disk's errors at
    /// earlier writes are returned here (`fsync(2)`).
    #[doc(alias = "fsync")]
    pub async fn sync_all(&self) -> io::Result<()> {
        self.call_after_write(std::fs::File::sync_all).await
    }

    /// As [`sync_all`](Self::sync_all), with only the metadata that is needed to read the file.
    #[doc(alias = "fdatasync")]
    pub async fn sync_data(&self) -> io::Result<()> {
        self.call_after_write(std::fs::File::sync_data).await
    }

    /// Cuts the file to a length in bytes, or extends it with zeros. `InvalidInput` if it was not
    /// opened to be written.
    #[doc(alias = "ftruncate")]
    pub async fn set_len(&self, length: u64) -> io::Result<()> {
        self.call_after_write(move |file| file.set_len(length)).await
    }

    /// The file's metadata.
    #[doc(alias = "fstat")]
    pub async fn metadata(&self) -> io::Result<Metadata> {
        self.call_after_write(std::fs::File::metadata).await
    }

    /// Sets the file's permissions.
    #[doc(alias = "fchmod")]
    pub async fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        self.call(move |file| file.set_permissions(permissions)).await
    }

    /// Reads a buffer's length from the position on.
    fn reader(&self) -> impl Fn(&mut [u8]) -> io::Result<usize> + Send + use<> {
        let (file, position) = (Arc::clone(&self.file), self.stream.position);
        move |buffer| file.read_at(buffer, position)
    }
}

impl FileStream {
    fn move_to(&mut self, position: u64) {
        // What was read ahead may be of another position, or of another time.
        self.reading = Reading::default();
        self.position = position;
        // A seek that was cancelled may have asked too early.
        self.length = None;
    }

    /// Waits for the last write.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = ready!(self.writing.poll_flush(context));
        if written.is_err() {
            self.move_to(self.write_began);
        }
        Poll::Ready(written)
    }
}

impl AsyncRead for File {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        // So that it sees what was written.
        ready!(self.stream.poll_written(context))?;
        let (read, length) = (self.reader(), buffer.len().min(MOST_AT_ONCE));
        let count = ready!(self.stream.reading.poll_read(context, buffer, length, read))?;
        self.stream.position += count as u64;
        Poll::Ready(Ok(count))
    }
}

impl AsyncBufRead for File {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.stream.poll_written(context))?;
        let read = this.reader();
        this.stream.reading.poll_fill(context, MOST_AT_ONCE, read)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        self.stream.position += self.stream.reading.consume(count) as u64;
    }
}

impl AsyncWrite for File {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Before the next one counts as pending.
        ready!(self.stream.poll_written(context))?;
        let (file, position) = (Arc::clone(&self.file), self.stream.position);
        let pending = PendingWrite::begin(&mut self.unwritten);
        let write = move |bytes: &[u8]| {
            let written = file.write_all_at(bytes, position);
            drop(pending);
            written
        };
        let count = ready!(self.stream.writing.poll_write(context, bytes, write))?;
        self.stream.write_began = position;
        self.stream.move_to(position + count as u64);
        Poll::Ready(Ok(count))
    }

    /// Waits until the kernel has what was written. It need not be on the disk: [`File::sync_all`].
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll_written(context)
    }

    /// As a flush: the descriptor stays open.
    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

/// A position beyond the end is allowed. `InvalidInput` for one below 0 or above `i64::MAX`. A seek
/// from the end that is dropped leaves the length that it has asked for to the next one.
impl AsyncSeek for File {
    fn poll_seek(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        ready!(self.stream.poll_written(context))?;
        let position = match to {
            SeekFrom::Current(0) => return Poll::Ready(Ok(self.stream.position)),
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(distance) => self.stream.position.checked_add_signed(distance),
            SeekFrom::End(distance) => {
                let file = Arc::clone(&self.file);
                let ask = || PendingCall::new(move || file.metadata().map(|metadata| metadata.len()));
                let length = ready!(self.stream.length.get_or_insert_with(ask).poll(context));
                self.stream.length = None;
                length?.checked_add_signed(distance)
            }
        };
        let position = position.filter(|&position| i64::try_from(position).is_ok());
        let position = position.ok_or(io::ErrorKind::InvalidInput)?;
        self.stream.move_to(position);
        Poll::Ready(Ok(position))
    }
}

opaque_debug!(File, "File", |it| "file" = it.file, "position" = it.stream.position);

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> Self {
        Self::from_std(file)
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
