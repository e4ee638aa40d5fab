//! Parts of files (RFC 9110, section 14).

use tests::web::RawResponse;

use crate::site::{Site, pattern};

/// A file that is kept in memory, and one that the kernel sends.
const LENGTHS: [usize; 2] = [1000, 300_000];

#[test]
fn a_range_is_sent_with_its_place() {
    for length in LENGTHS {
        let content = pattern(length);
        let site = Site::new().with("file", &content);
        let server = site.serve(&[]);
        let last = length - 1;
        for (range, first, end) in [
            ("0-0".to_owned(), 0, 0),
            ("0-99".to_owned(), 0, 99),
            ("200-500".to_owned(), 200, 500),
            ("500-".to_owned(), 500, last),
            ("-1".to_owned(), last, last),
            (format!("-{}", length * 2), 0, last),
            (format!("{last}-"), last, last),
            (format!("900-{}", length + 5), 900, last),
            ("7-18446744073709551615".to_owned(), 7, last),
            ("7-99999999999999999999999".to_owned(), 7, last),
        ] {
            let part = server.get("/file", &[&format!("range: bytes={range}")]);
            assert_eq!(part.status(), 206, "{range} of {length}");
            assert!(part.body == content[first..=end], "{range} of {length}: {}", part.head);
            assert_eq!(part.header("content-range"), Some(&format!("bytes {first}-{end}/{length}")[..]));
            assert_eq!(part.header("content-length"), Some(&(end - first + 1).to_string()[..]));
            assert!(part.header("etag").is_some());
        }
    }
}

#[test]
fn a_range_beyond_the_end_gets_416_with_the_length() {
    let site = Site::new().with("file", pattern(1000)).with("empty", "");
    let server = site.serve(&[]);
    for (path, range, length) in [
        // An empty set has no range that could be satisfied.
        ("/file", "", 1000),
        ("/file", "1000-", 1000),
        ("/file", "-0", 1000),
        ("/file", "5000-6000,7000-", 1000),
        ("/empty", "0-", 0),
        ("/empty", "-1", 0),
    ] {
        let refused = server.get(path, &[&format!("range: bytes={range}")]);
        assert_eq!(refused.status(), 416, "{range} of {path}");
        assert_eq!(refused.header("content-range"), Some(&format!("bytes */{length}")[..]));
    }
}

#[test]
fn what_is_no_range_gets_the_whole_file() {
    let content = pattern(1000);
    let site = Site::new().with("file", &content);
    let server = site.serve(&[]);
    let many: Vec<String> = (0..200).map(|part| format!("{0}-{0}", part * 2)).collect();
    let many = format!("bytes={}", many.join(","));
    for range in [
        "",
        "bytes",
        "lines=0-1",
        "bytes=5-2",
        "bytes=a-b",
        "bytes=1",
        "bytes=+1-2",
        "bytes=--1",
        "bytes=0-5,3-7",
        "b\u{e9}\u{e9}s=0-1",
        "0-1",
        &many,
    ] {
        let whole = server.get("/file", &[&format!("range: {range}")]);
        assert!(whole.status() == 200 && whole.body == content, "{range}: {}", whole.head);
    }
    // The header is defined for GET only (section 14.2).
    let head = server.request("HEAD", "/file", &["range: bytes=0-1"]);
    assert_eq!((head.status(), head.header("content-length")), (200, Some("1000")));
}

/// Ranges that overlap make a small request cost much (CVE-2011-3192).
#[test]
fn ranges_that_overlap_cost_no_more_than_the_file() {
    let site = Site::new().with("file", pattern(100_000));
    let server = site.serve(&[]);
    let ranges = format!("range: bytes={}", vec!["0-"; 1000].join(","));
    let response = server.get("/file", &[&ranges]);
    assert!(response.body.len() <= 110_000, "{} bytes", response.body.len());
}

/// The parts of a `multipart/byteranges` response: what their headers say, and their bytes.
fn parts(response: &RawResponse) -> Vec<(String, Vec<u8>)> {
    let content_type = response.header("content-type").unwrap();
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").expect(content_type);
    let (delimiter, mut rest) = (format!("--{boundary}\r\n").into_bytes(), &response.body[..]);
    let mut parts = Vec::new();
    // RFC 2046, section 5.1.1: the line break before a delimiter belongs to it.
    while let Some(part) = rest.strip_prefix(&delimiter[..]) {
        let end = format!("\r\n--{boundary}").into_bytes();
        let length = part.windows(end.len()).position(|window| window == end).expect("a delimiter");
        let (part, after) = part.split_at(length);
        let head = part.windows(4).position(|window| window == b"\r\n\r\n").expect("an empty line");
        parts.push((String::from_utf8(part[..head + 2].to_vec()).unwrap(), part[head + 4..].to_vec()));
        rest = &after[2..];
    }
    assert_eq!(rest, format!("--{boundary}--\r\n").as_bytes(), "after the last part");
    parts
}

#[test]
fn several_ranges_are_sent_as_parts() {
    for length in LENGTHS {
        let content = pattern(length);
        let site = Site::new().with("file.txt", &content);
        let server = site.serve(&[]);
        let response = server.get("/file.txt", &["range: Bytes=0-9, 500-599,-100 ,"]);
        assert_eq!(response.status(), 206);
        assert!(response.header("content-range").is_none());
        assert_eq!(response.header("content-length"), Some(&response.body.len().to_string()[..]));
        let expected = [(0, 10), (500, 600), (length - 100, length)];
        let parts = parts(&response);
        assert_eq!(parts.len(), 3);
        for ((head, bytes), (start, end)) in parts.iter().zip(expected) {
            assert!(
                head.contains(&format!("content-range: bytes {start}-{}/{length}\r\n", end - 1)),
                "{head}"
            );
            assert!(head.contains("content-type: text/plain; charset=utf-8\r\n"), "{head}");
            assert!(*bytes == content[start..end], "{start} to {end} of {length}");
        }
        // Only one of them is within the file.
        let single = server.get("/file.txt", &[&format!("range: bytes=0-9,{length}-")]);
        assert_eq!((single.status(), &single.body[..]), (206, &content[..10]));
        assert_eq!(single.header("content-range"), Some(&format!("bytes 0-9/{length}")[..]));
    }
}

#[test]
fn a_range_counts_only_for_the_version_that_if_range_names() {
    let content = pattern(1000);
    let site = Site::new().with("file", &content);
    // Of a file that was changed just now, a date may name two versions.
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    std::fs::File::options().append(true).open(site.path("file")).unwrap().set_modified(then).unwrap();
    let server = site.serve(&[]);
    let known = server.get("/file", &[]);
    let (etag, modified) = (known.header("etag").unwrap(), known.header("last-modified").unwrap());
    for (condition, status) in [
        (etag.to_owned(), 206),
        (format!("W/{etag}"), 200),
        ("\"other\"".to_owned(), 200),
        (modified.to_owned(), 206),
        ("Sun, 06 Nov 1994 08:49:37 GMT".to_owned(), 200),
    ] {
        let part = server.get("/file", &["range: bytes=10-19", &format!("if-range: {condition}")]);
        let expected = if status == 206 { &content[10..20] } else { &content[..] };
        assert!(part.status() == status && part.body == expected, "{condition}: {}", part.head);
    }
    // A condition that fails goes before a range.
    let unchanged = server.get("/file", &["range: bytes=10-19", &format!("if-none-match: {etag}")]);
    assert_eq!(unchanged.status(), 304);
}
