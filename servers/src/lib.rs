//! A memcached-compatible server, as the command `memcached` and as a part of a program. This one
//! starts it, stores an item and reads it back:
//!
//! ```
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//! use net::TcpStream;
//! use servers::memcached::{Config, Server};
//!
//! #[runtime::main(workers = 1)]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let config = Config { port: Some(0), ..Config::default() };
//!     let server = Server::start(&config).await?;
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
//! The command runs the same server with memcached's flags: `memcached -p 11211 -t 2`.
//!
//! It is not for data that must survive the process: it has no warm restart (`-e`), no external
//! storage and no replication. It has no proxy. As a library it is a server, not a map: the
//! program reaches the items through a connection, as any client does.
//!
//! # How a request runs
//!
//! `server` listens, and `connection` moves bytes between a socket and its `session` (`udp` those
//! of a datagram). The session parses a request with `protocol`, works on the item in the `store`,
//! and writes the reply. What all connections share is the `context`.
//!
//! # Cargo features
//!
//! `cli`, which is on by default: the command `memcached`. As a library the crate does not need it.

#![forbid(unsafe_code)]
#![cfg_attr(fuzzing, allow(missing_docs))]

/// A server that speaks memcached's protocols: the text protocol with its classic and its meta
/// commands, the binary protocol, and text requests over UDP.
pub mod memcached {
    mod auth;
    mod clock;
    mod config;
    mod connection;
    mod context;
    mod listen;
    pub mod logging;
    mod mutation;
    mod numbers;
    mod protocol;
    mod server;
    mod session;
    mod stats {
        pub mod connections;
        pub mod counters;
        pub mod policy_section;
    }
    mod store;
    mod udp;

    /// What the fuzz targets drive without sockets: parsers, sessions, and the answers to datagrams.
    #[cfg(fuzzing)]
    pub mod fuzzing {
        pub use super::context::ServerContext;
        pub use super::mutation::Condition;
        pub use super::protocol::{KEY_MAX, classic, meta, tokens};
        pub use super::session::{Session, SessionStep};
        pub use super::udp::answer;
    }

    pub use adapters::tls::{ClientCertificates, Error as TlsError};
    pub use auth::UsersFileError;
    pub use config::{Config, Port, Protocol, TlsConfig, VERSION};
    pub use context::{Credentials, ReloadError, StartError};
    pub use net::ShutdownReport;
    pub use server::Server;
}
