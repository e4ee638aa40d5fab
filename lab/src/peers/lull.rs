//! The echo server on Lull.

use std::io;
use std::net::TcpListener as StdListener;

use futures_util::{AsyncBufReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use runtime::{Builder, DriverKind};

use super::request_shape::{RequestCounter, RequestShape};

pub(super) fn serve(listener: StdListener, shape: RequestShape, driver: DriverKind) -> io::Result<()> {
    let runtime = Builder::new().ignore_environment().workers(1).driver(driver).build();
    runtime.map_err(io::Error::other)?.block_on(async {
        let serving = TcpListener::from_std(listener)?.serve(move |mut stream: TcpStream| async move {
            // Fails only if the connection has been closed.
            let _ = stream.set_nodelay(true);
            let mut requests = RequestCounter::new(shape);
            while let Ok(length @ 1..) = stream.fill_buf().await.map(<[u8]>::len) {
                stream.consume_unpin(length);
                if stream.write_all(requests.replies(length)).await.is_err() {
                    break;
                }
            }
        })?;
        std::future::pending::<()>().await;
        drop(serving);
        Ok(())
    })
}
