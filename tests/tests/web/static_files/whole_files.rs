//! Whole files and folders.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use crate::site::{Site, pattern, responses};

#[test]
fn a_file_is_sent_whole_with_its_type_and_length() {
    let site = Site::new().with("page.html", "<p>page").with("empty", "").with("a b/\u{e9}.txt", "accent");
    let server = site.serve(&[]);
    let page = server.get("/page.html", &[]);
    assert_eq!((page.status(), page.text()), (200, "<p>page"));
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.header("content-length"), Some("7"));
    assert_eq!(page.header("accept-ranges"), Some("bytes"));
    assert!(page.header("date").is_some_and(|date| date.ends_with(" GMT")));
    let empty = server.get("/empty", &[]);
    assert_eq!((empty.status(), empty.header("content-length"), empty.text()), (200, Some("0"), ""));
    let accent = server.get("/a%20b/%C3%A9.txt?query", &[]);
    assert_eq!((accent.status(), accent.text()), (200, "accent"));
    assert_eq!(server.get("/nothing", &[]).status(), 404);
    // A file is not a folder.
    assert_eq!(server.get("/page.html/", &[]).status(), 404);
    assert_eq!(server.get("/page.html/more", &[]).status(), 404);
}

#[test]
fn types_follow_the_ending_of_the_name() {
    let types = [
        ("a.html", "text/html; charset=utf-8"),
        ("a.css", "text/css; charset=utf-8"),
        ("b.CSS", "text/css; charset=utf-8"),
        ("a.js", "text/javascript; charset=utf-8"),
        ("a.json", "application/json; charset=utf-8"),
        ("a.svg", "image/svg+xml"),
        ("a.png", "image/png"),
        ("a.webp", "image/webp"),
        ("a.wasm", "application/wasm"),
        ("a.woff2", "font/woff2"),
        ("a.pdf", "application/pdf"),
        ("a.tar.gz", "application/gzip"),
        ("a.txt", "text/plain; charset=utf-8"),
        ("a", "application/octet-stream"),
    ];
    let site = types.iter().fold(Site::new(), |site, (name, _)| site.with(name, "x"));
    let server = site.serve(&[]);
    for (name, expected) in types {
        assert_eq!(server.get(&format!("/{name}"), &[]).header("content-type"), Some(expected), "{name}");
    }
}

#[test]
fn head_has_the_headers_of_get_and_no_body() {
    let site = Site::new().with("short", "short").with("long", pattern(200_000));
    let server = site.serve(&[]);
    for path in ["/short", "/long", "/missing"] {
        let (head, get) = (server.request("HEAD", path, &[]), server.get(path, &[]));
        assert_eq!(head.status(), get.status(), "{path}");
        assert!(head.body.is_empty(), "{path}");
        for name in ["content-length", "content-type", "etag", "last-modified", "accept-ranges"] {
            assert_eq!(head.header(name), get.header(name), "{path}: {name}");
        }
    }
}

#[test]
fn other_methods_get_405_with_those_that_there_are() {
    let site = Site::new().with("file", "file");
    let server = site.serve(&["--stats", "/stats"]);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "PROPFIND", "get"] {
        for path in ["/file", "/missing", "/stats"] {
            let refused = server.request(method, path, &[]);
            assert_eq!(
                (refused.status(), refused.header("allow")),
                (405, Some("GET, HEAD")),
                "{method} {path}"
            );
        }
    }
    // No tunnel, either.
    assert_eq!(server.request("CONNECT", "example.com:80", &[]).status(), 405);
}

#[test]
fn a_body_that_nobody_wants_is_not_taken_for_a_request() {
    let site = Site::new().with("file", "file").with("other", "other");
    let server = site.serve(&[]);
    let request = "POST /file HTTP/1.1\r\nhost: a\r\ncontent-length: 38\r\n\r\nGET /other HTTP/1.1\r\nhost: aaaaaaaa\r\n\r\n\
        GET /file HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answers = responses(&server.talk(request));
    assert_eq!(answers[0].status(), 405);
    // The server may close the connection instead of reading the body.
    assert!(answers[1..].iter().all(|answer| answer.text() == "file"), "{answers:?}");
}

#[test]
fn a_folder_is_answered_with_its_index_or_not_at_all() {
    let site = Site::new().with("index.html", "top").with("a/index.html", "inner").with("b/file", "file");
    let server = site.serve(&[]);
    assert_eq!(server.get("/", &[]).text(), "top");
    assert_eq!(server.get("/?a=b", &[]).text(), "top");
    let inner = server.get("/a/", &[]);
    assert_eq!((inner.text(), inner.header("content-type")), ("inner", Some("text/html; charset=utf-8")));
    assert_eq!(server.get("/b/../a/", &[]).text(), "inner");
    // There are no listings.
    assert_eq!(server.get("/b/", &[]).status(), 403);
    let server = site.serve_configured("index = ['missing', 'file']", "");
    assert_eq!(server.get("/b/", &[]).text(), "file");
    assert_eq!(server.get("/a/", &[]).status(), 403);
}

