//! Sockets on the runtime's drivers, served where the kernel polls for them.
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
//! Streams implement the futures-io traits. What a completed write means depends on the worker's
//! driver: see [`Stream`]. Connect and bind take what [`ToSocketAddrs`] lists; connecting looks
//! names up.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

mod bind_options;
mod buffers;
mod control_messages;
mod copy;
mod listener;
mod lone_worker;
mod names;
mod serve;
mod slices;
mod sockopt;
mod stream;
mod tcp;
mod tcp_socket;
mod to_socket_addrs;
mod udp;
mod udp_batch;
mod udp_message;
mod udp_ready;
mod unix;

pub use bind_options::BindOptions;
pub use bytes::Bytes;
pub use copy::copy_bidirectional;
pub use listener::Listener;
pub use names::lookup_host;
pub use serve::{AcceptErrors, Alignment, ListenerFailure, Serving, ShutdownReport, UdpServing, UdpSteering};
pub use socket2::TcpKeepalive;
pub use stream::{
    FileSender, IntoStdError, NotSameStream, OwnedReadHalf, OwnedWriteHalf, ReadHalf, Stream, WriteHalf,
};
pub use tcp::{Tcp, TcpListener, TcpStream};
pub use tcp_socket::TcpSocket;
pub use to_socket_addrs::ToSocketAddrs;
pub use udp::UdpSocket;
pub use udp_batch::{OutgoingDatagram, RecvBatch};
pub use udp_message::{DatagramInfo, Ecn, SendOptions};
pub use unix::{PeerCredentials, Unix, UnixDatagram, UnixListener, UnixStream};
