//! Stops a server: it accepts no more, requests in progress are answered, and the rest is dropped
//! at a deadline.

use std::time::Duration;

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};

#[runtime::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let serving = listener.serve(|mut stream: TcpStream| async move {
        let mut request = String::new();
        while let Ok(1..) = stream.read_line(&mut request).await {
            if request == "never\n" {
                std::future::pending::<()>().await;
            }
            runtime::sleep(Duration::from_millis(100)).await;
            if stream.write_all(request.as_bytes()).await.is_err() {
                break;
            }
            request.clear();
        }
    })?;

    // One connection is idle, one has a request in progress, and one is never answered.
    let _idle = TcpStream::connect(address).await?;
    let mut busy = TcpStream::connect(address).await?;
    busy.write_all(b"request\n").await?;
    let mut hung = TcpStream::connect(address).await?;
    hung.write_all(b"never\n").await?;
    runtime::sleep(Duration::from_millis(50)).await;
    println!("{} connections are open", serving.connections());

    let report = serving.shutdown(Duration::from_millis(500)).await;
    println!("{} handlers finished, {} were dropped at the deadline", report.finished, report.aborted);
    let mut response = String::new();
    busy.read_to_string(&mut response).await?;
    println!("the request in progress was answered: {response:?}");
    let refused = TcpStream::connect(address).await.expect_err("nobody listens any more");
    println!("a new connection fails: {refused}");
    Ok(())
}
