//! Read buffers. A stream has one only while it holds unread data: an idle connection has none.

use std::cell::RefCell;
use std::io::{self, Read};

use runtime::__net::Received;

pub(crate) const READ_BUFFER_SIZE: usize = 16 << 10;
/// The most free buffers that a thread keeps: 1 MiB.
const MAX_FREE_BUFFERS: usize = 64;

thread_local! {
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

fn take_buffer() -> Box<[u8]> {
    FREE.try_with(|free| free.borrow_mut().pop())
        .ok()
        .flatten()
        .unwrap_or_else(|| vec![0; READ_BUFFER_SIZE].into_boxed_slice())
}

fn return_buffer(buffer: Box<[u8]>) {
    // The pool of a thread that ends may be gone already.
    let _ = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        if free.len() < MAX_FREE_BUFFERS {
            free.push(buffer);
        }
    });
}

/// Bytes that a stream has received and its user has not consumed.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    buffer: Option<Buffer>,
    // 32 bits each: idle connections keep them, and what is received at once is far less than 4
    // GiB.
    start: u32,
    end: u32,
}

#[derive(Debug)]
enum Buffer {
    /// Of this thread's pool, filled by a read.
    Pooled(Box<[u8]>),
    /// Of the ring, filled by the kernel: no copy was made.
    Ring(Received),
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Buffer::Pooled(buffer) => buffer,
            Buffer::Ring(received) => received,
        }
    }
}

impl ReadBuffer {
    pub(crate) fn unread(&self) -> &[u8] {
        self.buffer.as_deref().map_or(&[], |buffer| &buffer[self.start as usize..self.end as usize])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Fills an empty buffer by one read. After an error or at the end of the stream it holds no
    /// memory.
    pub(crate) fn fill(&mut self, mut reader: impl Read) -> io::Result<usize> {
        debug_assert!(self.is_empty());
        let mut buffer = take_buffer();
        match reader.read(&mut buffer) {
            Ok(length @ 1..) => {
                (self.buffer, self.start, self.end) = (Some(Buffer::Pooled(buffer)), 0, length as u32);
                Ok(length)
            }
            result => {
                return_buffer(buffer);
                result
            }
        }
    }

    /// Takes over bytes that a ring has received.
    pub(crate) fn hold(&mut self, received: Received) {
        debug_assert!(self.is_empty());
        // At most the ring's limit of unread bytes plus one buffer: some hundred KiB.
        (self.start, self.end) = (0, received.len() as u32);
        self.buffer = Some(Buffer::Ring(received));
    }

    /// Copies as many bytes as there are and fit.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let length = self.peek(into);
        self.consume(length);
        length
    }

    /// Copies as many bytes as there are and fit, and keeps them.
    pub(crate) fn peek(&self, into: &mut [u8]) -> usize {
        let unread = self.unread();
        let length = unread.len().min(into.len());
        into[..length].copy_from_slice(&unread[..length]);
        length
    }

    pub(crate) fn consume(&mut self, amount: usize) {
        assert!(amount <= self.unread().len(), "consumed more bytes than were buffered");
        self.start += amount as u32;
        if self.is_empty() {
            self.release();
        }
    }

    fn release(&mut self) {
        (self.start, self.end) = (0, 0);
        if let Some(Buffer::Pooled(buffer)) = self.buffer.take() {
            return_buffer(buffer);
        }
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumed_buffer_goes_back_to_the_pool() {
        let mut buffer = ReadBuffer::default();
        assert_eq!(buffer.fill(&b"hello"[..]).unwrap(), 5);
        buffer.consume(2);
        assert_eq!(buffer.unread(), b"llo");
        assert!(buffer.buffer.is_some());
        buffer.consume(3);
        assert!(buffer.buffer.is_none() && buffer.unread().is_empty());
    }

    #[test]
    fn the_end_of_a_stream_holds_no_buffer() {
        let mut buffer = ReadBuffer::default();
        assert_eq!(buffer.fill(io::empty()).unwrap(), 0);
        assert!(buffer.buffer.is_none());
    }
}
