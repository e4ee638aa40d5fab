//! Sockets on the runtime's drivers, served where the kernel polls for them: TCP, UDP, and Unix
//! domain sockets.
//!
//! ```
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//! use net::{TcpListener, TcpStream};
//!
//! #[runtime::main(workers = 2)]
//! async fn main() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     let echo = listener.serve(|mut stream: TcpStream| async move {
//!         let mut buffer = [0; 1024];
//!         while let Ok(length @ 1..) = stream.read(&mut buffer).await {
//!             if stream.write_all(&buffer[..length]).await.is_err() {
//!                 break;
//!             }
//!         }
//!     })?;
//!
//!     let mut client = TcpStream::connect(address).await?;
//!     client.write_all(b"hello").await?;
//!     let mut answer = [0; 5];
//!     client.read_exact(&mut answer).await?;
//!     assert_eq!(&answer, b"hello");
//!     drop(client);
//!     echo.shutdown(std::time::Duration::from_secs(1)).await;
//!     Ok(())
//! }
//! ```
//!
//! [`TcpListener::serve`](Listener::serve) aligns connections with workers. A connection's packets
//! come from one receive queue, that queue has one NAPI, and the worker that polls this NAPI serves
//! the connection. Sockets of two NAPIs in one epoll instance would be worse than none: the
//! instance polls the NAPI of the last event, and the packets of the others wait for a timer.
//!
//! What uses the runtime panics outside of one. Where a function documents no error, it is the one
//! of its system call.
//!
//! Streams implement the futures-io traits; `lull-adapters` has tokio's. What a completed write
//! means depends on the worker's driver: see [`Stream`]. Connect and bind take what
//! [`ToSocketAddrs`] lists; connecting looks names up.
//!
//! # What it is not for
//! - Protocols: `lull-adapters` has TLS, HTTP and QUIC.
//! - Sockets that move between threads: each belongs to the worker that made it. What crosses is
//!   the standard library's socket ([`Stream::into_std`](TcpStream::into_std)), or a message.
//! - Raw sockets and packet sockets: `runtime::io::AsyncFd` waits for those.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

mod buffers;
mod copy;
mod listener;
mod names;
/// Serving connections on the workers that own their NAPIs.
mod serve {
    mod accept;
    mod connections;
    pub(crate) mod counts;
    pub(crate) mod datagrams;
    mod listener_group;
    pub(crate) mod serving;
}
mod sockopt;
/// Connected byte streams, whatever their address family.
mod stream {
    pub(crate) mod generic;
    pub(crate) mod halves;
    pub(crate) mod send_file;
    mod socket_io;
}
mod tcp;
mod tcp_socket;
mod to_socket_addrs;
mod udp;
mod udp_batch;
mod udp_message;
mod unix;

pub use bytes::Bytes;
pub use socket2::TcpKeepalive;

pub use crate::copy::copy_bidirectional;
#[doc(hidden)]
pub use crate::listener::Arrival;
pub use crate::listener::{BindOptions, Listener};
pub use crate::names::lookup_host;
pub use crate::serve::counts::{AcceptErrors, Alignment};
pub use crate::serve::datagrams::{UdpServing, UdpSteering};
pub use crate::serve::serving::{Serving, ShutdownReport};
pub use crate::stream::generic::{IntoStdError, Stream};
pub use crate::stream::halves::{NotSameStream, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
pub use crate::stream::send_file::FileSender;
#[doc(hidden)]
pub use crate::tcp::LateAddress;
pub use crate::tcp::{Tcp, TcpListener, TcpStream};
pub use crate::tcp_socket::TcpSocket;
pub use crate::to_socket_addrs::ToSocketAddrs;
pub use crate::udp::UdpSocket;
pub use crate::udp_batch::{OutgoingDatagram, RecvBatch};
pub use crate::udp_message::{DatagramInfo, Ecn, SendOptions};
pub use crate::unix::{PeerCredentials, Unix, UnixDatagram, UnixListener, UnixStream};
