//! Reads on the worker's ring, where that is faster than a thread ([module](super)).

use std::fs::File;
use std::panic::Location;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};

use crate::io::RingFd;
use crate::task::spawn::spawn_local;
use crate::task_core::identity::Identity;
use crate::worker::current;

/// The longest read that the ring does, in bytes. One worker submits all of them, and copies what
/// is in the page cache: many longer ones were slower than on threads
/// (`docs/decisions/zero-copy-and-files.md`).
const MAX_LENGTH: usize = 4 << 10;

/// Whether the ring may read a file: at an offset, a pipe ignores it there (`io_uring/rw.c`), and a
/// file that is open for direct I/O has rules for its buffers.
pub(super) fn is_readable(file: &File) -> bool {
    let regular = || {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let status = rustix::fs::statx(file, "", flags, StatxFlags::TYPE).ok()?;
        let direct = rustix::fs::fcntl_getfl(file).ok()?.contains(OFlags::DIRECT);
        Some(FileType::from_raw_mode(status.stx_mode.into()).is_file() && !direct)
    };
    regular().unwrap_or(false)
}

pub(super) fn ring_takes(length: usize) -> bool {
    // A paused clock waits for threads of blocking work, not for the ring.
    let has_ring = current::try_with(|worker| worker.driver.ring().is_some() && !worker.clock.is_paused());
    (1..=MAX_LENGTH).contains(&length) && has_ring == Some(true)
}

/// Reads bytes on the calling worker's ring, which [takes](ring_takes) so many; fewer where the
/// file ends. `None`: this read has failed, and a system call has the error.
///
/// The read goes on if the future is dropped. A task of the worker waits for it, so that this
/// future may be sent.
pub(super) async fn ring_read(file: &Arc<File>, length: usize, offset: u64) -> Option<Vec<u8>> {
    let file = RingFd::shared(Arc::clone(file));
    // Not a task of the application's.
    let reading = spawn_local(Identity::without_span(Location::caller()), async move {
        let (read, bytes) = file.read_at(Vec::with_capacity(length), offset).await;
        read.ok().map(|_| bytes)
    });
    reading.await.ok().flatten()
}
