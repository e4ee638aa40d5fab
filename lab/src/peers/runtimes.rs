//! The echo server on tokio's `current_thread` runtime, on monoio and on compio.

use std::io;
use std::net::TcpListener as StdListener;

use super::spec::{READ_BUFFER, RequestCounter, RequestShape};

pub(super) fn serve_on_tokio(listener: StdListener, shape: RequestShape) -> io::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::{LocalSet, spawn_local};

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

pub(super) fn serve_on_monoio(listener: StdListener, shape: RequestShape) -> io::Result<()> {
    use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
    use monoio::net::TcpListener;
    use monoio::{IoUringDriver, RuntimeBuilder};

    let mut runtime = RuntimeBuilder::<IoUringDriver>::new().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            monoio::spawn(async move {
                let _ = stream.set_nodelay(true);
                let mut requests = RequestCounter::new(shape);
                let mut buffer = vec![0; READ_BUFFER];
                loop {
                    let read;
                    (read, buffer) = stream.read(buffer).await;
                    let Ok(length @ 1..) = read else { break };
                    if stream.write_all(requests.replies(length)).await.0.is_err() {
                        break;
                    }
                }
            });
        }
    })
}

pub(super) fn serve_on_compio(listener: StdListener, shape: RequestShape) -> io::Result<()> {
    use compio::BufResult;
    use compio::io::{AsyncRead, AsyncWriteExt};
    use compio::net::TcpListener;

    compio::runtime::Runtime::new()?.block_on(async move {
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            compio::runtime::spawn(async move {
                let _ = socket2::SockRef::from(&stream).set_tcp_nodelay(true);
                let mut requests = RequestCounter::new(shape);
                let mut buffer = Vec::with_capacity(READ_BUFFER);
                loop {
                    let BufResult(read, used) = stream.read(buffer).await;
                    buffer = used;
                    let Ok(length @ 1..) = read else { break };
                    buffer.clear();
                    if stream.write_all(requests.replies(length)).await.0.is_err() {
                        break;
                    }
                }
            })
            .detach();
        }
    })
}
