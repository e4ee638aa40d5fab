//! Connections to the web server, on loopback: whatever is requested, no file is sent that is not
//! served, and nothing fails. Its parsers of paths, ranges and conditions get the same bytes.
#![no_main]

use std::future::pending;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use servers::web::{Config, FilesConfig, Server};

/// The folder with `served`, which is served, and a file beside it.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/site");
/// What the files contain that are not served.
const PRIVATE: &[u8] = b"cb29a5f0 is not for clients";
/// How long the server may be silent before a connection is closed that has not ended.
const SILENCE: Duration = Duration::from_millis(20);
/// How long a request may take, in all.
const LONGEST: Duration = Duration::from_secs(5);

/// Starts the server once.
fn server() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut runtime = runtime::Builder::new().workers(1).build().expect("a runtime");
            runtime.block_on(async {
                let config = Config {
                    listen: vec!["127.0.0.1:0".parse().expect("an address")],
                    files: Some(FilesConfig::new(Path::new(FOLDER).join("served"))),
                    stats: Some("/stats".to_owned()),
                    ..Config::default()
                };
                let server = Server::start(&config).await.expect("the folder is there");
                sender.send(server.addresses()[0]).expect("the receiver waits");
                pending::<()>().await;
            });
        });
        receiver.recv().expect("the server has started")
    })
}

/// Sends bytes and returns all that the server replies until it closes the connection, or is
/// silent.
fn converse(requests: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server()).expect("the server listens");
    stream.set_read_timeout(Some(SILENCE)).expect("a valid duration");
    stream.set_write_timeout(Some(LONGEST)).expect("a valid duration");
    stream.set_nodelay(true).expect("a TCP socket");
    // It may be refused before it was received as a whole.
    let _ = stream.write_all(requests);
    let (mut replies, mut buffer) = (Vec::new(), [0; 16 << 10]);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        replies.extend_from_slice(&buffer[..length]);
    }
    replies
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    parse(input);
    // The last request ends the connection, if those before it have not.
    let requests = [input, b"GET /none HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"].concat();
    let replies = converse(&requests);
    let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    assert!(!has(&replies, PRIVATE) || has(input, PRIVATE), "a private file was sent");
    assert!(!has(&replies, b"HTTP/1.1 500 "), "{}", String::from_utf8_lossy(&replies));
    if !input.starts_with(b"PRI * HTTP/2.0") && !replies.is_empty() {
        let status = replies.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5));
        let status = status.and_then(|status| str::from_utf8(status).ok()?.parse::<u16>().ok());
        assert!(status.is_some_and(|status| (100..506).contains(&status)), "{}", replies.escape_ascii());
    }
});

/// Parses the lines on their own.
fn parse(input: &[u8]) {
    for line in input.split(|byte| *byte == b'\n').take(20) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let value = line.splitn(2, |byte| *byte == b':').last().unwrap_or(line).trim_ascii();
        servers::web::fuzzing::evaluate_headers(value);
        let Ok(line) = str::from_utf8(line) else { continue };
        servers::web::fuzzing::parse_path(line.split(' ').nth(1).unwrap_or(line));
        if let Some((_, range)) = line.rsplit_once("bytes=") {
            for size in [0, 1, 1000, u64::MAX] {
                servers::web::fuzzing::parse_range(&format!("bytes={range}"), size);
            }
        }
    }
}
