//! Requests that two servers could read differently (RFC 9112, sections 2 to 7, and 11.2).

use std::io::{Read, Write};
use std::time::Duration;

use tests::web::Web;

use crate::site::{Site, responses};

/// What is expected of a request, after which `GET /smuggled` follows on the same connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// A status from 400 on, and the connection is closed.
    Refused,
    /// One response, and the connection is closed: what follows is not read.
    OneThenClosed,
    /// Its end is where the standard has it, so what follows is another request.
    Both,
    /// As `OneThenClosed` or `Refused`: the standard permits both.
    AtMostOne,
}

use Expected::{AtMostOne, Both, OneThenClosed, Refused};

/// What it is, the request, and what is expected, with the section of RFC 9112.
type Case = (&'static str, &'static [u8], Expected);

/// Two lengths. 6.1: a server may refuse them or go by the transfer coding, and closes the
/// connection in any case.
const BOTH_LENGTHS: &[Case] = &[
    (
        "CL.TE: the length spans what follows the last chunk",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 30\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        AtMostOne,
    ),
    (
        "TE.CL: the length ends within the chunks",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n5c\r\n",
        AtMostOne,
    ),
    (
        "CL.TE with a length of zero",
        b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        AtMostOne,
    ),
    (
        "TE.CL with a length that is none",
        b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: x\r\n\r\n0\r\n\r\n",
        AtMostOne,
    ),
    (
        "chunked in HTTP/1.0, which has no transfer codings",
        b"POST / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        AtMostOne,
    ),
];

