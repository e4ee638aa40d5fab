//! Other projects' clients and load generators: every request has to succeed.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tests::web::Web;

use crate::authority::Authority;
use crate::site::{Site, curl, pattern, run, succeed};
use crate::tls::serve_encrypted;

const SHORT: usize = 1000;
const LONG: usize = 300_000;

fn site() -> Site {
    Site::new().with("short", pattern(SHORT)).with("long", pattern(LONG)).with("index.html", "<p>index")
}

/// Runs a load generator on a path, and returns what it printed.
fn load(program: PathBuf, arguments: &[&str], server: &Web, path: &str) -> String {
    succeed(Command::new(program).args(arguments).arg(format!("{}{path}", server.urls[0])))
}

/// The first number of the line that begins with a word.
fn number(printed: &str, start: &str) -> u64 {
    let line = printed.lines().find_map(|line| line.trim().strip_prefix(start));
    let line = line.unwrap_or_else(|| panic!("no {start} in {printed}"));
    line.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or_else(|| panic!("no number: {line}"))
}

#[test]
fn curl_gets_files_by_http_1_0_1_1_and_2() {
    let site = site();
    let server = site.serve(&[]);
    for (flag, version) in [("--http1.0", "1"), ("--http1.1", "1.1"), ("--http2-prior-knowledge", "2")] {
        for (path, content) in
            [("/short", pattern(SHORT)), ("/long", pattern(LONG)), ("/", b"<p>index".to_vec())]
        {
            let Some(mut curl) = curl() else { return };
            let received = site.beside("received");
            curl.args([flag, "--fail", "--write-out", "%{http_version} %{http_code}", "--output"])
                .arg(&received);
            let printed = succeed(curl.arg(format!("{}{path}", server.urls[0])));
            assert_eq!(printed, format!("{} 200", version), "{path}");
            assert!(std::fs::read(received).unwrap() == content, "{flag} {path}");
        }
    }
}

#[test]
fn curl_continues_a_download_follows_redirects_and_revalidates() {
    let site = site().with("folder/index.html", "inner");
    let server = site.serve(&[]);
    let Some(mut resume) = curl() else { return };
    let received = site.beside("received");
    std::fs::write(&received, &pattern(LONG)[..100_001]).unwrap();
    resume.args(["--fail", "--continue-at", "-", "--write-out", "%{http_code}", "--output"]).arg(&received);
    assert_eq!(succeed(resume.arg(format!("{}/long", server.urls[0]))), "206");
    assert!(std::fs::read(&received).unwrap() == pattern(LONG));
    let mut follow = curl().unwrap();
    follow.args(["--location", "--write-out", " %{num_redirects}"]);
    assert_eq!(succeed(follow.arg(format!("{}/folder", server.urls[0]))), "inner 1");
    let tags = site.beside("etag");
    for expected in ["200", "304"] {
        let mut again = curl().unwrap();
        again.args(["--write-out", "%{http_code}", "--output", "/dev/null", "--etag-save"]).arg(&tags);
        again.arg("--etag-compare").arg(&tags);
        assert_eq!(succeed(again.arg(format!("{}/short", server.urls[0]))), expected);
    }
    // An upload is refused before curl has sent all of it, and curl reads why.
    let mut upload = curl().unwrap();
    std::fs::write(site.beside("upload"), vec![1; 5_000_000]).unwrap();
    upload.args(["--write-out", "%{http_code}", "--output", "/dev/null", "--upload-file"]);
    let printed = run(upload.arg(site.beside("upload")).arg(format!("{}/short", server.urls[0])));
    assert_eq!(printed.stdout, "405", "{printed:?}");
}

#[test]
fn wrk_loses_nothing_on_kept_connections() {
    let Some(wrk) = tests::program("wrk") else { return };
    let site = site();
    let server = site.serve(&["--stats", "/stats"]);
    for (path, length) in [("/short", SHORT), ("/long", LONG)] {
        let (begun, mut requests) = (Instant::now(), 0);
        while requests <= 50 {
            let printed = load(wrk.clone(), &["-t1", "-c20", "-d1s", "--timeout", "60s"], &server, path);
            // It names errors only if there are some.
            assert!(!printed.contains("Socket errors") && !printed.contains("Non-2xx"), "{printed}");
            let line = printed.lines().find(|line| line.contains(" requests in ")).unwrap();
            requests += line.split_whitespace().next().unwrap().parse::<u64>().unwrap();
            assert!(begun.elapsed() < Duration::from_secs(60), "{length}: {requests} requests, {printed}");
        }
    }
    let page = server.get("/stats", &[]);
    for class in ["3xx", "4xx", "5xx"] {
        assert!(page.text().contains(&format!("web_responses_total{{status=\"{class}\"}} 0\n")), "{class}");
    }
}

