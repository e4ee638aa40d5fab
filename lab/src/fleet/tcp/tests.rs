use std::net::Ipv4Addr;

use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    payload: Vec<u8>,
}

/// Keeps what is sent instead of sending it.
#[derive(Debug, Default)]
struct Recording {
    sent: Vec<Sent>,
}

impl SegmentSink for Recording {
    fn send(&mut self, segment: &Segment<'_>) -> io::Result<()> {
        let &Segment { sequence, acknowledged, flags, payload, .. } = segment;
        self.sent.push(Sent { sequence, acknowledged, flags, payload: payload.to_vec() });
        Ok(())
    }

    fn count_retransmission(&mut self) {}
}

const MS: u64 = 1_000_000;
/// The first sequence numbers of the two sides.
const FLEET: u32 = 1000;
const SERVER: u32 = 50_000;
/// What the server's window field says; its scale is 7.
const WINDOW: u16 = 500;

fn segment(flags: u8, sequence: u32, acknowledged: u32, payload: &[u8]) -> ReceivedSegment<'_> {
    ReceivedSegment {
        source: Ipv4Addr::new(198, 18, 0, 1),
        source_port: 11211,
        port: 10_000,
        sequence,
        acknowledged,
        flags,
        window: WINDOW,
        timestamp: Some(7),
        window_scale: if flags & SYN == 0 { 0 } else { 7 },
        payload,
    }
}

/// An acknowledgement that announces a window, in units of the scale.
fn with_window(field: u16, acknowledged: u32) -> ReceivedSegment<'static> {
    ReceivedSegment { window: field, ..segment(ACK, SERVER + 1, acknowledged, b"") }
}

/// A connection with its server's side of the sequence space.
struct Pair {
    connection: Connection,
    sink: Recording,
    now: u64,
    first: u32,
}

impl Pair {
    fn connecting(first: u32) -> Self {
        let mut pair = Self {
            connection: Connection::new(10_000, first),
            sink: Recording::default(),
            now: 5 * MS,
            first: first.wrapping_add(1),
        };
        pair.connection.connect(&mut pair.sink, pair.now).unwrap();
        pair
    }

    fn established(first: u32, server: u32) -> Self {
        let mut pair = Self::connecting(first);
        let acknowledged = pair.first;
        assert_eq!(pair.receive(segment(SYN | ACK, server, acknowledged, b"")), Arrived::Established);
        // The next segment of the server announces its scaled window.
        pair.receive(segment(ACK, server.wrapping_add(1), acknowledged, b""));
        pair.sink.sent.clear();
        pair
    }

    fn receive(&mut self, segment: ReceivedSegment<'_>) -> Arrived {
        self.connection.receive(&mut self.sink, self.now, &segment).unwrap()
    }

    /// Receives an acknowledgement of the first `bytes` of the fleet's payload.
    fn acknowledge(&mut self, bytes: u32) {
        let acknowledged = self.first.wrapping_add(bytes);
        let arrived = self.receive(segment(ACK, SERVER + 1, acknowledged, b""));
        assert_eq!(arrived, Arrived::Nothing);
    }

    fn send(&mut self, bytes: &[u8]) {
        self.connection.out.extend_from_slice(bytes);
        self.connection.flush(&mut self.sink, self.now).unwrap();
    }

    /// What was sent since the last call.
    fn sent(&mut self) -> Vec<Sent> {
        std::mem::take(&mut self.sink.sent)
    }

    fn sent_lengths(&mut self) -> Vec<usize> {
        self.sent().iter().map(|sent| sent.payload.len()).collect()
    }
}

fn bare(sequence: u32, acknowledged: u32) -> Sent {
    Sent { sequence, acknowledged, flags: ACK, payload: Vec::new() }
}

