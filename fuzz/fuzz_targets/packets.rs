//! Packets of the binary protocol, most of them well-formed, in any chunks: every reply is a
//! well-formed packet to the packet before, a client that has not authenticated is refused, and a
//! CAS unique is good for one change.
#![no_main]

use fuzz::{FuzzedConnection, FuzzedServer, PASSWORD, Setup, USER};
use libfuzzer_sys::arbitrary::{self, Arbitrary};

#[derive(Debug, Arbitrary)]
enum Step {
    Packet(Packet),
    /// An item is read, and changed with the CAS unique that was returned: twice, and before that
    /// without one.
    CompareAndSwap {
        key: u8,
        value: Vec<u8>,
        between: Between,
    },
    Login {
        right: bool,
    },
}

#[derive(Debug, Arbitrary)]
struct Packet {
    opcode: u8,
    key: u8,
    extras: [u8; 20],
    extras_length: u8,
    value: Vec<u8>,
    cas: Cas,
    /// A wrong body length, which is sent if the first number is a multiple of 16.
    wrong_length: Option<(u8, u16)>,
}

/// What happens to an item between the command that returns its CAS unique and the one that
/// requires it.
#[derive(Debug, Clone, Copy, Arbitrary)]
enum Between {
    Nothing,
    Set,
    Appended,
    /// It is a number, and 1 is added to it.
    Counted,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Cas {
    None,
    /// The last one that was returned.
    Returned,
    Other(u64),
}

/// A parsed reply.
struct Reply {
    opcode: u8,
    status: u16,
    cas: u64,
}

const OK: u16 = 0;
const NOT_FOUND: u16 = 1;
const EXISTS: u16 = 2;
const TOO_LARGE: u16 = 3;
const NOT_STORED: u16 = 5;
const NOT_A_NUMBER: u16 = 6;
const UNAUTHENTICATED: u16 = 0x20;
const OUT_OF_MEMORY: u16 = 0x82;
const GET: u8 = 0;
const SET: u8 = 1;
const INCREMENT: u8 = 5;
const APPEND: u8 = 0x0e;
const SASL_AUTH: u8 = 0x21;
/// What clients may send before they authenticate.
const ALLOWED: [u8; 4] = [0x0b, 0x20, SASL_AUTH, 0x22];

/// One of sixteen keys, of zero to 251 bytes: neither the first nor the last one is valid in a
/// packet that needs a key.
fn name(key: u8) -> Vec<u8> {
    let key = key % 16;
    let length = [0, 1, 1, 1, 2, 3, 8, 16, 31, 64, 127, 128, 248, 249, 250, 251][usize::from(key)];
    vec![b'a' + key; length]
}

fn packet(opcode: u8, key: &[u8], extras: &[u8], value: &[u8], cas: u64, body: Option<u32>) -> Vec<u8> {
    let body = body.unwrap_or((extras.len() + key.len() + value.len()) as u32);
    let head = [&[0x80, opcode][..], &(key.len() as u16).to_be_bytes(), &[extras.len() as u8, 0, 0, 0]];
    [&head.concat()[..], &body.to_be_bytes(), &[1, 2, 3, 4], &cas.to_be_bytes(), extras, key, value].concat()
}

impl Packet {
    fn bytes(&self, returned: u64) -> Vec<u8> {
        let opcode = self.opcode % 0x28;
        // Mostly the length that the command requires.
        let length = match (self.extras_length % 8, opcode) {
            (0, _) => usize::from(self.extras_length) % 21,
            (_, 1..=3 | 0x11..=0x13) => 8,
            (_, 5 | 6 | 0x15 | 0x16) => 20,
            (_, 0x1c..=0x1e | 0x23 | 0x24) => 4,
            _ => 0,
        };
        let value = match opcode {
            1..=3 | 0x0e | 0x0f | 0x11..=0x13 | 0x19 | 0x1a | SASL_AUTH | 0x22 => &self.value[..],
            _ => &[],
        };
        let cas = match self.cas {
            Cas::None => 0,
            Cas::Returned => returned,
            Cas::Other(cas) => cas,
        };
        let body = match self.wrong_length {
            Some((chance, wrong)) if chance % 16 == 0 => Some(wrong.into()),
            _ => None,
        };
        packet(opcode, &name(self.key), &self.extras[..length], value, cas, body)
    }
}

struct Client<'a> {
    setup: Setup,
    connection: FuzzedConnection<'a>,
    chunk_size: usize,
    returned: u64,
    /// Whether all packets had the length that they say, so that the next one begins a packet.
    in_step: bool,
}

