//! A server that also serves its runtime's metrics to Prometheus, and what a scrape gets.
//!
//! ```sh
//! cargo run --bin metrics
//! ```

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream, copy};
use tokio::net::{TcpListener, TcpStream};

/// The longest head of a request that is read, in bytes.
const LONGEST_HEAD: u64 = 8 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve())?;
    Ok(())
}

async fn serve() -> io::Result<()> {
    let echo = TcpListener::bind("127.0.0.1:0").await?;
    let address = echo.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = echo.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.into_split();
                // Fails if the client breaks the connection, which ends it anyway.
                let _ = copy(&mut reader, &mut writer).await;
            });
        }
    });
    let metrics = TcpListener::bind("127.0.0.1:0").await?;
    let metrics_address = metrics.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = metrics.accept().await {
            // Fails if the scraper breaks the connection.
            tokio::spawn(answer(stream));
        }
    });
    println!("metrics on http://{metrics_address}/metrics");

    let before = polls(&scrape(metrics_address, "/metrics").await?);
    for _ in 0..100 {
        let mut client = TcpStream::connect(address).await?;
        client.write_all(b"hello").await?;
        client.shutdown().await?;
        client.read_to_string(&mut String::new()).await?;
    }
    let page = scrape(metrics_address, "/metrics").await?;
    for line in page.lines().filter(|line| line.starts_with("tokio_")) {
        println!("{line}");
    }
    assert!(polls(&page) >= before, "it counts");
    assert!(scrape(metrics_address, "/other").await?.starts_with("HTTP/1.1 404"));
    Ok(())
}

/// Answers one request, and closes the connection.
async fn answer(stream: TcpStream) -> io::Result<()> {
    let mut stream = BufStream::new(stream);
    let mut head = String::new();
    {
        let mut lines = (&mut stream).take(LONGEST_HEAD);
        // The head ends with an empty line.
        while lines.read_line(&mut head).await? > 0 && !head.ends_with("\r\n\r\n") {}
    }
    let (status, content_type, body) = if head.starts_with("GET /metrics ") {
        ("200 OK", "text/plain; version=0.0.4", prometheus())
    } else {
        ("404 Not Found", "text/plain", "the metrics are at /metrics\n".to_owned())
    };
    let length = body.len();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

fn prometheus() -> String {
    let metrics = tokio::runtime::Handle::current().metrics();
    let parks = |worker| metrics.worker_park_count(worker);
    let line = |worker| format!("tokio_worker_parks_total{{worker=\"{worker}\"}} {}\n", parks(worker));
    (0..metrics.num_workers()).map(line).collect()
}

/// What Prometheus does: it asks for the page, and reads it to the end.
async fn scrape(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

/// The parks of all workers together.
fn polls(page: &str) -> u64 {
    let samples = page.lines().filter(|line| line.starts_with("tokio_worker_parks_total{"));
    samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}
