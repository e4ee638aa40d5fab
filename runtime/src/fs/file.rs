//! An open file.

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use super::ring_read::{is_readable, ring_read, ring_takes};
use crate::pool_call::pool_call;

/// An open file. Each operation is a call on a thread of the pool, except short reads on the ring
/// ([module](super)).
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
pub struct File {
    file: Arc<std::fs::File>,
    /// Whether the ring may read it. Unknown until a worker with a ring wants to.
    ring_reads: OnceLock<bool>,
}

impl File {
    /// Takes an open file. Its position is not used.
    pub fn from_std(file: std::fs::File) -> Self {
        Self { file: Arc::new(file), ring_reads: OnceLock::new() }
    }

    /// Returns the file of the standard library.
    ///
    /// # Errors
    /// Returns the file unchanged while a cancelled operation goes on.
    pub fn try_into_std(self) -> Result<std::fs::File, Self> {
        let ring_reads = self.ring_reads;
        Arc::try_unwrap(self.file).map_err(|file| Self { file, ring_reads })
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&std::fs::File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let file = Arc::clone(&self.file);
        pool_call(move || call(&file)).await
    }

    /// Reads into a buffer on the ring. `None`: nothing was read, and a thread has to.
    async fn read_on_ring(&self, buffer: &mut (impl AsMut<[u8]> + Send), offset: u64) -> Option<usize> {
        let length = buffer.as_mut().len();
        if !ring_takes(length) || !*self.ring_reads.get_or_init(|| is_readable(&self.file)) {
            return None;
        }
        let bytes = ring_read(&self.file, length, offset).await?;
        // As long as before, unless the caller's type has changed its mind.
        buffer.as_mut().get_mut(..bytes.len())?.copy_from_slice(&bytes);
        Some(bytes.len())
    }

    /// Reads at most as many bytes as the buffer is long (not its capacity) from an offset on, and
    /// returns their number and the buffer, which begins with them. 0: the file ends at the offset
    /// or before it.
    #[doc(alias = "pread")]
    pub async fn read_at<B>(&self, mut buffer: B, offset: u64) -> io::Result<(usize, B)>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        if let Some(read) = self.read_on_ring(&mut buffer, offset).await {
            return Ok((read, buffer));
        }
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
        let length = buffer.as_mut().len();
        if self.read_on_ring(&mut buffer, offset).await == Some(length) {
            return Ok(buffer);
        }
        // Where the file ends too early the system call finds that out, too.
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

    /// Waits until the file's content and metadata are on the disk.
    ///
    /// # Errors
    /// Those of `fsync(2)`, which include errors of earlier writes.
    #[doc(alias = "fsync")]
    pub async fn sync_all(&self) -> io::Result<()> {
        self.call(std::fs::File::sync_all).await
    }

    /// Waits until the file's content is on the disk, with the metadata that is needed to read it.
    ///
    /// # Errors
    /// Those of `fdatasync(2)`, which include errors of earlier writes.
    #[doc(alias = "fdatasync")]
    pub async fn sync_data(&self) -> io::Result<()> {
        self.call(std::fs::File::sync_data).await
    }

    /// Cuts the file to a length in bytes, or extends it with zeros.
    ///
    /// # Errors
    /// Those of `ftruncate(2)`; `InvalidInput` if the file was not opened to be written.
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
        self.file.as_fd()
    }
}
