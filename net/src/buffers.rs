//! Read buffers, lent to streams while they hold data: an idle connection has none.

use std::cell::RefCell;
use std::io::{self, Read};

use runtime::io::Received;

/// The size of one read buffer.
pub(crate) const SIZE: usize = 16 << 10;
/// How many free buffers a thread keeps: 1 MiB.
const KEPT: usize = 64;

thread_local! {
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

fn take() -> Box<[u8]> {
    FREE.try_with(|free| free.borrow_mut().pop())
        .ok()
        .flatten()
        .unwrap_or_else(|| vec![0; SIZE].into_boxed_slice())
}

fn give_back(buffer: Box<[u8]>) {
    // While a thread ends its pool may be gone already.
    let _ = FREE.try_with(|free| {
        let mut free = free.borrow_mut();
        if free.len() < KEPT {
            free.push(buffer);
        }
    });
}

/// What a stream has read and its user not yet consumed.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    buffer: Option<Buffer>,
    // Of 32 bits: idle connections keep them, and what is received at once is far less than 4 GiB.
    start: u32,
    end: u32,
}

/// Whose memory it is.
#[derive(Debug)]
enum Buffer {
    /// This thread's, read into.
    Pooled(Box<[u8]>),
    /// The ring's, received into by the kernel: no copy was made.
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

    /// Fills an empty buffer by one read. Holds no buffer after an error or at the end.
    pub(crate) fn fill(&mut self, mut reader: impl Read) -> io::Result<usize> {
        debug_assert!(self.is_empty());
        let mut buffer = take();
        match reader.read(&mut buffer) {
            Ok(length @ 1..) => {
                (self.buffer, self.start, self.end) = (Some(Buffer::Pooled(buffer)), 0, length as u32);
                Ok(length)
            }
            result => {
                give_back(buffer);
                result
            }
        }
    }

    /// Takes over what a ring has received.
    pub(crate) fn hold(&mut self, received: Received) {
        debug_assert!(self.is_empty());
        // At the most the ring's limit of unread bytes and a buffer: some hundred KiB.
        (self.start, self.end) = (0, received.len() as u32);
        self.buffer = Some(Buffer::Ring(received));
    }

    /// Copies out as much as there is and fits.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let unread = self.unread();
        let length = unread.len().min(into.len());
        into[..length].copy_from_slice(&unread[..length]);
        self.consume(length);
        length
    }

    pub(crate) fn consume(&mut self, amount: usize) {
        assert!(amount <= self.unread().len(), "more was consumed than had been read");
        self.start += amount as u32;
        if self.is_empty() {
            self.release();
        }
    }

    fn release(&mut self) {
        (self.start, self.end) = (0, 0);
        if let Some(Buffer::Pooled(buffer)) = self.buffer.take() {
            give_back(buffer);
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
