//! The echo server on tokio's current_thread runtime.

use std::io;
use std::net::TcpListener as StdListener;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

use super::{READ, Requests, Shape};

pub(super) fn serve(listener: StdListener, shape: Shape) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    listener.set_nonblocking(true)?;
    runtime.block_on(LocalSet::new().run_until(async move {
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            spawn_local(async move {
                let _ = stream.set_nodelay(true);
                let mut requests = Requests::new(shape);
                let mut buffer = [0; READ];
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(requests.answers(length)).await.is_err() {
                        break;
                    }
                }
            });
        }
    }))
}