#[test]
fn a_folder_without_its_slash_redirects_to_the_path_with_it() {
    let site = Site::new().with("folder/index.html", "x").with("a b/index.html", "x");
    let server = site.serve(&[]);
    for (path, location) in [
        ("/folder", "/folder/"),
        ("/folder?q=1&r=%20", "/folder/?q=1&r=%20"),
        ("/a%20b", "/a%20b/"),
        ("//folder", "/folder/"),
        ("http://other.example/folder", "/folder/"),
    ] {
        let moved = server.get(path, &[]);
        assert_eq!((moved.status(), moved.header("location")), (301, Some(location)), "{path}");
    }
    assert_eq!(server.request("HEAD", "/folder", &[]).status(), 301);
}

/// What follows two slashes, or what browsers take for a slash, would be read as a host.
#[test]
fn a_redirect_never_leads_to_another_host() {
    let site = Site::new().with("folder/index.html", "x");
    let server = site.serve(&[]);
    for path in [
        "//evil.example/../folder",
        "///evil.example/../folder",
        "//evil.example/..//folder",
        "//evil.example/%2e%2e/folder",
        "/\\evil.example/../folder",
        "/\\/evil.example/../../folder",
        "/./\\evil.example/../folder",
        "/.//evil.example/../folder",
        "\\\\evil.example/../folder",
        "/%5cevil.example/../folder",
        "/%2f/evil.example/../../folder",
        "/%09/evil.example/../../folder",
        "/evil.example:80/../folder",
        "/@evil.example/../folder",
        "//evil.example/../folder?//evil.example",
    ] {
        let response = server.get(path, &["host: good.example"]);
        let Some(location) = response.header("location") else {
            assert!(matches!(response.status(), 400 | 404), "{path}: {response:?}");
            continue;
        };
        // As a browser reads it (WHATWG URL): tabs are dropped, a backslash is a slash.
        let read = location.replace('\\', "/").replace('\t', "");
        assert_eq!(response.status(), 301, "{path}");
        assert!(read.starts_with('/') && !read.starts_with("//"), "{path} leads to {location}");
    }
}

#[test]
fn links_within_the_root_are_followed() {
    let site = Site::new().with("a/file", "file");
    symlink("a/file", site.path("link")).unwrap();
    symlink("a", site.path("folder")).unwrap();
    symlink("circle", site.path("circle")).unwrap();
    let server = site.serve(&[]);
    assert_eq!(server.get("/link", &[]).text(), "file");
    assert_eq!(server.get("/folder/file", &[]).text(), "file");
    assert_eq!(server.get("/circle", &[]).status(), 404);
}

#[test]
fn a_pipe_a_socket_or_a_device_neither_hangs_the_server_nor_is_sent() {
    let site = Site::new().with("file", "file");
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mkfifoat(rustix::fs::CWD, site.path("pipe"), mode).unwrap();
    let _socket = UnixListener::bind(site.path("socket")).unwrap();
    symlink("/dev/zero", site.path("zero")).unwrap();
    let server = site.serve(&[]);
    for (path, status) in [("/pipe", 403), ("/socket", 403), ("/zero", 404), ("/file", 200)] {
        // Again, in case it was remembered.
        for _ in 0..2 {
            assert_eq!(server.get(path, &[]).status(), status, "{path}");
        }
    }
}

#[test]
fn a_file_that_may_not_be_read_gets_403() {
    let site = Site::new().with("closed", "secret").with("shut/file", "secret").with("open", "open");
    for name in ["closed", "shut"] {
        std::fs::set_permissions(site.path(name), PermissionsExt::from_mode(0o000)).unwrap();
    }
    // Root may read everything.
    let user = if rustix::process::geteuid().is_root() { &["--user", "nobody"][..] } else { &[] };
    let server = site.serve(user);
    assert_eq!(server.get("/closed", &[]).status(), 403);
    assert_eq!(server.get("/shut/file", &[]).status(), 403);
    assert_eq!(server.get("/open", &[]).text(), "open");
    std::fs::set_permissions(site.path("shut"), PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let site = Site::new().with("a", "a".repeat(10)).with("b", pattern(300_000)).with("c", "");
    let server = site.serve(&[]);
    let mut requests = String::new();
    for round in 0..50 {
        let path = ["a", "b", "c", "missing"][round % 4];
        requests.push_str(&format!("GET /{path} HTTP/1.1\r\nhost: a\r\n\r\n"));
    }
    requests.push_str("GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let answers = responses(&server.talk(requests));
    assert_eq!(answers.len(), 51);
    for (round, answer) in answers.iter().enumerate() {
        let (status, body) = match round % 4 {
            _ if round == 50 => (200, b"a".repeat(10)),
            0 => (200, b"a".repeat(10)),
            1 => (200, pattern(300_000)),
            2 => (200, Vec::new()),
            _ => (404, b"404 Not Found\n".to_vec()),
        };
        assert!(answer.status() == status && answer.body == body, "request {round}: {}", answer.head);
    }
}