#[test]
fn the_handshake_sends_syn_and_answers_syn_ack() {
    let mut pair = Pair::connecting(FLEET);
    assert_eq!(pair.connection.state, State::SynSent);
    let syn = Sent { sequence: FLEET, acknowledged: 0, flags: SYN, payload: Vec::new() };
    assert_eq!(pair.sent(), std::slice::from_ref(&syn));
    // A lost one is sent again.
    assert_eq!(pair.connection.retransmission_deadline(), Some(pair.now + RETRANSMISSION_TIMEOUT));
    pair.connection.retransmit(&mut pair.sink, pair.now).unwrap();
    assert_eq!(pair.sent(), [syn]);
    assert_eq!(pair.receive(segment(SYN | ACK, SERVER, FLEET + 1, b"")), Arrived::Established);
    assert_eq!(pair.connection.state, State::Established);
    assert_eq!(pair.sent(), [bare(FLEET + 1, SERVER + 1)]);
    assert_eq!(pair.connection.retransmission_deadline(), None);
    // A repeated answer is acknowledged again, and its window, which is not scaled, does not count.
    pair.receive(with_window(WINDOW, FLEET + 1));
    let repeated = ReceivedSegment { window: u16::MAX, ..segment(SYN | ACK, SERVER, FLEET + 1, b"") };
    assert_eq!(pair.receive(repeated), Arrived::Nothing);
    assert_eq!(pair.sent(), [bare(FLEET + 1, SERVER + 1)]);
    assert_eq!(pair.connection.window, u32::from(WINDOW) << 7);
    // It is reset once.
    pair.connection.reset(&mut pair.sink, pair.now).unwrap();
    pair.connection.reset(&mut pair.sink, pair.now).unwrap();
    assert_eq!(pair.sent(), [Sent { flags: RST | ACK, ..bare(FLEET + 1, SERVER + 1) }]);
}

#[test]
fn payload_is_delivered_once_and_a_repeated_segment_is_acknowledged() {
    let mut pair = Pair::established(FLEET, SERVER);
    // Out of order: what is expected is said again.
    for flags in [ACK | PSH, ACK | FIN] {
        assert_eq!(pair.receive(segment(flags, SERVER + 6, FLEET + 1, b"later")), Arrived::Nothing);
        assert_eq!(pair.sent(), [bare(FLEET + 1, SERVER + 1)]);
        assert_eq!(pair.connection.state, State::Established);
    }
    let reply = segment(ACK | PSH, SERVER + 1, FLEET + 1, b"VALUE");
    assert_eq!(pair.receive(reply), Arrived::Payload(0));
    assert_eq!(pair.receive(reply), Arrived::Nothing);
    assert_eq!(pair.sent(), [bare(FLEET + 1, SERVER + 6)]);
    // Half of it known, half of it new.
    let longer = segment(ACK | PSH, SERVER + 1, FLEET + 1, b"VALUE END");
    assert_eq!(pair.receive(longer), Arrived::Payload(5));
    let next = segment(ACK | PSH, SERVER + 10, FLEET + 1, b"x");
    assert_eq!(pair.receive(next), Arrived::Payload(0));
}

#[test]
fn an_acknowledgement_waits_for_a_request_for_at_most_its_delay() {
    let mut pair = Pair::established(FLEET, SERVER);
    pair.receive(segment(ACK | PSH, SERVER + 1, FLEET + 1, b"reply"));
    assert_eq!(pair.sent(), []);
    assert_eq!(pair.connection.ack_deadline(), Some(pair.now + ACK_DELAY));
    // A request carries it.
    pair.send(b"get");
    assert_eq!(pair.sent()[0].acknowledged, SERVER + 6);
    assert_eq!(pair.connection.ack_deadline(), None);
    pair.connection.acknowledge_now(&mut pair.sink, pair.now).unwrap();
    assert_eq!(pair.sent(), []);
    // Nothing carries this one.
    pair.receive(segment(ACK | PSH, SERVER + 6, FLEET + 4, b"reply"));
    assert!(!pair.connection.keep_timers(&mut pair.sink, pair.now + ACK_DELAY - 1).unwrap());
    assert!(pair.connection.keep_timers(&mut pair.sink, pair.now + ACK_DELAY).unwrap());
    assert_eq!(pair.sent(), [bare(FLEET + 4, SERVER + 11)]);
}

