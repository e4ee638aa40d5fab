//! Runs hyper, axum, tonic, tower, rustls and quinn on Lull, each connection on the worker that
//! polls its queue.
//!
//! An axum application, served by all workers:
//!
//! ```
//! use axum::Router;
//! use axum::routing::get;
//! # use futures_util::{AsyncReadExt, AsyncWriteExt};
//! # use std::time::Duration;
//!
//! #[runtime::main]
//! async fn main() -> std::io::Result<()> {
//!     let app = Router::new().route("/", get(async || "hello"));
//!     let listener = net::TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     let server = adapters::axum::serve(listener, app).start()?;
//!
//!     let mut client = net::TcpStream::connect(address).await?;
//!     client.write_all(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await?;
//!     let mut answer = String::new();
//!     client.read_to_string(&mut answer).await?;
//!     assert!(answer.ends_with("\r\n\r\nhello"));
//!     server.shutdown(Duration::from_secs(1)).await;
//!     Ok(())
//! }
//! ```
//!
//! Policy, interface and driver of `#[runtime::main]` come from the environment. Servers, clients
//! and what they return need a runtime, and panic outside of one.
//!
//! Each adapter is a cargo feature; by default only `tokio-context` is on:
//!
//! | Feature | Has |
//! |---|---|
//! | `io` | `Io`, `SendIo`, `HyperIo`: streams with the I/O traits of hyper and tokio |
//! | `hyper` | `hyper`: executor, timer, and servers of HTTP/1 and HTTP/2 with their limits |
//! | `client` | `hyper::Client`: a pooled HTTP client for each worker; with `tls` also for HTTPS |
//! | `tower` | `tower`: any tower service is served; layers for timeouts and rates |
//! | `axum` | `axum`: `serve` for routers |
//! | `ws` | `axum::ws`: WebSockets in axum's handlers |
//! | `tls` | `tls`: TLS by rustls on any stream, and for servers and clients of HTTP |
//! | `postgres` | `postgres`: a pool for tokio-postgres, with a part for each worker; with `tls` also encrypted |
//! | `tonic` | `tonic`: gRPC servers and client channels |
//! | `quinn` | `quinn`: QUIC, with an endpoint on each worker; with `tls` |
//! | `full` | all of these |
//! | `tokio-context` | `tokio_context`: a thread with tokio's runtime, so that `tokio::time` and `tokio::spawn` work below the handlers of these servers |
//!
//! None of `full` needs tokio's runtime. hyper, h2 and axum depend on the crate `tokio` for its
//! channels and traits, which work in any runtime.
//!
//! # What it is not for
//! - A web server or reverse proxy that faces the internet: take nginx, and this crate behind it.
//!   The examples `static_files` and `reverse_proxy` show how the parts fit together.
//! - Crates that open tokio's sockets themselves: they work, but on another thread, whose sockets
//!   no policy polls.

#![forbid(unsafe_code)]
// docs.rs then shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(any(feature = "io", feature = "tls"))]
mod forward_write;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "io")]
mod io;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "quinn")]
pub mod quinn;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "tokio-context")]
pub mod tokio_context;
#[cfg(feature = "tonic")]
pub mod tonic;
#[cfg(feature = "tower")]
pub mod tower;

#[cfg(feature = "io")]
pub use self::io::{HyperIo, Io, SendIo};
