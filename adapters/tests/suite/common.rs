//! Helpers of the tests over loopback.

use futures_util::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use tonic::{Status, Streaming};

/// A listener on a free port of loopback.
pub fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Both ends of a connection.
pub async fn pair() -> (TcpStream, TcpStream) {
    let listener = listener();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (client, server)
}

/// Sends a request whose body is too large, and stops sending only when the response should be
/// there, which refuses it.
pub async fn send_too_large_a_body(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let head = "POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..5 {
        stream.write_all(&piece).await.unwrap();
        stream.flush().await.unwrap();
        runtime::sleep(std::time::Duration::from_millis(20)).await;
    }
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
}

/// Turns of the worker, in each of which it looks at its sockets: more than any exchange here
/// takes.
pub async fn settle() {
    for _ in 0..50 {
        runtime::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// The status that ends a stream of gRPC.
///
/// # Panics
/// If the stream ends without one, or not within 60 s.
pub async fn status_at_the_end<T>(messages: &mut Streaming<T>) -> Status {
    let end = async {
        loop {
            match messages.message().await {
                Ok(message) => assert!(message.is_some(), "it ends without a status"),
                Err(status) => return status,
            }
        }
    };
    runtime::timeout(std::time::Duration::from_secs(60), end).await.unwrap()
}