impl Client<'_> {
    /// Sends bytes and returns the replies.
    fn send(&mut self, bytes: &[u8]) -> Vec<Reply> {
        let before = self.connection.is_authenticated();
        let replies = self.connection.send(bytes, self.chunk_size);
        let (mut replies, mut parsed) = (&replies[..], Vec::new());
        while let Some((head, rest)) = replies.split_at_checked(24) {
            assert!(head[0] == 0x81, "{replies:02x?}");
            let body = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
            let (key, extras) = (usize::from(u16::from_be_bytes([head[2], head[3]])), usize::from(head[4]));
            assert!(key + extras <= body && body <= rest.len(), "{replies:02x?}");
            let cas = head[16..].iter().fold(0, |cas, byte| cas << 8 | u64::from(*byte));
            let reply = Reply { opcode: head[1], status: u16::from_be_bytes([head[6], head[7]]), cas };
            if !before && !self.connection.is_authenticated() && reply.status == OK {
                assert!(ALLOWED.contains(&reply.opcode), "{:#x} was executed for nobody", reply.opcode);
            }
            if reply.cas != 0 {
                assert!(!self.setup.no_cas());
                self.returned = reply.cas;
            }
            parsed.push(reply);
            replies = &rest[body..];
        }
        assert!(replies.is_empty(), "{replies:02x?}");
        parsed
    }

    /// Sends a valid packet and returns its only reply; `None` if the connection is not in a state
    /// for that.
    fn request(&mut self, opcode: u8, key: &[u8], value: &[u8], cas: u64) -> Option<Reply> {
        if !self.in_step || !self.connection.is_open() {
            return None;
        }
        // An increment's extras: the amount 1, the initial value 0, and the expiration that forbids
        // to create an item.
        let one = [&1_u64.to_be_bytes()[..], &[0; 8], &[0xff; 4]].concat();
        let extras: &[u8] = match opcode {
            SET => &[0; 8],
            INCREMENT => &one,
            _ => &[],
        };
        let mut replies = self.send(&packet(opcode, key, extras, value, cas, None));
        assert_eq!(replies.len(), 1);
        replies.pop().inspect(|reply| assert_eq!(reply.opcode, opcode))
    }

    fn compare_and_swap(&mut self, key: u8, value: &[u8], between: Between) -> Option<()> {
        let key = name(1 + key % 14);
        if !self.connection.is_authenticated() {
            let refused = self.request(GET, &key, &[], 0)?;
            assert!(refused.status == UNAUTHENTICATED && !self.connection.is_open());
            return None;
        }
        let refused = [TOO_LARGE, OUT_OF_MEMORY];
        if matches!(between, Between::Counted) {
            self.request(SET, &key, b"7", 0)?;
        }
        let read = self.request(GET, &key, &[], 0)?;
        assert!([OK, NOT_FOUND].contains(&read.status));
        if read.status == NOT_FOUND || self.setup.no_cas() {
            let set = self.request(SET, &key, value, 0)?;
            assert!(set.status == OK || refused.contains(&set.status), "{:#x}", set.status);
            return None;
        }
        assert!(read.cas != 0);
        let changed = match between {
            Between::Nothing => None,
            Between::Set => Some(self.request(SET, &key, b"changed", 0)?),
            Between::Appended => Some(self.request(APPEND, &key, b"0", 0)?),
            Between::Counted => Some(self.request(INCREMENT, &key, b"", 0)?),
        };
        let mut is_current = true;
        if let Some(changed) = changed {
            let possible = match between {
                Between::Nothing | Between::Set => OK,
                Between::Appended => NOT_STORED,
                Between::Counted if changed.status == NOT_FOUND && self.setup.is_small() => NOT_FOUND,
                Between::Counted => NOT_A_NUMBER,
            };
            assert!([OK, possible].contains(&changed.status) || refused.contains(&changed.status));
            assert!(changed.cas != read.cas);
            // A set that was refused has removed the item.
            is_current = changed.status != OK && !matches!(between, Between::Set);
        }
        for _ in 0..2 {
            let set = self.request(SET, &key, value, read.cas)?;
            // An item that was refused has removed the one before, and one in a small memory may be
            // evicted.
            let lost = set.status == NOT_FOUND && self.setup.is_small();
            let allowed =
                if is_current { set.status == OK && set.cas != read.cas } else { set.status == EXISTS };
            assert!(allowed || lost || refused.contains(&set.status), "{:#x}", set.status);
            is_current = false;
        }
        Some(())
    }
}

libfuzzer_sys::fuzz_target!(|input: (u8, u16, Vec<Step>)| {
    let setup = Setup::new(input.0);
    let server = FuzzedServer::new(setup);
    let chunk_size = usize::from(input.1) + 1;
    let mut client = Client { setup, connection: server.connect(), chunk_size, returned: 0, in_step: true };
    for step in &input.2 {
        match step {
            Step::Packet(packet) => {
                let bytes = packet.bytes(client.returned);
                client.send(&bytes);
                client.in_step &= !matches!(packet.wrong_length, Some((chance, _)) if chance % 16 == 0);
            }
            Step::CompareAndSwap { key, value, between } => {
                let _ = client.compare_and_swap(*key, value, *between);
            }
            Step::Login { right } => {
                let password = if *right { PASSWORD } else { "wrong" };
                let credentials = format!("\0{USER}\0{password}");
                let login = client.request(SASL_AUTH, b"PLAIN", credentials.as_bytes(), 0);
                if login.is_some_and(|login| login.status == OK) {
                    assert!(*right && setup.sasl() && client.connection.is_authenticated());
                }
            }
        }
    }
});
