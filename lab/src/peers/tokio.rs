//! The echo server on tokio's `current_thread` runtime.

use std::io;
use std::net::TcpListener as StdListener;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

use super::request_shape::{READ_BUFFER, RequestCounter, RequestShape};

pub(super) fn serve(listener: StdListener, shape: RequestShape) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    listener.set_nonblocking(true)?;
    runtime.block_on(LocalSet::new().run_until(async move {
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            spawn_local(async move {
                let _ = stream.set_nodelay(true);
                let mut requests = RequestCounter::new(shape);
                let mut buffer = [0; READ_BUFFER];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(requests.replies(length)).await.is_err() {
                        break;
                    }
                }
            });
        }
    }))
}
