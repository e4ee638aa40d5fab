//! The client's side of one TCP connection: what requests and responses need of RFC 9293.
//!
//! Segments that arrive out of order are dropped, and the server sends them again. The testbed's
//! link does not reorder, and loses packets only where a queue overflows. What is lost is sent again
//! after a timeout, without fast retransmission: a request is mostly one segment.

use std::io;

use super::segment::{ACK, FIN, PSH, RST, ReceivedSegment, SEGMENT_PAYLOAD, SYN, Segment};

/// How long an acknowledgement waits for a request to carry it, in ns; as Linux does
/// (`TCP_DELACK_MIN`).
const ACK_DELAY: u64 = 40_000_000;
/// How long a segment waits for its acknowledgement before it is sent again, in ns; Linux's minimum
/// (`TCP_RTO_MIN`).
const RETRANSMISSION_TIMEOUT: u64 = 200_000_000;
/// Payload that may be unacknowledged, as of Linux's initial congestion window: 10 segments.
const CONGESTION_WINDOW: u32 = 10 * SEGMENT_PAYLOAD as u32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Closed,
    SynSent,
    Established,
    Lost,
}

pub(super) trait SegmentSink {
    fn send(&mut self, segment: &Segment<'_>) -> io::Result<()>;

    /// Counts a segment that is sent again.
    fn count_retransmission(&mut self);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrived {
    Nothing,
    Established,
    /// Payload, from this offset of the segment's.
    Payload(usize),
    Lost,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    port: u16,
    /// The oldest unacknowledged byte, and the next to be sent.
    unacknowledged: u32,
    next: u32,
    /// Bytes from `unacknowledged` on, sent and unsent.
    pub(super) out: Vec<u8>,
    window: u32,
    window_scale: u8,
    /// When the oldest unacknowledged byte was sent, or last acknowledged bytes were.
    progress: u64,
    expected: u32,
    timestamp: u32,
    /// When an acknowledgement is due; 0 for none.
    ack_deadline: u64,
    unacked_payload: usize,
}

/// Whether `a` is before `b` in sequence space.
fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) > u32::MAX / 2
}

impl Connection {
    pub(super) fn new(port: u16, first: u32) -> Self {
        Self {
            state: State::Closed,
            port,
            unacknowledged: first,
            next: first,
            out: Vec::new(),
            window: 0,
            window_scale: 0,
            progress: 0,
            expected: 0,
            timestamp: 0,
            ack_deadline: 0,
            unacked_payload: 0,
        }
    }

    pub(super) fn connect(&mut self, link: &mut impl SegmentSink, now: u64) -> io::Result<()> {
        self.state = State::SynSent;
        self.next = self.unacknowledged.wrapping_add(1);
        self.progress = now;
        self.emit(link, now, self.unacknowledged, SYN, 0..0)
    }

    pub(super) fn reset(&mut self, link: &mut impl SegmentSink, now: u64) -> io::Result<()> {
        if matches!(self.state, State::SynSent | State::Established) {
            self.state = State::Closed;
            self.emit(link, now, self.next, RST | ACK, 0..0)?;
        }
        Ok(())
    }

    /// Sends a segment whose payload is a range of `out`.
    #[inline]
    fn emit(
        &mut self,
        link: &mut impl SegmentSink,
        now: u64,
        sequence: u32,
        flags: u8,
        range: std::ops::Range<usize>,
    ) -> io::Result<()> {
        if flags & ACK != 0 {
            self.ack_deadline = 0;
            self.unacked_payload = 0;
        }
        link.send(&Segment {
            port: self.port,
            sequence,
            acknowledged: if flags & ACK == 0 { 0 } else { self.expected },
            flags,
            // Not 0, which a server may take for none.
            timestamp: (now / 1_000_000) as u32 + 1,
            echoed: self.timestamp,
            payload: &self.out[range],
        })
    }

    fn in_flight(&self) -> u32 {
        self.next.wrapping_sub(self.unacknowledged)
    }

    /// Sends what the windows allow of `out`.
    #[inline]
    pub(super) fn flush(&mut self, link: &mut impl SegmentSink, now: u64) -> io::Result<()> {
        loop {
            let sent = self.in_flight() as usize;
            let allowed = self.window.min(CONGESTION_WINDOW) as usize;
            let length = (self.out.len() - sent).min(SEGMENT_PAYLOAD).min(allowed.saturating_sub(sent));
            if length == 0 {
                return Ok(());
            }
            if sent == 0 {
                self.progress = now;
            }
            let sequence = self.next;
            self.next = self.next.wrapping_add(length as u32);
            self.emit(link, now, sequence, ACK | PSH, sent..sent + length)?;
        }
    }

    #[inline]
    pub(super) fn receive(
        &mut self,
        link: &mut impl SegmentSink,
        now: u64,
        segment: &ReceivedSegment<'_>,
    ) -> io::Result<Arrived> {
        if segment.flags & RST != 0 {
            let lost = match self.state {
                State::SynSent => segment.flags & ACK != 0 && segment.acknowledged == self.next,
                State::Established => true,
                State::Closed | State::Lost => false,
            };
            if !lost {
                return Ok(Arrived::Nothing);
            }
            self.state = State::Lost;
            return Ok(Arrived::Lost);
        }
        match self.state {
            State::Closed | State::Lost => Ok(Arrived::Nothing),
            State::SynSent => self.establish(link, now, segment),
            State::Established => {
                self.acknowledge(link, now, segment)?;
                self.take_payload(link, now, segment)
            }
        }
    }

