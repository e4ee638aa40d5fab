//! The echo server on compio.

use std::io;
use std::net::TcpListener as StdListener;

use compio::BufResult;
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::TcpListener;

use super::request_shape::{READ_BUFFER, RequestCounter, RequestShape};

pub(super) fn serve(listener: StdListener, shape: RequestShape) -> io::Result<()> {
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
