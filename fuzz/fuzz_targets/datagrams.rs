//! Datagrams: what answers one are complete frames of at most 1400 bytes, never an error, and
//! short. The input's first byte is the server's setup, the second that of the frames; requests are
//! separated by bytes 0xfe.
#![no_main]

use fuzz::{FuzzedServer, Setup};

/// The largest reply, in bytes, with an error in its place.
const MAX_REPLY: usize = 16 << 10;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let [setup, frame, requests @ ..] = input else { return };
    let setup = Setup::new(*setup);
    let server = FuzzedServer::new(setup);
    // Replies over UDP alone find nothing to get.
    let mut connection = server.connect();
    connection.send(b"set key 7 0 5\r\nvalue\r\n", 100);
    let set = [&b"set large 0 0 15000\r\n"[..], &[b'v'; 15_000], b"\r\n"].concat();
    connection.send(&set, 4000);
    let stored = connection.send(b"gets key large\r\n", 100);
    for request in requests.split(|byte| *byte == 0xfe) {
        let mut datagram = vec![0x12, 0x34, 0, 0, 0, 1, 0, 0];
        match frame % 8 {
            // A frame header from the input, perhaps cut.
            0 => datagram.clear(),
            // One of several datagrams.
            1 => datagram[5] = 2,
            _ => {}
        }
        datagram.extend_from_slice(request);
        check(&datagram, &server.answer_datagram(&datagram));
    }
    if !setup.udp_writes() {
        assert_eq!(connection.send(b"gets key large\r\n", 100), stored, "a datagram has changed an item");
    }
});

fn check(datagram: &[u8], replies: &[Vec<u8>]) {
    let whole = datagram.len() >= 8 && datagram[4..6] == [0, 1];
    assert!(whole || replies.is_empty(), "a datagram that is no whole request is answered");
    let total = (replies.len() as u16).to_be_bytes();
    for (number, reply) in replies.iter().enumerate() {
        let number = (number as u16).to_be_bytes();
        let header = [datagram[0], datagram[1], number[0], number[1], total[0], total[1], 0, 0];
        assert_eq!(reply[..8], header);
        // All but the last one are full.
        let last = number == ((replies.len() - 1) as u16).to_be_bytes();
        assert!(reply.len() == 1400 || last && (9..1400).contains(&reply.len()), "{}", reply.len());
    }
    let bytes: Vec<u8> = replies.iter().flat_map(|reply| &reply[8..]).copied().collect();
    assert!(bytes.len() <= MAX_REPLY, "{}", bytes.len());
    assert!(!bytes.starts_with(b"ERROR") && !bytes.starts_with(b"CLIENT_ERROR"));
}
