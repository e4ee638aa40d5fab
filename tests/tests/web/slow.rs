//! Clients that are slow, idle or too many.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tests::memcached::{read_some, wait_until};
use tests::web::{Web, split};

use crate::authority::Authority;
use crate::frames::PREFACE;
use crate::site::{Site, text};

/// A server that waits for heads for half a second.
fn impatient() -> (Site, Web) {
    let site = Site::new().with("file", "file").with("large", vec![b'x'; 48 << 20]);
    let limits = "[limits]\nheader-timeout = '500ms'\nstall-timeout = '500ms'";
    let server = site.serve_configured("", &format!("{limits}\n"));
    (site, server)
}

/// Sends a byte of `request` every 50 ms, without an end. Returns what came, and how long after
/// `start` the server closed.
fn drip(stream: &mut TcpStream, request: &[u8], start: Instant) -> (Vec<u8>, Duration) {
    let (interval, mut answer) = (Duration::from_millis(50), Vec::new());
    stream.set_read_timeout(Some(interval)).unwrap();
    for byte in request.iter().chain(std::iter::repeat(&b'x')) {
        let sent = stream.write_all(&[*byte]);
        match stream.read_to_end(&mut answer) {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) && sent.is_ok() => {}
            _ => return (answer, start.elapsed()),
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the server waits for ever for {request:?}");
    }
    unreachable!("the bytes never end")
}

fn assert_cut(answer: &[u8], after: Duration) {
    // 408 or nothing: either tells the client that nothing was done.
    assert!(answer.is_empty() || split(answer).status() == 408, "{:?}", String::from_utf8_lossy(answer));
    assert!(after >= Duration::from_millis(400), "{after:?}");
}

#[test]
fn a_head_that_comes_byte_by_byte_is_cut_off() {
    let (_site, server) = impatient();
    for request in ["GET /file HTTP/1.1\r\nhost: a\r\nx: ", "G", "PRI * HTTP/2.0\r\n\r\n"] {
        let start = Instant::now();
        let (answer, after) = drip(&mut server.connect(), request.as_bytes(), start);
        assert_cut(&answer, after);
    }
    // Also after a request that was answered.
    let mut stream = server.connect();
    let start = Instant::now();
    // Where this machine pauses for half a second, the request comes too late.
    let _ = stream.write_all(b"GET /file HTTP/1.1\r\nhost: a\r\n\r\n");
    if stream.read(&mut [0; 1000]).unwrap_or(0) == 0 {
        return;
    }
    let (answer, after) = drip(&mut stream, b"GET /file HTTP/1.1\r\nx: ", start);
    assert_cut(&answer, after);
}

#[test]
fn an_idle_connection_is_closed() {
    let (_site, server) = impatient();
    for request in ["", "GET /file HTTP/1.1\r\nhost: a\r\n\r\n"] {
        let start = Instant::now();
        let mut stream = server.connect();
        // Fails where this machine pauses for half a second.
        let is_sent = stream.write_all(request.as_bytes()).is_ok();
        let mut answer = Vec::new();
        let is_closed = stream.read_to_end(&mut answer).is_ok();
        assert!(is_closed || !is_sent, "it stays open");
        assert!(answer.is_empty() || !request.is_empty());
        assert!(start.elapsed() >= Duration::from_millis(400), "{:?}", start.elapsed());
    }
}

#[test]
fn an_idle_connection_of_http_2_is_closed() {
    let (_site, server) = impatient();
    // No request at all, and headers that are to be continued (a HEADERS frame without
    // END_HEADERS).
    for more in [&b""[..], b"\0\0\x01\x01\0\0\0\0\x01\x82"] {
        let mut stream = server.connect();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&[PREFACE, more].concat()).unwrap();
        let closed = stream.read_to_end(&mut Vec::new());
        assert!(!matches!(&closed, Err(error) if error.kind() == ErrorKind::WouldBlock), "it stays open");
    }
}

#[test]
fn a_handshake_that_does_not_begin_is_cut_off() {
    let site = Site::new().with("file", "file");
    let authority = Authority::new();
    let (chain, key) = authority.certify("server", "localhost");
    let (chain, key) = (text(&chain).to_owned(), text(&key).to_owned());
    let tls = format!("[tls]\nlisten = ['127.0.0.1:0']\ncertificate = '{chain}'\nkey = '{key}'");
    let server = site.serve_configured("", &format!("{tls}\n[limits]\nheader-timeout = '500ms'"));
    let address = server.urls[1].strip_prefix("https://").unwrap();
    // Nothing, and the beginning of a record.
    for begun in [&b""[..], b"\x16\x03\x01\x02"] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(begun).unwrap();
        let closed = stream.read_to_end(&mut Vec::new());
        assert!(!matches!(&closed, Err(error) if error.kind() == ErrorKind::WouldBlock), "it stays open");
    }
}

