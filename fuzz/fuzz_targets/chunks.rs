//! Arbitrary bytes: the replies do not depend on how the input is split into chunks.
#![no_main]

use fuzz::{FuzzedServer, Setup};

libfuzzer_sys::fuzz_target!(|input: (u8, u8, &[u8])| {
    let (setup, chunk_size, bytes) = (Setup::new(input.0), usize::from(input.1) + 1, input.2);
    if shows_time(bytes) {
        return;
    }
    let converse = |chunk_size| {
        let server = FuzzedServer::new(setup);
        let mut connection = server.connect();
        (connection.send(bytes, chunk_size), connection.is_open())
    };
    let (whole, open) = converse(bytes.len().max(1));
    let (split, split_open) = converse(chunk_size);
    // A line that is too long is refused as soon as that is known, which may be before its end is
    // received.
    if open && split_open {
        assert_eq!(whole, split);
    }
});

/// Whether the replies may contain times: those of `stats`, also in the binary protocol, and of
/// `me`.
fn shows_time(bytes: &[u8]) -> bool {
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    has(b"stats") || has(b"me ") || has(b"lru_crawler") || has(&[0x80, 0x10])
}
