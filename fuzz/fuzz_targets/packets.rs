//! Packets of the binary protocol, most of them well-formed: each that is answered is answered by a packet.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use servers::memcached::fuzzing::converse;

#[derive(Debug, Arbitrary)]
struct Packet {
    code: u8,
    key: u8,
    extras: [u8; 20],
    extras_length: u8,
    value: Vec<u8>,
    cas: u8,
    lie: Option<(u8, u16)>,
}

libfuzzer_sys::fuzz_target!(|packets: Vec<Packet>| {
    let mut bytes = Vec::new();
    for packet in &packets {
        let key = [b'a' + packet.key % 4];
        let key = &key[..usize::from(packet.key % 8 != 7)];
        // Mostly what the command takes.
        let length = match (packet.extras_length % 8, packet.code % 0x28) {
            (0, _) => usize::from(packet.extras_length) % 21,
            (_, 1..=3 | 0x11..=0x13) => 8,
            (_, 5 | 6 | 0x15 | 0x16) => 20,
            (_, 0x1c..=0x1e | 0x23 | 0x24) => 4,
            _ => 0,
        };
        let (extras, code) = (&packet.extras[..length], packet.code % 0x28);
        let value = match code {
            1..=3 | 0x0e | 0x0f | 0x11..=0x13 | 0x19 | 0x1a => &packet.value[..],
            _ => &[],
        };
        let body = (extras.len() + key.len() + value.len()) as u32;
        let body = packet.lie.filter(|(luck, _)| luck % 16 == 0).map_or(body, |(_, lie)| lie.into());
        bytes.extend_from_slice(&[0x80, code, 0, key.len() as u8, extras.len() as u8, 0, 0, 0]);
        bytes.extend_from_slice(&body.to_be_bytes());
        bytes.extend_from_slice(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, packet.cas % 4]);
        bytes.extend_from_slice(&[extras, key, value].concat());
    }
    let (answers, _) = converse([&bytes[..]]);
    let mut answers = &answers[..];
    // Without a first byte that says so, it is no binary conversation.
    while !answers.is_empty() && bytes.first() == Some(&0x80) {
        assert!(answers.len() >= 24 && answers[0] == 0x81, "{answers:02x?}");
        let body = u32::from_be_bytes([answers[8], answers[9], answers[10], answers[11]]) as usize;
        answers = &answers[24 + body..];
    }
});
