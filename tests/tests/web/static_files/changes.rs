//! Large files, and files that change while the server runs.

use std::io::{Read, Write};
use std::time::Duration;

use tests::memcached::{read_some, wait_until};

use crate::site::{Site, curl, pattern, responses, succeed};

const LARGE: usize = 3 << 20;

#[test]
fn a_large_file_arrives_byte_by_byte() {
    let content = pattern(LARGE);
    let site = Site::new().with("large", &content);
    let server = site.serve(&[]);
    let whole = server.get("/large", &[]);
    assert_eq!(whole.header("content-length"), Some(&LARGE.to_string()[..]));
    assert!(whole.body == content, "{} bytes", whole.body.len());
    let part = server.get("/large", &["range: bytes=1000001-2999999"]);
    assert!(part.status() == 206 && part.body == content[1_000_001..3_000_000]);
}

#[test]
fn large_files_are_pipelined_with_short_ones_between() {
    let content = pattern(LARGE);
    let site = Site::new().with("large", &content).with("short", "short");
    let server = site.serve(&[]);
    let get = |path: &str, more: &str| format!("GET /{path} HTTP/1.1\r\nhost: a\r\n{more}\r\n");
    let requests = [
        get("large", ""),
        get("short", ""),
        get("large", "range: bytes=5-9,1000000-2000000\r\n"),
        get("missing", "range: bytes=0-0\r\n"),
    ];
    let mut stream = server.connect();
    stream.write_all(requests.concat().as_bytes()).unwrap();
    stream.write_all(get("large", "connection: close\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answers = responses(&answer);
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status()).collect();
    assert_eq!(statuses, [200, 200, 206, 404, 200]);
    assert!(answers[0].body == content && answers[4].body == content);
    assert_eq!(answers[1].text(), "short");
    assert!(answers[2].body.windows(1000).any(|window| window == &content[1_500_000..1_501_000]));
}

#[test]
fn files_that_are_not_kept_in_memory_arrive_byte_by_byte() {
    let short = pattern(5000);
    let site = Site::new().with("short", &short).with("empty", "");
    for setting in ["cache-file-size = 0", "cache-file-size = '1m'\ncache-memory = '1k'"] {
        let server = site.serve_configured(setting, "");
        for _ in 0..3 {
            assert!(server.get("/short", &[]).body == short, "{setting}");
            assert_eq!(server.get("/empty", &[]).text(), "");
        }
        let part = server.get("/short", &["range: bytes=10-19,4990-"]);
        assert!(part.status() == 206 && part.body.windows(10).any(|window| window == &short[4990..]));
    }
}

#[test]
fn many_clients_get_a_large_file_at_the_same_time() {
    let content = pattern(LARGE);
    let site = Site::new().with("large", &content);
    let server = site.serve(&[]);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert!(server.get("/large", &[]).body == content));
        }
    });
}

#[test]
fn a_large_file_arrives_by_http_2() {
    let Some(mut curl) = curl() else { return };
    let content = pattern(LARGE);
    let site = Site::new().with("large", &content);
    let server = site.serve(&[]);
    let received = site.beside("received");
    curl.args(["--http2-prior-knowledge", "--write-out", "%{http_version}", "--output"]).arg(&received);
    assert_eq!(succeed(curl.arg(format!("{}/large", server.urls[0]))), "2");
    assert!(std::fs::read(received).unwrap() == content);
}