/// Transfer codings that one server may not recognize. 6.1: those that are unknown should get 501;
/// 6.3: chunked that is not the last one gets 400.
const CODINGS: &[Case] = &[
    (
        "chunked alone",
        b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        OneThenClosed,
    ),
    (
        "in capitals (7: any case)",
        b"GET / HTTP/1.1\r\nhost: a\r\nTRANSFER-ENCODING: CHUNKED\r\n\r\n0\r\n\r\n",
        OneThenClosed,
    ),
    (
        "white space about it",
        b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:  \t chunked \t\r\n\r\n0\r\n\r\n",
        OneThenClosed,
    ),
    (
        "TE.TE, the last one unknown",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, the first one unknown",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    ("xchunked", b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n", Refused),
    ("identity", b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n", Refused),
    (
        "chunked, identity",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "identity, chunked",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "gzip, chunked",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "chunked twice",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "chunked with a parameter",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "a vertical tab before it",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "a form feed after it",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\x0c\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "a NUL after it",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\x00\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    ("in quotes", b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \"chunked\"\r\n\r\n0\r\n\r\n", Refused),
    ("empty", b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n\r\n0\r\n\r\n", Refused),
    (
        "a comma before it",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: ,chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "a space before the colon (5.1: 400)",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "a tab before the colon",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding\t: chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "on a folded line (5.2: 400)",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "after a folded line",
        b"POST / HTTP/1.1\r\nhost: a\r\nx: y\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "after a bare CR (2.2: invalid)",
        b"POST / HTTP/1.1\r\nhost: a\r\nx: y\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "an underscore is another name",
        b"GET / HTTP/1.1\r\nhost: a\r\ntransfer_encoding: chunked\r\n\r\n",
        Both,
    ),
];

/// Lengths. 6.3: what is no number, and different numbers, get 400; 6.2: so may the same number
/// twice, or it counts once.
const LENGTHS: &[Case] = &[
    ("a length of zero", b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", Both),
    ("a body", b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello", Both),
    (
        "a body that looks like a request",
        b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 31\r\n\r\nGET /never HTTP/1.1\r\nhost: a\r\n\r\n",
        Both,
    ),
    (
        "the same twice",
        b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
        Both,
    ),
    ("zeros before it", b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 0005\r\n\r\nhello", Both),
    (
        "two that differ",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ncontent-length: 5\r\n\r\n",
        Refused,
    ),
    ("a list that differs", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0, 5\r\n\r\n", Refused),
    ("a list of the same", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0, 0\r\n\r\n", Refused),
    ("plus", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +0\r\n\r\n", Refused),
    ("minus", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", Refused),
    ("a space within", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0 0\r\n\r\n", Refused),
    ("hexadecimal", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0x0\r\n\r\n", Refused),
    ("a fraction", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0.0\r\n\r\n", Refused),
    ("empty", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: \r\n\r\n", Refused),
    (
        "beyond 64 bits",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551616\r\n\r\n",
        Refused,
    ),
    ("64 bits", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551615\r\n\r\n", Refused),
    ("digits of another script", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: \xd9\xa0\r\n\r\n", Refused),
    ("a space before the colon", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length : 0\r\n\r\n", Refused),
    ("a NUL", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\x00\r\n\r\n", Refused),
];

/// Chunks, and some that are none. Nobody reads the body of a request for a file, so its response
/// may come before a fault is seen: the connection is closed after it.
const CHUNKS: &[Case] = &[
    ("chunks", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n00\r\n\r\n", OneThenClosed),
    ("extensions (7.1.1: ignored)", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;a=b;c=\"d\"\r\nhello\r\n0;e\r\n\r\n", OneThenClosed),
    ("trailers", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\ncontent-length: 50\r\n\r\n", OneThenClosed),
    ("no size", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n", AtMostOne),
    ("0x", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0x0\r\n\r\n", AtMostOne),
    ("a sign", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n+0\r\n\r\n", AtMostOne),
    ("a space before the size", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n 0\r\n\r\n", AtMostOne),
    ("a size beyond 64 bits", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n10000000000000000\r\n\r\n0\r\n\r\n", AtMostOne),
    ("a size that wraps to 0", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nf0000000000000000\r\n\r\n", AtMostOne),
    ("a size in 16 digits", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n\r\n0\r\n\r\n", AtMostOne),
    ("a bare LF after the size", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", AtMostOne),
    ("a bare LF in an extension", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;\nhello\r\n0\r\n\r\n", AtMostOne),
    ("a bare CR after the size", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\rXhello\r\n0\r\n\r\n", AtMostOne),
    ("more bytes than the size", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n", AtMostOne),
    ("no end of a chunk", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n", AtMostOne),
    ("a bare LF at the end", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\n", AtMostOne),
    ("a bare LF at the end, and a request whose body is one", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\nPOST / HTTP/1.1\r\nhost: a\r\ncontent-length: 32\r\n\r\nGET /never HTTP/1.1\r\nhost: a\r\n\r\n", AtMostOne),
    ("no empty line after the last chunk", b"GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", AtMostOne),
];

/// Request heads that RFC 9112 has a server refuse with 400: a missing, repeated or invalid Host
/// (section 3.2), and lines that are not a valid request line or field (sections 2.2, 3 and 5).
const HEADS: &[Case] = &[
    ("no host", b"GET / HTTP/1.1\r\n\r\n", Refused),
    ("two hosts", b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", Refused),
    ("the same host twice", b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", Refused),
    ("a list of hosts", b"GET / HTTP/1.1\r\nhost: a, b\r\n\r\n", Refused),
    ("a host with a path", b"GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", Refused),
    ("a host with a user", b"GET / HTTP/1.1\r\nhost: user@a\r\n\r\n", Refused),
    ("no host in HTTP/1.0", b"GET / HTTP/1.0\r\n\r\n", OneThenClosed),
    ("an empty host", b"GET / HTTP/1.1\r\nhost:\r\n\r\n", Both),
    ("a target with its own host (3.2.2: it counts)", b"GET http://b/ HTTP/1.1\r\nhost: a\r\n\r\n", Both),
    ("empty lines before it (2.2: ignored)", b"\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", Both),
    ("bare LFs (2.2: permitted)", b"GET / HTTP/1.1\nhost: a\n\n", Both),
    ("a bare LF within a field", b"GET / HTTP/1.1\r\nhost: a\r\nx: y\nz\r\n\r\n", Refused),
    ("a bare CR within a field", b"GET / HTTP/1.1\r\nhost: a\r\nx: y\rz\r\n\r\n", Refused),
    ("a bare CR as the end of a line", b"GET / HTTP/1.1\rhost: a\r\r", Refused),
    ("a NUL in a value", b"GET / HTTP/1.1\r\nhost: a\r\nx: y\x00z\r\n\r\n", Refused),
    ("a NUL in a name", b"GET / HTTP/1.1\r\nhost: a\r\nx\x00: y\r\n\r\n", Refused),
    ("a NUL in the target", b"GET /\x00 HTTP/1.1\r\nhost: a\r\n\r\n", Refused),
    ("a space in a name", b"GET / HTTP/1.1\r\nhost: a\r\nx y: z\r\n\r\n", Refused),
    ("a space before the first field (2.2)", b"GET / HTTP/1.1\r\n host: a\r\n\r\n", Refused),
    ("a line without a colon", b"GET / HTTP/1.1\r\nhost: a\r\nnothing\r\n\r\n", Refused),
    ("an empty name", b"GET / HTTP/1.1\r\nhost: a\r\n: x\r\n\r\n", Refused),
    ("a byte beyond ASCII in a name", b"GET / HTTP/1.1\r\nhost: a\r\n\xe9: x\r\n\r\n", Refused),
    ("no version", b"GET /\r\nhost: a\r\n\r\n", Refused),
    ("HTTP/2.0 without its preface", b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", Refused),
    ("HTTP/1.2", b"GET / HTTP/1.2\r\nhost: a\r\n\r\n", Refused),
    ("HTTP/1.10", b"GET / HTTP/1.10\r\nhost: a\r\n\r\n", Refused),
    ("a version in small letters", b"GET / http/1.1\r\nhost: a\r\n\r\n", Refused),
    ("two spaces in the request line", b"GET  / HTTP/1.1\r\nhost: a\r\n\r\n", Refused),
    ("a space in the target", b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", Refused),
    ("a tab in the request line", b"GET\t/ HTTP/1.1\r\nhost: a\r\n\r\n", Refused),
    ("no target", b"GET HTTP/1.1\r\nhost: a\r\n\r\n", Refused),
    ("a method that is no token", b"G(T / HTTP/1.1\r\nhost: a\r\n\r\n", Refused),
    ("a response", b"HTTP/1.1 200 OK\r\nhost: a\r\n\r\n", Refused),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", Refused),
];

/// What follows each case. Only a server that misreads the case, or has to read on, answers it.
const FOLLOWING: &[u8] = b"GET /smuggled HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// Sends a case and what follows. Returns everything that came, and whether the server closed the
/// connection.
fn converse(server: &Web, request: &[u8]) -> (Vec<u8>, bool) {
    let mut stream = server.connect();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let _ = stream.write_all(&[request, FOLLOWING].concat());
    let mut answer = Vec::new();
    let closed = match stream.read_to_end(&mut answer) {
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        Ok(_) => true,
    };
    (answer, closed)
}

/// What is wrong with what came, if anything is.
fn problem(expected: Expected, answer: &[u8], closed: bool) -> Option<&'static str> {
    let answers = responses(answer);
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status()).collect();
    let refused = matches!(statuses[..], [400..=599]);
    let answered = matches!(statuses[..], [200 | 405]);
    if answers.iter().any(|answer| answer.text() == "never") {
        return Some("a body was taken for a request");
    }
    match expected {
        _ if !closed => Some("the connection stays open"),
        Refused if !refused => Some("it is not refused"),
        OneThenClosed if !answered => Some("it does not get one response"),
        AtMostOne if !(refused || answered) => Some("it does not get one response"),
        Both if answers.len() != 2 || answers[1].text() != "smuggled" => {
            Some("it is not followed by the next request")
        }
        _ => None,
    }
}

fn assert_cases(cases: &[Case]) {
    let site = Site::new().with("index.html", "index").with("smuggled", "smuggled").with("never", "never");
    let server = site.serve(&[]);
    let mut wrong = Vec::new();
    for (name, request, expected) in cases {
        let (answer, closed) = converse(&server, request);
        if let Some(problem) = problem(*expected, &answer, closed) {
            wrong.push(format!("{name}: {problem}: {:?}", String::from_utf8_lossy(&answer)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn two_lengths_are_never_read_as_two_requests() {
    assert_cases(BOTH_LENGTHS);
}

#[test]
fn a_transfer_coding_is_chunked_or_refused() {
    assert_cases(CODINGS);
}

#[test]
fn a_length_is_one_number_or_refused() {
    assert_cases(LENGTHS);
}

#[test]
fn chunks_end_where_the_standard_has_it_or_end_the_connection() {
    assert_cases(CHUNKS);
}

#[test]
fn a_head_is_valid_or_refused() {
    assert_cases(HEADS);
}

#[test]
fn heads_beyond_the_limit_are_refused() {
    let site = Site::new().with("index.html", "index");
    let server = site.serve_configured("", "[limits]\nheader-size = '8k'");
    let refused = |request: String| tests::web::split(&server.talk(request)).status();
    let many: String = (0..101).map(|number| format!("x{number}: y\r\n")).collect();
    assert_eq!(refused(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(9000))), 431);
    assert_eq!(refused(format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n")), 431);
    // Without an end, too.
    assert_eq!(refused(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "y".repeat(100_000))), 431);
    assert!(matches!(refused(format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "y".repeat(9000))), 414 | 431));
    assert_eq!(server.get("/", &[&format!("x: {}", "y".repeat(7000))]).status(), 200);
}
