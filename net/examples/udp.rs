//! Datagrams: a server with a socket on each worker, and a client.

use net::UdpSocket;

#[runtime::main(workers = 2)]
async fn main() -> std::io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let address = socket.local_addr()?;
    let serving = socket.serve(echo)?;

    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.send_to(b"hello", address).await?;
    let mut buffer = [0; 64];
    let (length, sender) = client.recv_from(&mut buffer).await?;
    println!("{sender} answered {:?}", String::from_utf8_lossy(&buffer[..length]));
    serving.stop().await;
    Ok(())
}

async fn echo(socket: UdpSocket) {
    let mut buffer = [0; 2048];
    loop {
        // An error belongs to an earlier answer, whose client has gone.
        if let Ok((length, sender)) = socket.recv_from(&mut buffer).await {
            let _ = socket.send_to(&buffer[..length], sender).await;
        }
    }
}
