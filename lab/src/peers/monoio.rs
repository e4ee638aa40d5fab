//! The echo server on monoio.

use std::io;
use std::net::TcpListener as StdListener;

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::TcpListener;
use monoio::{IoUringDriver, RuntimeBuilder};

use super::request_shape::{READ_BUFFER, RequestCounter, RequestShape};

pub(super) fn serve(listener: StdListener, shape: RequestShape) -> io::Result<()> {
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
