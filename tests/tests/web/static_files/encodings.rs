//! Files that were compressed beforehand.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use crate::site::{Site, curl, pattern, succeed};

fn site() -> Site {
    // The contents need not be what they claim to be: the server never looks.
    let site =
        Site::new().with("app.js", "plain").with("app.js.br", "brotli").with("app.js.zst", "zstandard");
    site.with("app.js.gz", "gzip")
        .with("only.css", "plain")
        .with("only.css.gz", "gzip")
        .with("none.txt", "plain")
}

#[test]
fn the_client_gets_the_encoding_that_it_likes_best() {
    let site = site();
    let server = site.serve(&[]);
    for (path, accepted, encoding, body) in [
        ("/app.js", "gzip, deflate, br, zstd", Some("br"), "brotli"),
        ("/app.js", "gzip, zstd", Some("zstd"), "zstandard"),
        ("/app.js", "gzip", Some("gzip"), "gzip"),
        ("/app.js", "GZIP", Some("gzip"), "gzip"),
        ("/app.js", "X-GZip", Some("gzip"), "gzip"),
        ("/app.js", "br;q=0.5, gzip;q=0.8", Some("gzip"), "gzip"),
        ("/app.js", "*", Some("br"), "brotli"),
        ("/app.js", "br;q=0, *", Some("zstd"), "zstandard"),
        ("/app.js", "*;q=0.1, br;q=0", Some("zstd"), "zstandard"),
        ("/app.js", "identity;q=0.5, gzip", Some("gzip"), "gzip"),
        ("/app.js", "identity, gzip;q=0.5", None, "plain"),
        ("/app.js", "identity", None, "plain"),
        ("/app.js", "br;q=0, gzip;q=0.000", None, "plain"),
        ("/app.js", "gzip;q=x", None, "plain"),
        ("/app.js", "*;q=0", None, "plain"),
        ("/app.js", "brotli", None, "plain"),
        ("/app.js", "", None, "plain"),
        ("/only.css", "br, gzip", Some("gzip"), "gzip"),
        ("/only.css", "br", None, "plain"),
        ("/none.txt", "br, gzip", None, "plain"),
    ] {
        let response = server.get(path, &[&format!("accept-encoding: {accepted}")]);
        assert_eq!((response.status(), response.text()), (200, body), "{path} with {accepted:?}");
        assert_eq!(response.header("content-encoding"), encoding, "{path} with {accepted:?}");
        // Of what it is once decoded.
        let expected = if path.ends_with(".js") { "text/javascript" } else { "text/" };
        assert!(response.header("content-type").unwrap().starts_with(expected));
        // Caches between need to know for all of them, the plain one too.
        assert_eq!(response.header("vary").is_some(), path != "/none.txt", "{path} with {accepted:?}");
    }
    assert_eq!(server.get("/app.js", &[]).text(), "plain");
    // It can be asked for by its name, too.
    let named = server.get("/app.js.gz", &[]);
    assert_eq!((named.text(), named.header("content-encoding")), ("gzip", None));
}

#[test]
fn each_encoding_has_its_own_tag() {
    let site = Site::new();
    // Nothing else differs: neither the length nor the modification.
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let site = ["app.js", "app.js.br", "app.js.zst", "app.js.gz"].into_iter().fold(site, |site, name| {
        let site = site.with(name, "content");
        let file = std::fs::File::options().write(true).open(site.path(name)).unwrap();
        file.set_modified(modified).unwrap();
        site
    });
    let server = site.serve(&[]);
    let tag = |encoding: &str| {
        let response = server.get("/app.js", &[&format!("accept-encoding: {encoding}")]);
        response.header("etag").unwrap().to_owned()
    };
    let tags: HashSet<String> = ["br", "zstd", "gzip", "identity"].map(tag).into();
    assert_eq!(tags.len(), 4, "{tags:?}");
    let condition = format!("if-none-match: {}", tag("br"));
    let unchanged = server.get("/app.js", &["accept-encoding: br", &condition]);
    assert_eq!((unchanged.status(), unchanged.header("vary")), (304, Some("accept-encoding")));
    assert_eq!(server.get("/app.js", &["accept-encoding: gzip", &condition]).status(), 200);
    // A range is one of the encoded bytes.
    let part = server.get("/app.js", &["accept-encoding: br", "range: bytes=1-3"]);
    assert_eq!((part.status(), part.text(), part.header("content-encoding")), (206, "ont", Some("br")));
}

#[test]
fn compressed_files_are_left_alone_where_that_is_switched_off() {
    let site = site();
    let server = site.serve_configured("precompressed = false", "");
    let response = server.get("/app.js", &["accept-encoding: br"]);
    assert_eq!((response.text(), response.header("vary")), ("plain", None));
}

#[test]
fn curl_decodes_what_gzip_has_made() {
    let (Some(mut curl), Some(gzip)) = (curl(), tests::program("gzip")) else { return };
    let site = Site::new().with("large.txt", pattern(500_000));
    succeed(std::process::Command::new(gzip).arg("--keep").arg(site.path("large.txt")));
    let server = site.serve(&[]);
    let decoded = site.beside("decoded");
    curl.args(["--compressed", "--write-out", "%header{content-encoding} %{size_download}", "--output"]);
    let printed = succeed(curl.arg(&decoded).arg(format!("{}/large.txt", server.urls[0])));
    let encoded = std::fs::metadata(site.path("large.txt.gz")).unwrap().len();
    assert_eq!(printed, format!("gzip {encoded}"));
    assert!(std::fs::read(decoded).unwrap() == pattern(500_000));
}
