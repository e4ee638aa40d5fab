//! The echo server on monoio.

use std::io;
use std::net::TcpListener as StdListener;

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::TcpListener;
use monoio::{IoUringDriver, RuntimeBuilder};

use super::{READ, Requests, Shape};

pub(super) fn serve(listener: StdListener, shape: Shape) -> io::Result<()> {
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            monoio::spawn(async move {
                let _ = stream.set_nodelay(true);
                let mut requests = Requests::new(shape);
                let mut buffer = vec![0; READ];
                loop {
                    let read;
                    (read, buffer) = stream.read(buffer).await;
                    let Ok(length @ 1..) = read else { break };
                    if stream.write_all(requests.answers(length)).await.0.is_err() {
                        break;
                    }
                }
            });
        }
    })
}
