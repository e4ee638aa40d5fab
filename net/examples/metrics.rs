//! A server that also serves its runtime's metrics to Prometheus, and what a scrape gets.
//!
//! ```sh
//! cargo run -p lull-net --example metrics
//! ```

use std::io;
use std::net::SocketAddr;

use futures_util::io::copy_buf;
use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use runtime::metrics::{PROMETHEUS_CONTENT_TYPE, Snapshot};

/// The longest head of a request that is read, in bytes.
const LONGEST_HEAD: u64 = 8 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The histograms that read the clock at each poll or each wake are off unless they are asked
    // for.
    let runtime = runtime::Builder::new()
        .enable_metrics_poll_time_histogram()
        .enable_metrics_schedule_latency_histogram()
        .build()?;
    runtime.block_on(serve())?;
    Ok(())
}

async fn serve() -> io::Result<()> {
    let echo = TcpListener::bind("127.0.0.1:0")?;
    let address = echo.local_addr()?;
    let _echoing = echo.serve(|stream: TcpStream| async move {
        let (reader, mut writer) = stream.into_split();
        // Fails if the client breaks the connection, which ends it anyway.
        let _ = copy_buf(reader, &mut writer).await;
    })?;
    let metrics = TcpListener::bind("127.0.0.1:0")?;
    let metrics_address = metrics.local_addr()?;
    let _metrics = metrics.serve(|stream: TcpStream| async move {
        // Fails if the scraper breaks the connection.
        let _ = answer(stream).await;
    })?;
    println!("metrics on http://{metrics_address}/metrics");

    let before = polls(&scrape(metrics_address, "/metrics").await?);
    for _ in 0..100 {
        let mut client = TcpStream::connect(address).await?;
        client.write_all(b"hello").await?;
        client.close().await?;
        client.read_to_string(&mut String::new()).await?;
    }
    let page = scrape(metrics_address, "/metrics").await?;
    let shown =
        ["lull_worker_info{", "lull_worker_polls_total{", "lull_worker_schedule_latency_seconds_sum{"];
    for line in page.lines().filter(|line| shown.iter().any(|name| line.starts_with(name))) {
        println!("{line}");
    }
    assert!(polls(&page) >= before + 100, "the workers have polled a task for each connection");
    assert!(scrape(metrics_address, "/other").await?.starts_with("HTTP/1.1 404"));
    Ok(())
}

/// Answers one request, and closes the connection.
async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut head = String::new();
    {
        let mut lines = (&mut stream).take(LONGEST_HEAD);
        // The head ends with an empty line.
        while lines.read_line(&mut head).await? > 0 && !head.ends_with("\r\n\r\n") {}
    }
    let (status, content_type, body) = if head.starts_with("GET /metrics ") {
        ("200 OK", PROMETHEUS_CONTENT_TYPE, Snapshot::take().prometheus())
    } else {
        ("404 Not Found", "text/plain", "the metrics are at /metrics\n".to_owned())
    };
    let length = body.len();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(response.as_bytes()).await?;
    stream.close().await
}

/// What Prometheus does: it asks for the page, and reads it to the end.
async fn scrape(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

/// The polls of all workers together.
fn polls(page: &str) -> u64 {
    let samples = page.lines().filter(|line| line.starts_with("lull_worker_polls_total{"));
    samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}
