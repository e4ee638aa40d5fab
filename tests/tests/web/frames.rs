//! Frames of HTTP/2, by hand.

/// The preface and empty settings.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// `GET http://a/file`, without the tables of HPACK.
pub const GET_FILE: &[u8] = b"\x82\x86\x04\x05/file\x01\x01a";

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A setting with its value.
pub fn setting(number: u16, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&number.to_be_bytes()[..], &value.to_be_bytes()].concat())
}

/// A preface with a window for each stream, and requests for a path on as many streams as wanted.
pub fn requests(path: &str, window: u32, streams: u32) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    let block = [&b"\x82\x86\x04"[..], &[length], path.as_bytes(), b"\x01\x01a"].concat();
    let headers =
        (0..streams).flat_map(|number| frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &block));
    PREFACE.iter().copied().chain(setting(4, window)).chain(headers).collect()
}

/// Kinds, streams and payloads of frames.
pub fn frames(answer: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let frames = frames_with_flags(answer).into_iter();
    frames.map(|(kind, _, stream, payload)| (kind, stream, payload.to_vec())).collect()
}

/// Whether the response on stream 1 has ended, or the stream or the connection was broken off.
pub fn has_ended(answer: &[u8]) -> bool {
    frames_with_flags(answer).iter().any(|(kind, flags, stream, _)| match *kind {
        HEADERS | DATA => *stream == 1 && flags & END_STREAM != 0,
        RST_STREAM | GOAWAY => true,
        _ => false,
    })
}

fn frames_with_flags(mut answer: &[u8]) -> Vec<(u8, u8, u32, &[u8])> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = answer.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, after)) = rest.split_at_checked(length) else { break };
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        frames.push((head[3], head[4], stream, payload));
        answer = after;
    }
    frames
}