    fn establish(
        &mut self,
        link: &mut impl SegmentSink,
        now: u64,
        segment: &ReceivedSegment<'_>,
    ) -> io::Result<Arrived> {
        if segment.flags & (SYN | ACK) != SYN | ACK || segment.acknowledged != self.next {
            return Ok(Arrived::Nothing);
        }
        self.state = State::Established;
        self.unacknowledged = segment.acknowledged;
        self.expected = segment.sequence.wrapping_add(1);
        // RFC 7323: the scale is at most 14, and a SYN's own window is not scaled.
        self.window_scale = segment.window_scale.min(14);
        self.window = segment.window.into();
        self.timestamp = segment.timestamp.unwrap_or(0);
        self.emit(link, now, self.next, ACK, 0..0)?;
        Ok(Arrived::Established)
    }

    #[inline]
    fn acknowledge(
        &mut self,
        link: &mut impl SegmentSink,
        now: u64,
        segment: &ReceivedSegment<'_>,
    ) -> io::Result<()> {
        // The handshake's second segment, repeated, has a window that is not scaled. One from
        // before the last acknowledgement has an old window.
        let acceptable =
            !before(self.next, segment.acknowledged) && !before(segment.acknowledged, self.unacknowledged);
        if segment.flags & (SYN | ACK) != ACK || !acceptable {
            return Ok(());
        }
        let window = u32::from(segment.window) << self.window_scale;
        let acknowledged = segment.acknowledged.wrapping_sub(self.unacknowledged) as usize;
        if acknowledged > 0 {
            self.unacknowledged = segment.acknowledged;
            if acknowledged == self.out.len() {
                self.out.clear();
            } else {
                self.out.drain(..acknowledged);
            }
            self.progress = now;
        }
        self.window = window;
        if self.out.is_empty() { Ok(()) } else { self.flush(link, now) }
    }

    #[inline]
    fn take_payload(
        &mut self,
        link: &mut impl SegmentSink,
        now: u64,
        segment: &ReceivedSegment<'_>,
    ) -> io::Result<Arrived> {
        if segment.payload.is_empty() && segment.flags & (FIN | SYN) == 0 {
            return Ok(Arrived::Nothing);
        }
        let known = self.expected.wrapping_sub(segment.sequence) as usize;
        let repeated = !before(self.expected, segment.sequence) && known <= segment.payload.len();
        // Nothing new, or out of order: says what is expected.
        if !repeated || (known > 0 && known == segment.payload.len() && segment.flags & FIN == 0) {
            self.emit(link, now, self.next, ACK, 0..0)?;
            return Ok(Arrived::Nothing);
        }
        if let Some(timestamp) = segment.timestamp {
            self.timestamp = timestamp;
        }
        let new = segment.payload.len() - known;
        self.expected = self.expected.wrapping_add(new as u32);
        self.unacked_payload += new;
        if segment.flags & FIN != 0 {
            self.expected = self.expected.wrapping_add(1);
            self.emit(link, now, self.next, ACK, 0..0)?;
            self.state = State::Lost;
            return Ok(Arrived::Lost);
        }
        // RFC 1122: at least every second full segment is acknowledged at once.
        if self.unacked_payload >= 2 * SEGMENT_PAYLOAD {
            self.emit(link, now, self.next, ACK, 0..0)?;
        } else if self.ack_deadline == 0 {
            self.ack_deadline = now + ACK_DELAY;
        }
        Ok(Arrived::Payload(known))
    }

    /// When an acknowledgement is due that no request has carried yet.
    fn ack_deadline(&self) -> Option<u64> {
        Some(self.ack_deadline).filter(|deadline| *deadline > 0 && self.state == State::Established)
    }

    /// Acknowledges what has arrived, if that is outstanding.
    pub(super) fn acknowledge_now(&mut self, link: &mut impl SegmentSink, now: u64) -> io::Result<()> {
        if self.ack_deadline().is_some() {
            self.emit(link, now, self.next, ACK, 0..0)?;
        }
        Ok(())
    }

    /// When the oldest unacknowledged byte has to be sent again, or one that waits for the server's
    /// closed window to open, which a lost packet may have announced.
    fn retransmission_deadline(&self) -> Option<u64> {
        let waits = self.in_flight() > 0 || !self.out.is_empty();
        (waits && matches!(self.state, State::SynSent | State::Established))
            .then_some(self.progress + RETRANSMISSION_TIMEOUT)
    }

    /// Sends the segment or the acknowledgement whose time has come. Returns whether there was one.
    #[inline]
    pub(super) fn keep_timers(&mut self, link: &mut impl SegmentSink, now: u64) -> io::Result<bool> {
        let is_due = |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now);
        if is_due(self.retransmission_deadline()) {
            self.retransmit(link, now)?;
        } else if is_due(self.ack_deadline()) {
            self.acknowledge_now(link, now)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Sends the oldest unacknowledged segment again. Without one it probes the server's closed
    /// window with a byte (RFC 9293, 3.8.6.1); the byte counts as sent, because the server may take
    /// it.
    fn retransmit(&mut self, link: &mut impl SegmentSink, now: u64) -> io::Result<()> {
        link.count_retransmission();
        self.progress = now;
        if self.state == State::SynSent {
            return self.emit(link, now, self.unacknowledged, SYN, 0..0);
        }
        if self.in_flight() == 0 {
            self.next = self.next.wrapping_add(1);
        }
        let length = (self.in_flight() as usize).min(SEGMENT_PAYLOAD);
        self.emit(link, now, self.unacknowledged, ACK | PSH, 0..length)
    }
}

#[cfg(test)]
mod tests;
