//! Control messages as bytes: what the kernel writes beside a datagram, and what it reads
//! (`cmsg(3)`).

/// The size of [`ControlBuffer`] in bytes. All that this crate enables takes 88, and so does all
/// that it sends.
const CAPACITY: usize = 128;
const HEADER: usize = size_of::<libc::cmsghdr>();
/// Headers begin at multiples of this (`CMSG_ALIGN`).
const ALIGNMENT: usize = size_of::<usize>();

/// Where control messages are, aligned as their headers.
#[repr(C, align(8))]
pub(crate) struct ControlBuffer {
    bytes: [u8; CAPACITY],
    length: usize,
}

/// One control message, as `cmsg(3)` describes it: level, type and data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ControlMessage<'a> {
    pub(crate) level: libc::c_int,
    pub(crate) kind: libc::c_int,
    pub(crate) data: &'a [u8],
}

impl ControlBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; CAPACITY], length: 0 }
    }

    /// Adds a message. Returns whether there was room for it.
    #[must_use]
    pub(crate) fn push(&mut self, message: ControlMessage<'_>) -> bool {
        let length = HEADER + message.data.len();
        let Some(room) = self.bytes.get_mut(self.length..self.length + length.next_multiple_of(ALIGNMENT))
        else {
            return false;
        };
        let header = [&length.to_ne_bytes()[..], &message.level.to_ne_bytes(), &message.kind.to_ne_bytes()];
        let parts = header.into_iter().chain([message.data]).flatten();
        room.iter_mut().zip(parts).for_each(|(byte, part)| *byte = *part);
        self.length += room.len();
        true
    }

    /// The length of all messages, with the padding after each.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The whole buffer, for the kernel to fill.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The messages in the first `length` bytes. They end at one that is cut off or not valid.
    pub(crate) fn messages(&self, length: usize) -> impl Iterator<Item = ControlMessage<'_>> {
        messages(self.bytes.get(..length).unwrap_or(&self.bytes))
    }
}

fn messages(mut control: &[u8]) -> impl Iterator<Item = ControlMessage<'_>> {
    std::iter::from_fn(move || {
        let length = usize::from_ne_bytes(*control.first_chunk()?);
        let fields = control.get(size_of::<usize>()..)?;
        let level = libc::c_int::from_ne_bytes(*fields.first_chunk()?);
        let kind = libc::c_int::from_ne_bytes(*fields.get(4..)?.first_chunk()?);
        let data = control.get(HEADER..length)?;
        control = control.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(ControlMessage { level, kind, data })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let written = [
            ControlMessage { level: 0, kind: 8, data: &[1; 12] },
            ControlMessage { level: 17, kind: 104, data: &[] },
            ControlMessage { level: 41, kind: 67, data: &[2; 5] },
        ];
        let mut buffer = ControlBuffer::new();
        assert!(written.iter().all(|message| buffer.push(*message)));
        assert!(buffer.messages(buffer.len()).eq(written));
        assert!(!buffer.push(ControlMessage { level: 0, kind: 0, data: &[0; CAPACITY] }));
        assert!(buffer.messages(buffer.len()).eq(written));
    }

    #[test]
    fn messages_that_are_cut_off_or_of_no_length_end_the_list() {
        let mut buffer = ControlBuffer::new();
        assert!(buffer.push(ControlMessage { level: 1, kind: 1, data: &[] }));
        let first = buffer.len();
        assert!(buffer.push(ControlMessage { level: 0, kind: 8, data: &[3; 12] }));
        // The last padding need not be there.
        assert_eq!(buffer.messages(first + HEADER + 12).count(), 2);
        for cut in first..first + HEADER + 12 {
            assert_eq!(buffer.messages(cut).count(), 1);
        }
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(messages(&[0xff; 64]).count(), 0);
    }
}
