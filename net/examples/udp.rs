//! Datagrams: a server with one socket of a reuseport group on each worker, and a client.

use net::UdpSocket;

#[runtime::main(workers = 2)]
async fn main() -> std::io::Result<()> {
    let sockets = UdpSocket::bind_group(([127, 0, 0, 1], 0).into(), runtime::workers())?;
    let address = sockets[0].local_addr()?;
    for (worker, socket) in sockets.into_iter().enumerate() {
        drop(runtime::spawn_on(worker, move || async move { echo(UdpSocket::from_std(socket)?).await }));
    }

    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.send_to(b"hello", address).await?;
    let mut buffer = [0; 64];
    let (length, sender) = client.recv_from(&mut buffer).await?;
    println!("{sender} answered {:?}", String::from_utf8_lossy(&buffer[..length]));
    Ok(())
}

async fn echo(socket: UdpSocket) -> std::io::Result<()> {
    let mut buffer = [0; 2048];
    loop {
        let (length, sender) = socket.recv_from(&mut buffer).await?;
        socket.send_to(&buffer[..length], sender).await?;
    }
}
