//! Conditional requests (RFC 9110, section 13).

use std::time::{Duration, SystemTime};

use tests::web::Web;

use crate::site::Site;

/// The modification of the file, and times about it.
const MODIFIED: u64 = 784_111_777;
const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

/// Serves a file, `/file`, whose modification is known. Returns its entity tag, too.
fn serve() -> (Site, Web, String) {
    let site = Site::new().with("file", "content");
    let file = std::fs::File::options().write(true).open(site.path("file")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED)).unwrap();
    let server = site.serve(&[]);
    let etag = server.get("/file", &[]).header("etag").unwrap().to_owned();
    (site, server, etag)
}

#[test]
fn a_file_has_a_strong_tag_and_its_modification() {
    let (_site, server, etag) = serve();
    assert!(etag.len() > 2 && etag.starts_with('"') && etag.ends_with('"'), "{etag}");
    assert_eq!(server.get("/file", &[]).header("last-modified"), Some(SAME));
}

#[test]
fn conditions_have_the_outcomes_of_the_standard() {
    let (_site, server, etag) = serve();
    for (conditions, status) in [
        (&["if-none-match: ETAG"][..], 304),
        (&["if-none-match: W/ETAG"], 304),
        (&["if-none-match: \"other\", ETAG"], 304),
        (&["if-none-match: \"other\"", "if-none-match: ETAG"], 304),
        (&["if-none-match: *"], 304),
        (&["if-none-match: \"other\""], 200),
        (&["if-modified-since: SAME"], 304),
        (&["if-modified-since: AFTER"], 304),
        (&["if-modified-since: BEFORE"], 200),
        (&["if-modified-since: nonsense"], 200),
        // The tag goes first.
        (&["if-none-match: \"other\"", "if-modified-since: SAME"], 200),
        (&["if-match: ETAG"], 200),
        (&["if-match: *"], 200),
        (&["if-match: \"other\", ETAG"], 200),
        (&["if-match: \"other\""], 412),
        (&["if-match: W/ETAG"], 412),
        (&["if-unmodified-since: SAME"], 200),
        (&["if-unmodified-since: BEFORE"], 412),
        (&["if-match: ETAG", "if-unmodified-since: BEFORE"], 200),
        (&["if-match: ETAG", "if-none-match: ETAG"], 304),
    ] {
        let values = |line: &&str| {
            let line = line.replace("ETAG", &etag).replace("SAME", SAME);
            line.replace("BEFORE", BEFORE).replace("AFTER", AFTER)
        };
        let lines: Vec<String> = conditions.iter().map(values).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        for method in ["GET", "HEAD"] {
            let response = server.request(method, "/file", &lines);
            assert_eq!(response.status(), status, "{method} with {lines:?}");
            let has_content = status == 200 && method == "GET";
            assert_eq!(response.body == b"content", has_content, "{method} with {lines:?}");
        }
    }
}

#[test]
fn a_304_has_the_validators_and_no_content() {
    let (_site, server, etag) = serve();
    let unchanged = server.get("/file", &[&format!("if-none-match: {etag}")]);
    assert_eq!((unchanged.status(), unchanged.header("etag")), (304, Some(&etag[..])));
    assert_eq!(unchanged.header("last-modified"), Some(SAME));
    assert!(unchanged.body.is_empty() && unchanged.header("content-type").is_none());
    // Zero would say that the file is empty (RFC 9110, section 8.6).
    assert!(matches!(unchanged.header("content-length"), None | Some("7")), "{}", unchanged.head);
}

#[test]
fn a_file_that_is_not_there_ignores_conditions() {
    let (_site, server, _etag) = serve();
    assert_eq!(server.get("/missing", &["if-none-match: *"]).status(), 404);
    assert_eq!(server.get("/missing", &["if-match: \"x\""]).status(), 404);
}
