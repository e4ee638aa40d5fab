//! TLS by rustls, on any stream.
//!
//! ```
//! use std::io::Result;
//!
//! use adapters::tls::{Acceptor, Certificates, Connector};
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//! use net::{TcpListener, TcpStream};
//! # let names = vec!["localhost".to_owned()];
//! # let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).unwrap();
//! # let folder = tempfile::tempdir().unwrap();
//! # let (certificates, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
//! # std::fs::write(&certificates, cert.pem()).unwrap();
//! # std::fs::write(&key, signing_key.serialize_pem()).unwrap();
//!
//! # let runtime = runtime::Builder::new().workers(1).build().unwrap();
//! # runtime.block_on(async {
//! let acceptor = Acceptor::builder(Certificates::new(&certificates, key)).open().unwrap();
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let _serving = listener.serve(move |stream: TcpStream| {
//!     let acceptor = acceptor.clone();
//!     async move {
//!         let Ok(mut stream) = acceptor.accept(stream).await else { return };
//!         let _ = stream.write_all(b"hello").await;
//!         let _ = stream.close().await;
//!     }
//! })?;
//!
//! let connector = Connector::builder().authorities(certificates).open().unwrap();
//! let stream = TcpStream::connect(address).await?;
//! let mut stream = connector.connect("localhost", stream).await?;
//! let mut greeting = String::new();
//! stream.read_to_string(&mut greeting).await?;
//! assert_eq!(greeting, "hello");
//! # Result::Ok(())
//! # }).unwrap();
//! ```
//!
//! The cryptography is `ring`'s. TLS 1.2 and 1.3 are spoken.

mod acceptor;
mod connector;
mod error;
mod files;
mod stream;

pub use futures_rustls::rustls;

pub use self::acceptor::{Acceptor, AcceptorBuilder, ClientCertificates, LoadedAcceptor};
pub use self::connector::{Connector, ConnectorBuilder};
pub use self::error::{Error, HandshakeError};
pub use self::files::Certificates;
pub use self::stream::Stream;
