//! Packets of the binary protocol, most of them well-formed: every reply is a well-formed packet.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use servers::memcached::fuzzing::converse;

#[derive(Debug, Arbitrary)]
struct Packet {
    opcode: u8,
    key: u8,
    extras: [u8; 20],
    extras_length: u8,
    value: Vec<u8>,
    cas: u8,
    /// A wrong body length, which is sent if the first number is a multiple of 16.
    wrong_length: Option<(u8, u16)>,
}

libfuzzer_sys::fuzz_target!(|packets: Vec<Packet>| {
    let mut bytes = Vec::new();
    for packet in &packets {
        let key = [b'a' + packet.key % 4];
        let key = &key[..usize::from(packet.key % 8 != 7)];
        // Mostly the length that the command requires.
        let length = match (packet.extras_length % 8, packet.opcode % 0x28) {
            (0, _) => usize::from(packet.extras_length) % 21,
            (_, 1..=3 | 0x11..=0x13) => 8,
            (_, 5 | 6 | 0x15 | 0x16) => 20,
            (_, 0x1c..=0x1e | 0x23 | 0x24) => 4,
            _ => 0,
        };
        let (extras, opcode) = (&packet.extras[..length], packet.opcode % 0x28);
        let value = match opcode {
            1..=3 | 0x0e | 0x0f | 0x11..=0x13 | 0x19 | 0x1a => &packet.value[..],
            _ => &[],
        };
        let body = (extras.len() + key.len() + value.len()) as u32;
        let body = match packet.wrong_length {
            Some((chance, wrong)) if chance % 16 == 0 => wrong.into(),
            _ => body,
        };
        bytes.extend_from_slice(&[0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0]);
        bytes.extend_from_slice(&body.to_be_bytes());
        bytes.extend_from_slice(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, packet.cas % 4]);
        bytes.extend_from_slice(&[extras, key, value].concat());
    }
    let (replies, _) = converse([&bytes[..]]);
    let mut replies = &replies[..];
    // Without the magic byte at its start, the session uses the text protocol.
    while !replies.is_empty() && bytes.first() == Some(&0x80) {
        assert!(replies.len() >= 24 && replies[0] == 0x81, "{replies:02x?}");
        let body = u32::from_be_bytes([replies[8], replies[9], replies[10], replies[11]]) as usize;
        replies = &replies[24 + body..];
    }
});