#[test]
fn every_second_full_segment_is_acknowledged_at_once() {
    let mut pair = Pair::established(FLEET, SERVER);
    let full = [b'v'; SEGMENT_PAYLOAD];
    let length = SEGMENT_PAYLOAD as u32;
    for segments in 0..4 {
        pair.receive(segment(ACK, SERVER + 1 + segments * length, FLEET + 1, &full));
        assert_eq!(pair.sent().len(), (segments % 2) as usize, "segment {segments}");
    }
}

#[test]
fn a_timeout_retransmits_what_has_not_been_acknowledged() {
    let mut pair = Pair::established(FLEET, SERVER);
    pair.send(b"get one\r\n");
    let sent_at = pair.now;
    pair.now += 150 * MS;
    pair.send(b"get two\r\n");
    assert_eq!(pair.connection.retransmission_deadline(), Some(sent_at + RETRANSMISSION_TIMEOUT));
    // An acknowledgement of the first request restarts the retransmission timer of the second.
    pair.acknowledge(9);
    assert_eq!(pair.connection.retransmission_deadline(), Some(pair.now + RETRANSMISSION_TIMEOUT));
    pair.sent();
    pair.now += RETRANSMISSION_TIMEOUT;
    assert!(!pair.connection.keep_timers(&mut pair.sink, pair.now - 1).unwrap());
    assert!(pair.connection.keep_timers(&mut pair.sink, pair.now).unwrap());
    let again = pair.sent();
    assert_eq!((again.len(), &again[0].payload[..]), (1, &b"get two\r\n"[..]));
    assert_eq!(again[0].sequence, FLEET + 1 + 9);
    assert_eq!(pair.connection.retransmission_deadline(), Some(pair.now + RETRANSMISSION_TIMEOUT));
    pair.acknowledge(18);
    assert_eq!(pair.connection.retransmission_deadline(), None);
    assert!(pair.connection.out.is_empty());
}

#[test]
fn the_congestion_window_bounds_what_is_in_flight() {
    let mut pair = Pair::established(FLEET, SERVER);
    pair.send(&vec![0; 12 * SEGMENT_PAYLOAD]);
    assert_eq!(pair.sent_lengths(), [SEGMENT_PAYLOAD; 10]);
    pair.acknowledge(SEGMENT_PAYLOAD as u32);
    assert_eq!(pair.sent_lengths(), [SEGMENT_PAYLOAD]);
    pair.acknowledge(11 * SEGMENT_PAYLOAD as u32);
    assert_eq!(pair.sent_lengths(), [SEGMENT_PAYLOAD]);
}

#[test]
fn the_servers_window_bounds_what_is_in_flight_and_its_opening_sends_the_rest() {
    let mut pair = Pair::established(FLEET, SERVER);
    pair.receive(with_window(1, FLEET + 1));
    pair.send(&[b'x'; 300]);
    assert_eq!(pair.sent_lengths(), [128]);
    pair.receive(with_window(0, FLEET + 1 + 128));
    assert_eq!(pair.sent_lengths(), [0; 0]);
    pair.receive(with_window(2, FLEET + 1 + 128));
    assert_eq!(pair.sent_lengths(), [172]);
}

#[test]
fn a_closed_window_is_probed_with_a_byte_until_it_opens() {
    let mut pair = Pair::established(FLEET, SERVER);
    pair.receive(with_window(0, FLEET + 1));
    pair.send(&[b'x'; 300]);
    assert_eq!(pair.sent_lengths(), [0; 0]);
    // The packet that opens the window is lost. The probe is sent again for as long as the window
    // is closed.
    for _ in 0..2 {
        assert!(pair.connection.retransmission_deadline().is_some());
        pair.now += RETRANSMISSION_TIMEOUT;
        pair.connection.retransmit(&mut pair.sink, pair.now).unwrap();
        assert_eq!(pair.sent_lengths(), [1]);
        pair.receive(with_window(0, FLEET + 1));
    }
    pair.receive(with_window(500, FLEET + 2));
    assert_eq!(pair.sent_lengths(), [299]);
    pair.acknowledge(300);
    assert_eq!(pair.connection.retransmission_deadline(), None);
}

