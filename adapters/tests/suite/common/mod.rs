//! Helpers of the tests over loopback.

use net::{TcpListener, TcpStream};

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

/// Turns of the worker, in each of which it looks at its sockets: more than any exchange here takes.
pub async fn settle() {
    for _ in 0..50 {
        runtime::sleep(std::time::Duration::from_millis(1)).await;
    }
}
