//! QUIC by quinn, with an endpoint on each worker.
//!
//! ```
//! use std::time::Duration;
//!
//! use adapters::quinn::{client, serve};
//! # use adapters::tls::{Acceptor, Certificates, Connector};
//! # let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
//! # let folder = tempfile::tempdir().unwrap();
//! # let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
//! # std::fs::write(&chain, made.cert.pem()).unwrap();
//! # std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
//!
//! # let runtime = runtime::Builder::new().workers(2).build().unwrap();
//! # runtime.block_on(async {
//! let acceptor = Acceptor::builder(Certificates::new(&chain, key)).open()?;
//! let server = serve(acceptor.quic(["echo"])?, ([127, 0, 0, 1], 0).into(), async |incoming| {
//!     let Ok(connection) = incoming.await else { return };
//!     while let Ok((mut send, mut receive)) = connection.accept_bi().await {
//!         if let Ok(message) = receive.read_to_end(1024).await {
//!             let _ = send.write_all(&message).await;
//!             let _ = send.finish();
//!         }
//!     }
//! })?;
//!
//! let connector = Connector::builder().authorities(chain).open()?;
//! let mut endpoint = client(([127, 0, 0, 1], 0).into())?;
//! endpoint.set_default_client_config(connector.quic(["echo"])?);
//! let connection = endpoint.connect(server.local_addr()?, "localhost")?.await?;
//! let (mut send, mut receive) = connection.open_bi().await?;
//! send.write_all(b"hello").await?;
//! send.finish()?;
//! assert_eq!(receive.read_to_end(1024).await?, b"hello");
//! connection.close(0_u32.into(), b"");
//! server.shutdown(Duration::from_secs(1)).await;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! An endpoint belongs to a worker: its socket, and the tasks of its connections. quinn's handles
//! (`Endpoint`, `Connection`, streams) are `Send`, and work on every worker and thread; what they
//! do is then done by the endpoint's worker.

mod group;
mod home;
mod rt;
mod serve;
mod socket;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ::quinn::{Endpoint, EndpointConfig};
use net::UdpSocket;

pub use self::home::Runtime;
pub use self::serve::{Server, serve};

/// An endpoint for clients on this worker, bound to a local address, such as `[::]:0`.
pub fn client(address: SocketAddr) -> io::Result<Endpoint> {
    let socket = UdpSocket::bind(address)?.into_std()?;
    Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(Runtime::current()))
}
