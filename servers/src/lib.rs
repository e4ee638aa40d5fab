//! A memcached-compatible server on Lull's runtime.
//!
//! ```
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//! use net::TcpStream;
//! use servers::memcached::{Config, Server};
//!
//! #[runtime::main(workers = 1)]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let config = Config { port: Some(0), ..Config::default() };
//!     let server = Server::start(&config)?;
//!     let mut client = TcpStream::connect(server.addresses()[0]).await?;
//!     client.write_all(b"set greeting 0 0 5\r\nhello\r\nget greeting\r\n").await?;
//!     let expected = b"STORED\r\nVALUE greeting 0 5\r\nhello\r\nEND\r\n";
//!     let mut replies = vec![0; expected.len()];
//!     client.read_exact(&mut replies).await?;
//!     assert_eq!(replies, expected);
//!     Ok(())
//! }
//! ```
//!
//! The `memcached` command of this crate runs the same server with memcached's flags.
//!
//! # Cargo features
//!
//! All are on by default.
//!
//! - `cli`: the command `memcached`. As a library the crate does not need it.
//! - `tls`: TLS on TCP connections ([`memcached::TlsConfig`]).

#![forbid(unsafe_code)]
#![allow(missing_docs)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

mod connection_limit;
mod listen;
pub mod memcached;
