//! Starts a memcached server inside a program, talks to it, and shuts it down:
//! `cargo run -p lull-servers --example embedded_memcached`.

use std::error::Error;
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::TcpStream;
use servers::memcached::{Config, Server};

#[runtime::main(workers = 1)]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = Config { port: Some(0), memory: 16 << 20, ..Config::default() };
    let server = Server::start(&config).await?;
    println!("listening on {}", server.addresses()[0]);

    let mut client = TcpStream::connect(server.addresses()[0]).await?;
    // A meta set, a meta get that returns value and flags, and the end of the connection.
    client.write_all(b"ms greeting 5 F7\r\nhello\r\nmg greeting v f\r\nquit\r\n").await?;
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).await?;
    print!("{}", String::from_utf8_lossy(&replies));
    assert_eq!(replies, b"HD\r\nVA 5 f7\r\nhello\r\n");

    let report = server.shutdown(Duration::from_secs(1)).await;
    println!("shut down; {} connections aborted", report.aborted);
    Ok(())
}
