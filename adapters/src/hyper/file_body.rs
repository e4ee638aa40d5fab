//! A response's body that is a part of a file.
//!
//! hyper writes the bytes that a body gives it, and doesn't look at them. So a body may give it
//! bytes that are only an address: a part of a reserved region of memory, which nobody ever reads
//! or writes. When the stream is to write bytes of that region, it sends the file instead.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use ::hyper::body::{Body, Bytes, Frame, SizeHint};
use memmap2::{Mmap, MmapOptions};
use runtime::JoinHandle;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use slab::Slab;

/// How many bytes a read takes at most: a frame of HTTP/2. hyper takes one for each stream before
/// it looks whether the client wants it.
const CHUNK: usize = 16 << 10;

/// A part of a file as the body of a response of [`serve`](super::serve).
///
/// It is read, 16 KiB at a time; or the kernel sends it: [`sent_by_kernel`](Self::sent_by_kernel).
/// What is not in the page cache is read on a thread of
/// [`spawn_blocking`](runtime::spawn_blocking), so that the worker never waits for the disk.
///
/// If the file ends too early, as it was cut meanwhile, the response is broken off.
#[derive(Debug)]
pub struct FileBody {
    file: Arc<File>,
    offset: u64,
    left: u64,
    by_kernel: bool,
    /// A read on another thread.
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl FileBody {
    /// `length` bytes of a file from `offset` on.
    pub fn new(file: Arc<File>, offset: u64, length: u64) -> Self {
        Self { file, offset, left: length, by_kernel: false, reading: None }
    }

    /// Lets the kernel send the file (`sendfile(2)`) where the connection allows it: on HTTP/1
    /// without TLS. No byte of it comes to this program then. Elsewhere it is read.
    ///
    /// Return it as it is: the response is broken off if a layer around the service reads or
    /// changes the body, as one that compresses does. Code that reads the body itself gets its
    /// bytes.
    #[doc(alias = "sendfile")]
    pub fn sent_by_kernel(mut self) -> Self {
        self.by_kernel = true;
        self
    }

    /// The next bytes, unless they have to be read on another thread.
    fn next_bytes(&self) -> io::Result<Option<Bytes>> {
        if self.by_kernel && SENDING.get() == Sending::Allowed {
            let length = self.left.min(SLOT as u64) as usize;
            if !is_cached(&self.file, self.offset + length as u64 - 1)? {
                return Ok(None);
            }
            if let Some(bytes) = placeholder(&self.file, self.offset, length) {
                SENDING.set(Sending::Given);
                return Ok(Some(bytes));
            }
        }
        let mut bytes = vec![0; self.left.min(CHUNK as u64) as usize];
        match read_cached(&self.file, &mut bytes, self.offset)? {
            Some(length) => {
                bytes.truncate(length);
                Ok(Some(bytes.into()))
            }
            None => Ok(None),
        }
    }

    fn take(&mut self, bytes: Bytes) -> io::Result<Bytes> {
        if bytes.is_empty() {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file has become shorter"));
        }
        self.offset += bytes.len() as u64;
        self.left -= bytes.len() as u64;
        Ok(bytes)
    }
}

/// Reads what is in the page cache. `None`: the first byte is not.
fn read_cached(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
    match preadv2(file, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT) {
        Ok(length) => Ok(Some(length)),
        // The filesystem can't say.
        Err(Errno::OPNOTSUPP | Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a byte is in the page cache. So are those before it, mostly: they were read ahead
/// together.
fn is_cached(file: &File, offset: u64) -> io::Result<bool> {
    match read_cached(file, &mut [0], offset)? {
        Some(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the file has become shorter")),
        known => Ok(known.is_some()),
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if self.reading.is_none() {
            match self.next_bytes() {
                Ok(Some(bytes)) => return Poll::Ready(Some(self.take(bytes).map(Frame::data))),
                Ok(None) => {
                    let (file, offset) = (Arc::clone(&self.file), self.offset);
                    let length = self.left.min(SLOT as u64) as usize;
                    self.reading = Some(runtime::spawn_blocking(move || read(&file, offset, length)));
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        let read = read.map_err(io::Error::other).flatten();
        Poll::Ready(Some(read.and_then(|bytes| self.take(bytes)).map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Reads until the buffer is full or the file ends.
fn read(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes.into())
}

/// Whether bytes that a body gives now may stand for those of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// Somebody reads them, perhaps.
    Refused,
    /// They go to a socket that sends files.
    Allowed,
    /// Some were given.
    Given,
}

thread_local! {
    static SENDING: Cell<Sending> = const { Cell::new(Sending::Refused) };
}

/// Polls a body whose next bytes go to an `HttpSocket`. Returns also whether a [`FileBody`] in it
/// has given bytes that stand for those of a file: they have to arrive there unchanged.
pub(super) fn poll_for_socket<T>(poll: impl FnOnce() -> T) -> (T, bool) {
    /// Also after a panic.
    struct Refuse;
    impl Drop for Refuse {
        fn drop(&mut self) {
            SENDING.set(Sending::Refused);
        }
    }
    let _refuse = Refuse;
    SENDING.set(Sending::Allowed);
    let polled = poll();
    (polled, SENDING.get() == Sending::Given)
}

/// How many bytes of a file one part of the region stands for.
const SLOT: usize = 256 << 10;
/// How many parts may be waiting to be written at the same time, in the whole process: one for each
/// client that receives a file, seldom more.
const SLOTS: usize = 4096;

struct Region {
    /// Reserved address space. Nothing here touches its pages. It is mapped readable, because safe
    /// code that gets a body's bytes may read them. All of it would be the kernel's page of zeros,
    /// which takes no memory but page tables (2 MiB).
    bytes: Mmap,
    files: Mutex<Slab<FilePart>>,
}

/// From where on the file's bytes are sent.
#[derive(Debug, Clone)]
pub(super) struct FilePart {
    pub(super) file: Arc<File>,
    pub(super) offset: u64,
}

/// Reserved for the first file.
static REGION: OnceLock<Option<Region>> = OnceLock::new();

fn region() -> Option<&'static Region> {
    let reserve = || {
        // Refused where the address space is limited (ulimit -v): then files are read.
        let mapped = MmapOptions::new().len(SLOT * SLOTS).no_reserve_swap().map_anon().ok()?;
        Some(Region { bytes: mapped.make_read_only().ok()?, files: Mutex::default() })
    };
    REGION.get_or_init(reserve).as_ref()
}

impl Region {
    fn files(&self) -> MutexGuard<'_, Slab<FilePart>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of the region, in use until it is dropped.
struct Slot {
    region: &'static Region,
    index: usize,
    length: usize,
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        &self.region.bytes[self.index * SLOT..][..self.length]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The file is closed outside of the lock.
        let _part = self.region.files().try_remove(self.index);
    }
}

/// Bytes that stand for `length` bytes, at most [`SLOT`], of a file. `None`: there are none left.
fn placeholder(file: &Arc<File>, offset: u64, length: usize) -> Option<Bytes> {
    let region = region()?;
    let index = {
        let mut files = region.files();
        if files.len() >= SLOTS {
            return None;
        }
        files.insert(FilePart { file: Arc::clone(file), offset })
    };
    Some(Bytes::from_owner(Slot { region, index, length: length.min(SLOT) }))
}

/// Whether bytes stand for those of a file.
pub(super) fn stands_for_file(bytes: &[u8]) -> bool {
    position_of(bytes).is_some()
}

/// Where bytes are in the region, if they are.
fn position_of(bytes: &[u8]) -> Option<(&'static Region, usize)> {
    let region = REGION.get()?.as_ref()?;
    let position = bytes.as_ptr().addr().checked_sub(region.bytes.as_ptr().addr())?;
    (position < region.bytes.len()).then_some((region, position))
}

/// What bytes stand for, if they are of the region.
pub(super) fn file_part(bytes: &[u8]) -> Option<FilePart> {
    let (region, position) = position_of(bytes)?;
    let mut part = region.files().get(position / SLOT)?.clone();
    part.offset += (position % SLOT) as u64;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_found_by_its_address_until_it_is_dropped() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let first = placeholder(&file, 1000, 10).unwrap();
        let second = placeholder(&file, 5000, SLOT).unwrap();
        assert_eq!((first.len(), second.len()), (10, SLOT));
        assert_eq!(file_part(&first[3..]).unwrap().offset, 1003);
        assert_eq!(file_part(&second[SLOT - 1..]).unwrap().offset, 5000 + SLOT as u64 - 1);
        assert!(file_part(b"elsewhere").is_none());
        assert_eq!(Arc::strong_count(&file), 3);
        drop(first);
        assert_eq!(Arc::strong_count(&file), 2);
        assert_eq!(file_part(&second).unwrap().offset, 5000);
    }
}