#[test]
fn a_file_that_was_replaced_is_served_after_cache_valid() {
    let site = Site::new().with("file", "old").with("long", pattern(100_000));
    let server = site.serve_configured("cache-valid = '50ms'", "");
    assert_eq!(server.get("/file", &[]).text(), "old");
    assert_eq!(server.get("/long", &[]).body.len(), 100_000);
    let old = server.get("/file", &[]).header("etag").unwrap().to_owned();
    // Renamed over it, as most programs do.
    std::fs::write(site.beside("next"), "new").unwrap();
    std::fs::rename(site.beside("next"), site.path("file")).unwrap();
    wait_until("the new file is served", || server.get("/file", &[]).text() == "new");
    // The other worker remembers the old one for as long.
    wait_until("the old tag counts no more", || {
        let changed = server.get("/file", &[&format!("if-none-match: {old}")]);
        (changed.status(), changed.text()) == (200, "new")
    });
    // Written over, with the same length.
    std::fs::write(site.path("file"), "NEW").unwrap();
    wait_until("the new content is served", || server.get("/file", &[]).text() == "NEW");
    std::fs::write(site.path("long"), pattern(200_000)).unwrap();
    wait_until("the long file is served anew", || server.get("/long", &[]).body == pattern(200_000));
    // Compressed, removed, and there again.
    std::fs::write(site.path("file.gz"), "gzip").unwrap();
    wait_until("the compressed file is found", || {
        server.get("/file", &["accept-encoding: gzip"]).text() == "gzip"
    });
    std::fs::remove_file(site.path("file")).unwrap();
    wait_until("the file is gone", || server.get("/file", &[]).status() == 404);
    std::fs::write(site.path("file"), "again").unwrap();
    wait_until("the file is there again", || server.get("/file", &[]).text() == "again");
}

#[test]
fn a_file_is_remembered_for_as_long_as_cache_valid_says() {
    let site = Site::new().with("file", "old");
    let server = site.serve_configured("cache-valid = '1h'", "");
    // Each worker has a cache, and a connection stays on its worker.
    let mut stream = server.connect();
    let mut text = || {
        stream.write_all(b"GET /file HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while !(answer.ends_with(b"old") || answer.ends_with(b"new")) {
            let mut part = [0; 1000];
            let length = read_some(&mut stream, &mut part).unwrap();
            assert!(length > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&part[..length]);
        }
        String::from_utf8(answer.split_off(answer.len() - 3)).unwrap()
    };
    assert_eq!(text(), "old");
    std::fs::write(site.path("file"), "new").unwrap();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(text(), "old");
    }
}

/// Requests a file on a connection, and reads the beginning of the response only.
fn begin(server: &tests::web::Web, path: &str) -> (std::net::TcpStream, Vec<u8>) {
    let mut stream = server.connect();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).unwrap();
    let mut first = vec![0; 1000];
    stream.read_exact(&mut first).unwrap();
    (stream, first)
}

#[test]
fn a_response_breaks_off_when_its_file_is_cut() {
    // More than all the buffers on the way hold.
    let length = 48 << 20;
    let site = Site::new().with("file", vec![b'x'; length]).with("other", "other");
    let server = site.serve(&[]);
    let (mut stream, mut answer) = begin(&server, "/file");
    // To nothing: of a page that is cut in half the kernel zeroes the rest, also while it is on its
    // way.
    std::fs::File::options().write(true).open(site.path("file")).unwrap().set_len(0).unwrap();
    // Fails if the connection is reset.
    let _ = stream.read_to_end(&mut answer);
    let response = tests::web::split(&answer);
    assert_eq!(response.header("content-length"), Some(&length.to_string()[..]));
    assert!(response.body.len() < length, "a file that was cut arrived whole");
    // Nothing was made up to fill the gap.
    assert!(response.body.iter().all(|byte| *byte == b'x'));
    assert_eq!(server.get("/other", &[]).text(), "other");
}

#[test]
fn a_response_goes_on_with_the_file_that_it_began_with() {
    let length = 48 << 20;
    let site = Site::new().with("file", vec![b'x'; length]);
    let server = site.serve(&[]);
    let (mut stream, mut answer) = begin(&server, "/file");
    std::fs::write(site.beside("next"), vec![b'y'; length]).unwrap();
    std::fs::rename(site.beside("next"), site.path("file")).unwrap();
    let head = tests::web::split(&answer);
    let left = length - head.body.len();
    answer = vec![0; left];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer.iter().all(|byte| *byte == b'x'));
}
