//! Attacks by frames of HTTP/2.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use tests::memcached::{read_some, wait_until};
use tests::web::Web;

use crate::frames::*;
use crate::site::Site;

/// How long the server is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends frames after a preface. Returns those that come until the server closes the connection,
/// and whether it does.
fn converse(server: &Web, sent: &[u8]) -> (Vec<(u8, u32, Vec<u8>)>, bool) {
    let mut stream: TcpStream = server.connect();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // Fails if the server has closed the connection already.
    let _ = stream.write_all(&[PREFACE, sent].concat());
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    (frames(&answer), !matches!(ended, Err(error) if error.kind() == ErrorKind::WouldBlock))
}

/// Sends a request on stream 1 after a preface. Returns the frames that come until it is answered.
fn ask(server: &Web, request: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut stream = server.connect();
    stream.write_all(&[PREFACE, request].concat()).unwrap();
    let (mut answer, mut part) = (Vec::new(), [0; 1000]);
    while !has_ended(&answer) {
        let length = read_some(&mut stream, &mut part).unwrap();
        assert!(length > 0, "{:?}", frames(&answer));
        answer.extend_from_slice(&part[..length]);
    }
    frames(&answer)
}

fn site() -> Site {
    Site::new().with("file", "file").with("large", vec![b'x'; 10 << 20])
}

#[test]
fn a_request_by_hand_is_answered() {
    let site = site();
    let server = site.serve(&[]);
    let mut connection = server.connect();
    let get = frame(HEADERS, END_STREAM | END_HEADERS, 1, GET_FILE);
    let answer = read_until(&mut connection, &[PREFACE, &get].concat(), DATA);
    assert_eq!(answer, (1, b"file".to_vec()));
    // The connection goes on.
    read_until(&mut connection, &frame(PING, 0, 0, b"12345678"), PING);
}

