//! Sends segments, and counts what became of them.

use std::io;
use std::time::Instant;

use super::connection::SegmentSink;
use super::packet_socket::{PacketSender, SendOutcome};
use super::segment::{Ends, Segment, SegmentWriter};

/// The fleet's end of the link, without its receiving side.
#[derive(Debug)]
pub(super) struct Link {
    sender: PacketSender,
    writer: SegmentWriter,
    epoch: Instant,
    pub(super) counts: LinkCounts,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkCounts {
    /// Sent, also those that were lost.
    pub(super) sent: u64,
    /// Lost because the server's queue was full.
    pub(super) dropped: u64,
    pub(super) retransmitted: u64,
}

impl Link {
    pub(super) fn open(interface: u32, ends: Ends) -> io::Result<Self> {
        Ok(Self {
            sender: PacketSender::open(interface)?,
            writer: SegmentWriter::new(ends),
            epoch: Instant::now(),
            counts: LinkCounts::default(),
        })
    }

    /// Nanoseconds since the link was opened.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

impl SegmentSink for Link {
    #[inline]
    fn send(&mut self, segment: &Segment<'_>) -> io::Result<()> {
        self.counts.sent += 1;
        if self.sender.send(self.writer.write(segment))? == SendOutcome::Dropped {
            self.counts.dropped += 1;
        }
        Ok(())
    }

    fn count_retransmission(&mut self) {
        self.counts.retransmitted += 1;
    }
}
