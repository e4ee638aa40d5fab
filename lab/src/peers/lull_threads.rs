//! The echo server with a thread for each connection, on Lull's dispatcher.

use std::io::{self, BufRead, Write};
use std::net::TcpListener as StdListener;

use dispatcher::BlockingStream;
use net::{TcpListener, TcpStream};

use super::echo_server_spec::EchoServerSpec;
use super::lull::{builder, report};
use super::request_shape::{RequestCounter, RequestShape};

pub(super) fn serve(
    listener: StdListener,
    spec: &EchoServerSpec,
    ready: impl FnOnce(String, Vec<String>) -> io::Result<()>,
) -> io::Result<()> {
    let shape = spec.shape;
    builder(spec).build().map_err(io::Error::other)?.block_on(async {
        let dispatcher = dispatcher::Builder::new().max_threads(20_000).build();
        let serving = TcpListener::from_std(listener)?.serve(move |stream: TcpStream| {
            let running = dispatcher.run(stream, move |stream| drop(echo(stream, shape)));
            async move {
                if let Err(error) = running.await {
                    eprintln!("lab: a connection was closed without a thread: {error}");
                }
            }
        })?;
        report(ready)?;
        std::future::pending::<()>().await;
        drop(serving);
        Ok(())
    })
}

fn echo(mut stream: BlockingStream, shape: RequestShape) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut requests = RequestCounter::new(shape);
    loop {
        let length = stream.fill_buf()?.len();
        if length == 0 {
            return Ok(());
        }
        stream.consume(length);
        stream.write_all(requests.replies(length))?;
    }
}