/// How many connections are open, without the one that asks.
pub fn open(server: &Web) -> u64 {
    counter(server, "web_connections") - 1
}

/// A number of the page with the server's counters; of several with this name, the sum.
pub fn counter(server: &Web, name: &str) -> u64 {
    sum(server.get("/stats", &[]).text(), name)
}

fn sum(page: &str, name: &str) -> u64 {
    let lines =
        page.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn a_client_that_takes_nothing_of_its_response_is_cut_off() {
    let site = Site::new().with("large", vec![b'x'; 48 << 20]);
    let config = site.configure("", "[limits]\nstall-timeout = '500ms'");
    let server = site.serve(&["--config", text(&config), "--stats", "/stats"]);
    let mut stream = server.connect();
    let start = Instant::now();
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    wait_until("the connection is closed", || open(&server) == 0);
    assert!(start.elapsed() > Duration::from_millis(300), "{:?}", start.elapsed());
}

#[test]
#[ignore = "timing"]
fn a_client_that_takes_a_little_at_a_time_gets_everything() {
    let length = 48 << 20;
    let (_site, server) = impatient();
    let mut stream = server.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let (mut answer, mut part) = (Vec::new(), vec![0; 4 << 20]);
    // Far longer than both limits in all, but never idle for as long as one.
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(150));
        stream.read_exact(&mut part).unwrap();
        answer.extend_from_slice(&part);
    }
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(split(&answer).body.len(), length);
}

#[test]
fn a_body_that_never_comes_does_not_hold_the_connection() {
    let site = Site::new().with("file", "file");
    let server = site.serve(&[]);
    let mut stream = server.connect();
    stream.write_all(b"POST /file HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nbegin").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(split(&answer).status(), 405);
}

#[test]
fn connections_beyond_the_limit_are_closed_at_once_and_later_ones_are_served_again() {
    let site = Site::new().with("file", "file").with("large", vec![b'x'; 48 << 20]);
    let config = site.configure("", "[limits]\nconnections = 4");
    let server = site.serve(&["--config", text(&config), "--stats", "/stats"]);
    let mut held: Vec<TcpStream> = (0..4).map(|_| server.connect()).collect();
    for stream in &mut held {
        stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(server.talk("GET /file HTTP/1.1\r\nhost: a\r\n\r\n"), b"");
        // Before it has sent anything, too.
        assert_eq!(server.connect().read(&mut [0; 1]).unwrap_or(0), 0);
    }
    drop(held.pop());
    wait_until("there is room again", || server.talk("GET /file HTTP/1.0\r\n\r\n").ends_with(b"file"));
    wait_until("the refused ones are counted", || {
        // It may be refused itself, as long as the connection before it counts.
        let page = String::from_utf8(server.talk("GET /stats HTTP/1.0\r\n\r\n")).unwrap();
        sum(&page, "web_connections_refused_total") >= 6
    });
    // Those that are there go on.
    let mut rest = vec![0; 48 << 20];
    held[0].read_exact(&mut rest).unwrap();
}

#[test]
fn the_connection_that_is_idle_for_longest_gives_way_to_a_new_one() {
    let site = Site::new().with("file", "file");
    let config = site.configure("", "[limits]\nconnections = 3");
    let server = site.serve(&["--config", text(&config)]);
    let get = |stream: &mut TcpStream| {
        // Fails where the server has closed the connection.
        let _ = stream.write_all(b"GET /file HTTP/1.1\r\nhost: a\r\n\r\n");
        read_some(stream, &mut [0; 1000]).unwrap_or(0) > 0
    };
    let mut held: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    for stream in &mut held {
        assert!(get(stream));
        // The order is that of the clock.
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(get(&mut held[0]), "it was used, so that the second is idle for longest");
    let mut new = server.connect();
    assert!(get(&mut new));
    assert_eq!(held[1].read(&mut [0; 1]).unwrap_or(0), 0);
    assert!(get(&mut held[0]) && get(&mut held[2]) && get(&mut new));
}

#[test]
fn connections_that_go_away_in_the_middle_leave_nothing_behind() {
    let site = Site::new().with("large", vec![b'x'; 48 << 20]);
    let server = site.serve(&["--stats", "/stats"]);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count();
    assert_eq!(server.get("/large", &["range: bytes=0-0"]).status(), 206);
    wait_until("nobody else is there", || open(&server) == 0);
    let before = descriptors();
    for _ in 0..100 {
        let mut stream = server.connect();
        stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
    }
    wait_until("all have ended", || open(&server) == 0);
    wait_until("all descriptors are closed", || descriptors() <= before + 1);
}
