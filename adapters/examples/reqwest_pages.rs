//! Fetches pages by reqwest, which needs tokio's runtime: a thread has it.
//! `cargo run -p lull-adapters --example reqwest_pages`

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use adapters::tls::rustls;
use runtime::task::JoinSet;

#[runtime::main(workers = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    adapters::tokio_context::enter()?;
    // With reqwest's feature `rustls-no-provider` the program chooses the cryptography. It fails if
    // another has been chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let address = serve_pages()?;
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
    let mut pages = JoinSet::new();
    for number in 0..20 {
        let request = client.get(format!("http://{address}/{number}"));
        pages.spawn(async move { request.send().await?.error_for_status()?.text().await });
    }
    let mut bytes = 0;
    while let Some(page) = pages.join_next().await {
        bytes += page??.len();
    }
    println!("20 pages, {bytes} bytes");
    Ok(())
}

/// A server on threads, of another runtime as it were.
fn serve_pages() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || -> io::Result<()> {
                let mut stream = stream?;
                let _ = stream.read(&mut [0; 4096])?;
                let page = "x".repeat(1000);
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\nconnection: close\r\n\r\n{page}")
            });
        }
    });
    Ok(address)
}
