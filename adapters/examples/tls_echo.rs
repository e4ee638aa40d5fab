//! An echo server and its client on TLS, with certificates that are made here.
//! `cargo run -p lull-adapters --example tls_echo`

use std::error::Error;

use adapters::tls::{Acceptor, Certificates, Connector};
use futures_util::io::copy_buf;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};

async fn echo(acceptor: Acceptor, stream: TcpStream) -> std::io::Result<()> {
    let stream = acceptor.accept(stream).await?;
    println!("a client asks for {:?}", stream.server_name());
    let (reader, mut writer) = stream.split();
    copy_buf(futures_util::io::BufReader::new(reader), &mut writer).await?;
    writer.close().await
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    std::fs::write(&chain, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;

    let acceptor = Acceptor::builder(Certificates::new(&chain, &key)).open()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let reloaded = acceptor.clone();
    let _serving = listener.serve(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            if let Err(error) = echo(acceptor, stream).await {
                println!("a connection has failed: {error}");
            }
        }
    })?;

    let connector = Connector::builder().authorities(&chain).open()?;
    for text in ["hello", "hello after a reload"] {
        let stream = TcpStream::connect(address).await?;
        let mut stream = connector.connect("localhost", stream).await?;
        stream.write_all(text.as_bytes()).await?;
        stream.close().await?;
        let mut echoed = String::new();
        stream.read_to_string(&mut echoed).await?;
        println!("the server echoed {echoed:?}");
        // As on SIGHUP, after the files were renewed.
        reloaded.reload()?;
    }
    Ok(())
}
