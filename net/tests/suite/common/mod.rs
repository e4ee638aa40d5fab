//! Helpers of the tests over loopback.

use std::task::Poll;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use runtime::DriverKind;

use crate::drivers::drivers;

/// Port 0 of loopback: any free port.
pub fn local() -> std::net::SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(local()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (client, server)
}

/// A stream, and its peer as a blocking socket of the standard library, whose reads give up after
/// 30 s.
pub async fn with_std_peer() -> (TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind(local()).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    (stream, peer)
}

/// Polls a future this many more times, one in each turn of the worker, and drops it then.
pub async fn poll_times<F: Future>(future: F, mut left: u32) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

pub fn drivers_with_a_ring() -> Vec<DriverKind> {
    drivers().into_iter().filter(|driver| *driver != DriverKind::Epoll).collect()
}

pub fn serve_echo(listener: TcpListener) -> net::Serving {
    listener
        .serve(|mut stream: TcpStream| async move {
            let mut buffer = [0; 256];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        })
        .unwrap()
}

pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
