//! An echo server, and a client that talks to it.

use futures_util::io::copy_buf;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};

#[runtime::main]
async fn main() -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let _serving = listener.serve(|stream: TcpStream| async move {
        let (reader, mut writer) = stream.into_split();
        // Fails if the client breaks the connection, which ends it anyway.
        let _ = copy_buf(reader, &mut writer).await;
    })?;
    println!("listening on {address}");

    let mut client = TcpStream::connect(address).await?;
    client.write_all(b"hello").await?;
    client.close().await?;
    let mut echoed = String::new();
    client.read_to_string(&mut echoed).await?;
    println!("the server echoed {echoed:?}");
    Ok(())
}
