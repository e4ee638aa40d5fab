//! An echo server and its client on QUIC, with a certificate that is made here. The client's port
//! changes on the way. `cargo run -p lull-adapters --example quinn_echo`

use std::error::Error;
use std::time::Duration;

use adapters::quinn::{client, serve};
use adapters::tls::{Acceptor, Certificates, Connector};
use quinn::{Connection, Incoming};

async fn echo(incoming: Incoming) -> Result<(), Box<dyn Error>> {
    let connection = incoming.await?;
    println!("{} is served on worker {}", connection.remote_address(), runtime::current_worker());
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        let message = receive.read_to_end(1 << 20).await?;
        send.write_all(&message).await?;
        send.finish()?;
    }
    Ok(())
}

async fn request(connection: &Connection, message: &str) -> Result<String, Box<dyn Error>> {
    let (mut send, mut receive) = connection.open_bi().await?;
    send.write_all(message.as_bytes()).await?;
    send.finish()?;
    Ok(String::from_utf8(receive.read_to_end(1 << 20).await?)?)
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    std::fs::write(&chain, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;

    let acceptor = Acceptor::builder(Certificates::new(&chain, &key)).open()?;
    let server = serve(acceptor.quic(["echo"])?, "127.0.0.1:0".parse()?, async |incoming| {
        if let Err(error) = echo(incoming).await {
            println!("a connection has failed: {error}");
        }
    })?;

    let connector = Connector::builder().authorities(&chain).open()?;
    let mut endpoint = client("127.0.0.1:0".parse()?)?;
    endpoint.set_default_client_config(connector.quic(["echo"])?);
    let connection = endpoint.connect(server.local_addr()?, "localhost")?.await?;
    for number in 0..4 {
        println!("the server echoed {:?}", request(&connection, &format!("message {number}")).await?);
        // As where a telephone leaves a wireless network.
        endpoint.rebind(std::net::UdpSocket::bind("127.0.0.1:0")?)?;
    }
    connection.close(0_u32.into(), b"");
    server.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
