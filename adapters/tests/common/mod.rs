//! Helpers of the tests over loopback.
#![allow(dead_code, reason = "each test binary uses its part of this")]

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

/// Returns `found`, or prints that the test is skipped for lack of `what`. With `LULL_REQUIRE_ALL` set it panics
/// instead.
pub fn require<T>(what: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        let all = std::env::var_os("LULL_REQUIRE_ALL").is_some_and(|value| !value.is_empty());
        assert!(!all, "LULL_REQUIRE_ALL is set, and this is missing: {what}");
        eprintln!("skipped: missing {what}");
    }
    found
}
