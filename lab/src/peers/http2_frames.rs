//! gRPC calls in frames of HTTP/2 (RFC 9113), as far as a load needs them: it spends little on each, and counts the
//! replies by their frames.

use std::io;

use super::service::{GRPC_REPLY, GRPC_REQUEST};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACKNOWLEDGED: u8 = 1;
const HEAD: usize = 9;
/// The largest window, and the largest number of a stream.
const LARGEST: u32 = (1 << 31) - 1;
/// The window that a connection begins with.
const FIRST_WINDOW: u32 = 65_535;
/// Where a frame's head has the number of its stream.
const STREAM: usize = 5;

/// The headers of a call (RFC 7541): indexed fields of the static table, and literals that are not indexed, so that each
/// call's are the same bytes.
fn header_block() -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    let mut literal = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    literal(&[0x04], "/grpc.health.v1.Health/Check");
    literal(&[0x01], "lull");
    literal(&[0x0f, 0x10], "application/grpc");
    literal(&[0x00, 2, b't', b'e'], "trailers");
    block
}

fn push_frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}

pub(super) struct Http2Calls {
    /// Frames of as many calls as are in flight, and before them what the server wants to be acknowledged.
    requests: Vec<u8>,
    call: Vec<u8>,
    depth: usize,
    next_stream: u32,
    acknowledgements: Vec<u8>,
    /// The head of the frame that has begun, and how many of its bytes are there.
    head: [u8; HEAD],
    head_length: usize,
    /// Bytes of the payload that are still to come.
    payload_left: usize,
    ping: Vec<u8>,
    /// Bytes of messages of the calls in flight.
    messages: usize,
}

impl Http2Calls {
    pub(super) fn new(depth: usize) -> Self {
        let mut call = Vec::new();
        push_frame(&mut call, HEADERS, END_HEADERS, 1, &header_block());
        push_frame(&mut call, DATA, END_STREAM, 1, &[0; GRPC_REQUEST]);
        Self {
            requests: Vec::new(),
            call,
            depth,
            next_stream: 1,
            acknowledgements: Vec::new(),
            head: [0; HEAD],
            head_length: 0,
            payload_left: 0,
            ping: Vec::new(),
            messages: 0,
        }
    }

    /// What a client sends first. The windows are so large that they need no updates.
    pub(super) fn opening(&self) -> Vec<u8> {
        const INITIAL_WINDOW_SIZE: u8 = 4;
        let mut bytes = PREFACE.to_vec();
        let mut setting = vec![0, INITIAL_WINDOW_SIZE];
        setting.extend_from_slice(&LARGEST.to_be_bytes());
        push_frame(&mut bytes, SETTINGS, 0, 0, &setting);
        push_frame(&mut bytes, WINDOW_UPDATE, 0, 0, &(LARGEST - FIRST_WINDOW).to_be_bytes());
        bytes
    }

    pub(super) fn requests(&mut self) -> io::Result<&[u8]> {
        self.requests.clear();
        self.requests.append(&mut self.acknowledgements);
        for _ in 0..self.depth {
            if self.next_stream > LARGEST - 2 {
                return Err(io::Error::other("the connection has had as many calls as HTTP/2 allows"));
            }
            // Each of the call's frames has its stream.
            let data = self.call.len() - HEAD - GRPC_REQUEST;
            for frame in [0, data] {
                let stream = frame + STREAM..frame + HEAD;
                self.call[stream].copy_from_slice(&self.next_stream.to_be_bytes());
            }
            self.requests.extend_from_slice(&self.call);
            self.next_stream += 2;
        }
        Ok(&self.requests)
    }

    pub(super) fn replies(&mut self, mut received: &[u8]) -> io::Result<usize> {
        let mut replies = 0;
        while !received.is_empty() {
            let missing = HEAD - self.head_length;
            if missing > 0 {
                let (begin, rest) = received.split_at(missing.min(received.len()));
                self.head[self.head_length..][..begin.len()].copy_from_slice(begin);
                self.head_length += begin.len();
                received = rest;
                if self.head_length < HEAD {
                    break;
                }
                let [high, middle, low, ..] = self.head;
                self.payload_left = u32::from_be_bytes([0, high, middle, low]) as usize;
            }
            let (payload, rest) = received.split_at(self.payload_left.min(received.len()));
            self.payload_left -= payload.len();
            received = rest;
            match self.head[3] {
                PING => self.ping.extend_from_slice(payload),
                DATA => self.messages += payload.len(),
                _ => {}
            }
            if self.payload_left == 0 {
                replies += self.end_frame()?;
                self.head_length = 0;
            }
        }
        Ok(replies)
    }

    /// Whether the frame ends a reply, as a number.
    fn end_frame(&mut self) -> io::Result<usize> {
        let (kind, flags) = (self.head[3], self.head[4]);
        match kind {
            RESET | GO_AWAY => return Err(io::Error::other("the server ended a call or the connection")),
            SETTINGS if flags & ACKNOWLEDGED == 0 => {
                push_frame(&mut self.acknowledgements, SETTINGS, ACKNOWLEDGED, 0, &[]);
            }
            PING => {
                if flags & ACKNOWLEDGED == 0 {
                    push_frame(&mut self.acknowledgements, PING, ACKNOWLEDGED, 0, &self.ping);
                }
                self.ping.clear();
            }
            HEADERS | DATA if flags & END_STREAM != 0 => {
                // A call that fails has trailers and no message.
                self.messages = self
                    .messages
                    .checked_sub(GRPC_REPLY)
                    .ok_or_else(|| io::Error::other("the server answered a call without its message"))?;
                return Ok(1);
            }
            _ => {}
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(frames: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, flags, payload) in frames {
            push_frame(&mut bytes, *kind, *flags, 1, payload);
        }
        bytes
    }

    #[test]
    fn replies_are_counted_however_their_bytes_are_cut() {
        let reply: [(u8, u8, &[u8]); 3] = [
            (HEADERS, END_HEADERS, b"head"),
            (DATA, 0, b"message"),
            (HEADERS, END_HEADERS | END_STREAM, b"end"),
        ];
        let bytes = frames(&reply).repeat(3);
        for size in 1..bytes.len() {
            let mut calls = Http2Calls::new(1);
            let counts = bytes.chunks(size).map(|piece| calls.replies(piece).unwrap());
            assert_eq!(counts.sum::<usize>(), 3, "{size}");
        }
    }

    #[test]
    fn settings_and_pings_are_acknowledged_before_the_next_call() {
        let mut calls = Http2Calls::new(2);
        let received =
            frames(&[(SETTINGS, 0, b"123456"), (PING, 0, b"12345678"), (SETTINGS, ACKNOWLEDGED, b"")]);
        assert_eq!(calls.replies(&received).unwrap(), 0);
        let mut acknowledged = Vec::new();
        push_frame(&mut acknowledged, SETTINGS, ACKNOWLEDGED, 0, &[]);
        push_frame(&mut acknowledged, PING, ACKNOWLEDGED, 0, b"12345678");
        let requests = calls.requests().unwrap().to_vec();
        assert!(requests.starts_with(&acknowledged));
        let twice = requests.len() - acknowledged.len();
        assert_eq!(calls.requests().unwrap().len(), twice);
    }

    #[test]
    fn resets_and_calls_without_a_message_are_errors() {
        for frame in [(RESET, 0, &b"1234"[..]), (GO_AWAY, 0, b"12345678"), (HEADERS, END_STREAM, b"failed")] {
            Http2Calls::new(1).replies(&frames(&[frame])).unwrap_err();
        }
    }
}