#[test]
fn an_acknowledgement_of_bytes_never_sent_is_ignored() {
    let mut pair = Pair::established(FLEET, SERVER);
    pair.send(b"get key\r\n");
    pair.sent();
    pair.acknowledge(10);
    assert_eq!(pair.connection.out, b"get key\r\n");
    assert!(pair.connection.retransmission_deadline().is_some());
    pair.acknowledge(9);
    assert!(pair.connection.out.is_empty());
    // One from before has an old window.
    let window = pair.connection.window;
    pair.receive(with_window(0, FLEET + 1));
    assert_eq!(pair.connection.window, window);
}

#[test]
fn a_reset_and_a_fin_lose_the_connection_once() {
    for flags in [RST, RST | ACK, FIN | ACK] {
        let mut pair = Pair::established(FLEET, SERVER);
        assert_eq!(pair.receive(segment(flags, SERVER + 1, FLEET + 1, b"")), Arrived::Lost, "{flags}");
        assert_eq!(pair.connection.state, State::Lost);
        // The end of the server's data counts as a byte; a reset has no answer.
        let answer = if flags & FIN == 0 { vec![] } else { vec![bare(FLEET + 1, SERVER + 2)] };
        assert_eq!(pair.sent(), answer, "{flags}");
        assert_eq!(pair.receive(segment(flags, SERVER + 1, FLEET + 1, b"")), Arrived::Nothing, "{flags}");
        assert_eq!(pair.connection.retransmission_deadline(), None);
    }
}

#[test]
fn a_refused_connection_is_lost_and_a_reset_of_another_one_is_ignored() {
    let mut pair = Pair::connecting(FLEET);
    assert_eq!(pair.receive(segment(RST, 0, 0, b"")), Arrived::Nothing);
    assert_eq!(pair.receive(segment(RST | ACK, 0, FLEET, b"")), Arrived::Nothing);
    assert_eq!(pair.connection.state, State::SynSent);
    assert_eq!(pair.receive(segment(RST | ACK, 0, FLEET + 1, b"")), Arrived::Lost);
}

#[test]
fn sequence_numbers_wrap_on_both_sides() {
    // The first bytes of payload have the numbers u32::MAX - 3 and u32::MAX - 1.
    let (fleet, server) = (u32::MAX - 4, u32::MAX - 2);
    let mut pair = Pair::established(fleet, server);
    pair.send(b"get key\r\n");
    assert_eq!(pair.sent()[0].sequence, fleet.wrapping_add(1));
    let first = server.wrapping_add(1);
    let part = segment(ACK, first, fleet.wrapping_add(5), b"VALUE");
    assert_eq!(pair.receive(part), Arrived::Payload(0));
    assert_eq!(pair.connection.out, b"key\r\n");
    assert_eq!(pair.receive(part), Arrived::Nothing);
    assert_eq!(pair.sent().pop().map(|sent| sent.acknowledged), Some(first.wrapping_add(5)));
    // Never sent, on the other side of the wrap.
    pair.receive(segment(ACK, first.wrapping_add(5), fleet.wrapping_add(11), b""));
    assert_eq!(pair.connection.out, b"key\r\n");
    pair.receive(segment(ACK, first.wrapping_add(5), fleet.wrapping_add(10), b""));
    assert!(pair.connection.out.is_empty());
    assert_eq!(
        pair.receive(segment(ACK, first.wrapping_add(5), fleet.wrapping_add(10), b"END")),
        Arrived::Payload(0)
    );
}