/// The line of h2load with requests, as `requests: 5 total, 5 started, 5 done, 5 succeeded, 0
/// failed, 0 errored, 0 timeout`.
fn assert_all_succeeded(printed: &str, requests: u64, length: usize) {
    let line = printed.lines().find(|line| line.starts_with("requests:")).unwrap_or_default();
    let expected = format!(
        "{requests} total, {requests} started, {requests} done, {requests} succeeded, 0 failed, 0 errored"
    );
    assert!(line.contains(&expected), "{printed}");
    assert!(printed.contains(&format!("status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx")), "{printed}");
    // As `traffic: 1.0MB (1048576) total, ..., 1.0MB (1000000) data`.
    let traffic = printed.lines().find(|line| line.starts_with("traffic:")).unwrap();
    let data = traffic.rsplit('(').next().and_then(|end| end.split(')').next()).unwrap();
    assert_eq!(data.parse::<u64>().unwrap(), requests * length as u64, "{printed}");
}

#[test]
fn h2load_loses_nothing_by_http_1_1_and_2_with_and_without_tls() {
    let Some(h2load) = tests::program("h2load") else { return };
    let site = site();
    let plain = site.serve(&[]);
    let authority = Authority::new();
    let encrypted = serve_encrypted(&site, &authority, &[]);
    for (server, flags) in [
        (&plain, &["--h1"][..]),
        (&plain, &["-p", "h2c", "-m", "10"]),
        (&encrypted, &["--h1"]),
        (&encrypted, &["-m", "10"]),
        // More streams than the server takes at the same time.
        (&encrypted, &["-m", "500"]),
    ] {
        for (path, length, requests) in [("/short", SHORT, 2000), ("/long", LONG, 100)] {
            let count = requests.to_string();
            let printed =
                load(h2load.clone(), &[flags, &["-c5", "-t1", "-n", &count]].concat(), server, path);
            assert_all_succeeded(&printed, requests, length);
        }
    }
}

#[test]
fn nghttp_gets_many_files_on_one_connection() {
    let Some(nghttp) = tests::program("nghttp") else { return };
    let site =
        (0..30).fold(site(), |site, number| site.with(&format!("{number}.txt"), pattern(number * 1000)));
    let server = site.serve(&[]);
    let urls = (0..30).map(|number| format!("{}/{number}.txt", server.urls[0]));
    // With a small window, so that the server has to wait for its updates.
    let mut command = Command::new(nghttp);
    let printed = succeed(command.args(["--null-out", "--stat", "--window-bits=10"]).args(urls));
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains(".txt")).collect();
    assert_eq!(lines.len(), 30, "{printed}");
    // Columns: id, three times, code, size, path.
    assert!(lines.iter().all(|line| line.split_whitespace().any(|word| word == "200")), "{printed}");
}

#[test]
fn nghttp_uploads_trailers_and_paddings_harm_nobody() {
    let Some(nghttp) = tests::program("nghttp") else { return };
    let site = site();
    let server = site.serve(&[]);
    let upload = site.beside("upload");
    std::fs::write(&upload, vec![1; 100_000]).unwrap();
    let url = format!("{}/short", server.urls[0]);
    let get = |arguments: &[&str]| succeed(Command::new(&nghttp).args(arguments).arg("--verbose").arg(&url));
    let data = format!("--data={}", upload.display());
    assert!(get(&["--null-out", &data]).contains(":status: 405"));
    assert!(
        get(&["--null-out", "--padding=200", "--trailer=x: y", "--continuation"]).contains(":status: 200")
    );
    // The upgrade from HTTP/1.1 is not taken (RFC 9113 has given it up), but the request is
    // answered.
    assert!(get(&["--null-out", "--upgrade"]).contains("HTTP/1.1 200 OK"));
}

#[test]
fn ab_loses_nothing_by_http_1_0() {
    let Some(ab) = tests::program("ab") else { return };
    let site = site();
    let server = site.serve(&[]);
    for (flags, path, length, requests) in [
        (&["-c", "10", "-n", "1000"][..], "/short", SHORT, 1000),
        (&["-k", "-c", "10", "-n", "2000"], "/short", SHORT, 2000),
        (&["-k", "-c", "10", "-n", "200"], "/long", LONG, 200),
    ] {
        let printed = load(ab.clone(), &[&["-q", "-s", "60"], flags].concat(), &server, path);
        assert_eq!(number(&printed, "Complete requests:"), requests, "{printed}");
        assert_eq!(number(&printed, "Failed requests:"), 0, "{printed}");
        assert_eq!(number(&printed, "Document Length:"), length as u64, "{printed}");
        assert!(number(&printed, "HTML transferred:") >= requests * length as u64, "{printed}");
        assert!(!printed.contains("Non-2xx"), "{printed}");
        if flags[0] == "-k" {
            assert_eq!(number(&printed, "Keep-Alive requests:"), requests, "{printed}");
        }
    }
}
