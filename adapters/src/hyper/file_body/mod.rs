//! A response's body that is a part of a file.

mod placeholder;

use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::hyper::Version;
use ::hyper::body::{Body, Bytes, Frame, SizeHint};
use runtime::JoinHandle;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::listen::Peer;

pub(super) use self::placeholder::{FilePart, file_part};
use self::placeholder::{SLOT, placeholder};

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

    /// Has the kernel send the file (`sendfile(2)`) if the connection allows it: on HTTP/1 without
    /// TLS. No byte of it comes to this program then. `peer` and `version` are those of the request
    /// that is answered.
    ///
    /// The body's bytes then only stand for those of the file, and are zeros for whoever reads
    /// them. So return it as it is: to the connection of this request, and through no layer that
    /// reads or changes bodies, as one that compresses does.
    #[doc(alias = "sendfile")]
    pub fn sent_by_kernel(mut self, peer: &Peer, version: Version) -> Self {
        self.by_kernel = peer.takes_files() && version <= Version::HTTP_11;
        self
    }

    /// The next bytes, unless they have to be read on another thread.
    fn next_bytes(&self) -> io::Result<Option<Bytes>> {
        if self.by_kernel {
            let length = self.left.min(SLOT as u64) as usize;
            if !is_cached(&self.file, self.offset + length as u64 - 1)? {
                return Ok(None);
            }
            if let Some(bytes) = placeholder(&self.file, self.offset, length) {
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
