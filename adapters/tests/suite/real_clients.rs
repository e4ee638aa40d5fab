//! Other projects' clients against an axum application: curl, wrk and h2load.

use std::process::{Command, Output};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use hyper::body::Bytes;

use crate::common::listener;
use requirements::require;

fn installed(program: &str) -> Option<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    require(&format!("program {program}"), found.then_some(()))
}

/// Runs a command while the runtime serves, and returns what it printed.
async fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    let (sender, receiver) = futures_channel::oneshot::channel::<Output>();
    std::thread::spawn(move || sender.send(command.output().unwrap()));
    let output = runtime::timeout(Duration::from_secs(120), receiver).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn app() -> Router {
    Router::new()
        .route("/", get(async || "hello"))
        .route("/large", get(async || vec![b'x'; 3 << 20]))
        .route("/length", post(async |body: Bytes| body.len().to_string()))
}

#[runtime::test(workers = 2)]
async fn curl_gets_and_posts_by_http1_and_http2() {
    if installed("curl").is_none() {
        return;
    }
    let listener = listener();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let server = adapters::axum::serve(listener, app()).start().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("upload");
    // The routes take 2 MiB, which is axum's default.
    std::fs::write(&file, vec![1; 2_000_000]).unwrap();
    let upload = format!("@{}", file.display());
    for (flag, version) in [("--http1.1", "1.1"), ("--http2-prior-knowledge", "2")] {
        let common = ["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "30", flag];
        let url = |path: &str| format!("{uri}{path}");
        let with = |rest: &[&str]| {
            [&common[..], rest].concat().iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()
        };
        let curl = async |rest: &[&str]| {
            let arguments = with(rest);
            run("curl", &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
        };
        let said = curl(&["--write-out", " %{http_version}", &url("/")]).await;
        assert_eq!(said, format!("hello {version}"));
        assert_eq!(curl(&[&url("/large")]).await.len(), 3 << 20);
        assert_eq!(curl(&["--data-binary", &upload, &url("/length")]).await, "2000000");
        // With `Expect: 100-continue`, and in chunks.
        let chunked = ["--header", "transfer-encoding: chunked", "--data-binary", &upload, &url("/length")];
        if version == "1.1" {
            assert_eq!(curl(&chunked).await, "2000000");
        }
    }
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test(workers = 2)]
async fn wrk_and_h2load_see_no_failed_request() {
    let listener = listener();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let server = adapters::axum::serve(listener, app()).start().unwrap();
    if installed("wrk").is_some() {
        let report = run("wrk", &["-t1", "-c20", "-d1s", "--timeout", "60s", &uri]).await;
        assert!(report.contains("requests in"), "{report}");
        assert!(!report.contains("Socket errors") && !report.contains("Non-2xx"), "{report}");
    }
    if installed("h2load").is_some() {
        let report = run("h2load", &["-n2000", "-c4", "-m20", &uri]).await;
        assert!(report.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{report}");
    }
    server.shutdown(Duration::from_secs(60)).await;
}