/// CVE-2023-44487.
#[test]
fn requests_that_are_reset_at_once_end_the_connection() {
    let site = site();
    let server = site.serve(&[]);
    let resets = (0..5000).flat_map(|number| {
        let stream = 2 * number + 1;
        let headers = frame(HEADERS, END_STREAM | END_HEADERS, stream, GET_FILE);
        [headers, frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
    });
    let (answer, closed) = converse(&server, &resets.collect::<Vec<u8>>());
    let (_, _, last) = answer.iter().rfind(|(kind, ..)| *kind == GOAWAY).expect("GOAWAY");
    // ENHANCE_YOUR_CALM.
    assert!(closed && last[4..8] == 11u32.to_be_bytes(), "{last:?}");
    assert_eq!(server.get("/file", &[]).text(), "file");
}

/// CVE-2024-27316 and others.
#[test]
fn headers_that_never_end_are_refused() {
    let site = site();
    let server = site.serve(&[]);
    let mut flood = frame(HEADERS, END_STREAM, 1, GET_FILE);
    // A field without indexing, again and again.
    let field = [&b"\x00\x04name\x7f\x81\x01"[..], &[b'v'; 256]].concat();
    for _ in 0..2000 {
        flood.extend(frame(CONTINUATION, 0, 1, &field.repeat(10)));
    }
    let (answer, closed) = converse(&server, &flood);
    assert!(closed && answer.iter().any(|(kind, ..)| *kind == GOAWAY), "{answer:?}");
    assert_eq!(server.get("/file", &[]).text(), "file");
}

#[test]
fn frames_that_break_the_protocol_end_the_connection() {
    let site = site();
    let server = site.serve(&[]);
    for (name, sent) in [
        ("data on no stream", frame(DATA, 0, 0, b"x")),
        ("headers on a stream of the server", frame(HEADERS, END_STREAM | END_HEADERS, 2, GET_FILE)),
        ("continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, GET_FILE)),
        ("a push by the client", frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02\x82")),
        ("a frame beyond the limit", frame(DATA, 0, 1, &vec![0; 20_000])),
        ("settings of an odd length", frame(SETTINGS, 0, 0, b"12345")),
        ("a window of more than 31 bits", frame(SETTINGS, 0, 0, b"\0\x04\xff\xff\xff\xff")),
        ("a window update of zero", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a window update too much", frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes())),
        (
            "HPACK that refers to nothing",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, b"\xff\xff\xff\xff\x0f"),
        ),
    ] {
        let (answer, closed) = converse(&server, &sent);
        assert!(closed && answer.iter().any(|(kind, ..)| *kind == GOAWAY), "{name}: {answer:?}");
    }
    assert_eq!(server.get("/file", &[]).text(), "file");
}

/// Sends frames after a preface, and reads until there is one of a kind. Returns its stream and
/// payload.
fn read_until(stream: &mut TcpStream, sent: &[u8], wanted: u8) -> (u32, Vec<u8>) {
    stream.write_all(sent).unwrap();
    let (mut answer, mut part) = (Vec::new(), [0; 1000]);
    loop {
        let length = read_some(stream, &mut part).unwrap();
        assert!(length > 0, "{answer:?}");
        answer.extend_from_slice(&part[..length]);
        if let Some((_, stream, payload)) = frames(&answer).into_iter().find(|(kind, ..)| *kind == wanted) {
            return (stream, payload);
        }
    }
}

/// RFC 9113, sections 6.9.1 and 6.9.2.
#[test]
fn a_window_beyond_31_bits_is_a_flow_control_error_of_its_stream_or_the_connection() {
    const FLOW_CONTROL_ERROR: [u8; 4] = 3_u32.to_be_bytes();
    const MOST: u32 = 0x7fff_ffff;
    // It takes no connection, so that a stream stays open.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let site = site();
    let server = site.serve(&["--proxy", &format!("/up=http://{}", silent.local_addr().unwrap())]);
    let open = frame(HEADERS, END_HEADERS, 1, b"\x83\x86\x04\x03/up\x01\x01a");
    let update = |stream, by: u32| frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    for (name, sent, kind, stream) in [
        ("a stream's", [&open[..], &update(1, MOST), &update(1, MOST)], RST_STREAM, 1),
        ("the connection's", [b"", &update(0, MOST), &update(0, MOST)], GOAWAY, 0),
        ("a stream's, by a setting", [&open, &update(1, MOST - 65_535), &setting(4, 65_536)], GOAWAY, 0),
    ] {
        let mut connection = server.connect();
        let sent = [PREFACE, &sent.concat()].concat();
        let (on, payload) = read_until(&mut connection, &sent, kind);
        assert_eq!((on, &payload[payload.len() - 4..]), (stream, &FLOW_CONTROL_ERROR[..]), "{name}");
        if kind == RST_STREAM {
            // The connection goes on.
            read_until(&mut connection, &frame(PING, 0, 0, b"12345678"), PING);
        }
    }
    // Section 5.1: frames that cross the end of their stream are ignored.
    let mut connection = server.connect();
    let get = frame(HEADERS, END_STREAM | END_HEADERS, 1, GET_FILE);
    assert_eq!(read_until(&mut connection, &[PREFACE, &get].concat(), DATA).1, b"file");
    let late = [update(1, MOST), update(1, MOST), frame(PING, 0, 0, b"12345678")].concat();
    let answer = read_until(&mut connection, &late, PING);
    assert_eq!(answer, (0, b"12345678".to_vec()));
}

#[test]
fn windows_for_requests_take_256_mib_of_all_connections_and_65_535_bytes_of_each() {
    const CONNECTIONS: u64 = 1000;
    let site = site();
    let server = site.serve(&[]);
    let mut held = Vec::new();
    let shared: u64 = (0..CONNECTIONS)
        .map(|_| {
            let mut connection = server.connect();
            let (stream, more) = read_until(&mut connection, PREFACE, WINDOW_UPDATE);
            held.push(connection);
            assert_eq!(stream, 0);
            u64::from(u32::from_be_bytes(more.try_into().unwrap()))
        })
        .sum();
    assert!((200 << 20..=256 << 20).contains(&shared), "{shared} bytes");
    drop(held);
    // What they had is there again.
    wait_until("a connection has as much as the first", || {
        let more = read_until(&mut server.connect(), PREFACE, WINDOW_UPDATE).1;
        more == ((384 << 10) - 65_535_u32).to_be_bytes()
    });
}

/// RFC 9113, section 8: streams with such a request are reset, or get 400.
#[test]
fn malformed_requests_get_no_file() {
    let site = site();
    let server = site.serve(&[]);
    std::thread::scope(|scope| {
        for (name, block) in [
            ("no path", &b"\x82\x86\x01\x01a"[..]),
            ("an empty path", b"\x82\x86\x04\x00\x01\x01a"),
            ("two paths", b"\x82\x86\x04\x05/file\x04\x05/file\x01\x01a"),
            ("a connection field", b"\x82\x86\x04\x05/file\x01\x01a\x00\x0aconnection\x05close"),
            ("a transfer coding", b"\x82\x86\x04\x05/file\x01\x01a\x00\x11transfer-encoding\x07chunked"),
            ("capitals in a name", b"\x82\x86\x04\x05/file\x01\x01a\x00\x01X\x01y"),
            ("a pseudo-field after another one", b"\x82\x86\x00\x01x\x01y\x04\x05/file\x01\x01a"),
            ("an unknown pseudo-field", b"\x82\x86\x04\x05/file\x01\x01a\x00\x02:x\x01y"),
            ("a line break in a value", b"\x82\x86\x04\x05/file\x01\x01a\x00\x01x\x03y\r\n"),
            ("a length that is not the body's", b"\x82\x86\x04\x05/file\x01\x01a\x00\x0econtent-length\x015"),
        ] {
            let server = &server;
            scope.spawn(move || {
                let answer = ask(server, &frame(HEADERS, END_STREAM | END_HEADERS, 1, block));
                let has = |kinds: &[u8]| answer.iter().any(|(kind, ..)| kinds.contains(kind));
                let sent = answer.iter().any(|(kind, _, payload)| *kind == DATA && payload == b"file");
                assert!(!sent && has(&[RST_STREAM, GOAWAY, HEADERS]), "{name}: {answer:?}");
            });
        }
    });
    assert_eq!(server.get("/file", &[]).text(), "file");
}
