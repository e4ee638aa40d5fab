//! Serves connections on the workers that own their NAPIs, and prints where they went.
//!
//! On loopback, where connections have no NAPI, they are spread evenly. As root on a network card,
//! with `RUNTIME_POLICY=kernel-polling` and `RUNTIME_INTERFACE=eth0`, the reports name each
//! worker's NAPI, and connections from another machine are counted as aligned.

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};

#[runtime::main(workers = 2)]
async fn main() -> std::io::Result<()> {
    for report in runtime::reports() {
        println!("{report}");
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let serving = listener.serve(|mut stream: TcpStream| async move {
        let worker = [runtime::current_worker() as u8];
        // Fails if the client is gone, and then nobody waits for it.
        let _ = stream.write_all(&worker).await;
        // Until the client closes.
        let _ = stream.read(&mut [0]).await;
    })?;

    let mut clients = Vec::new();
    for number in 0..4 {
        let mut client = TcpStream::connect(address).await?;
        let mut worker = [0];
        client.read_exact(&mut worker).await?;
        println!("connection {number} is served by worker {}", worker[0]);
        clients.push(client);
    }
    let alignment = serving.alignment();
    println!(
        "{} connections: {} on the worker that polls their NAPI, {} on another one, {} without a NAPI",
        alignment.accepted, alignment.aligned, alignment.misaligned, alignment.without_napi
    );
    Ok(())
}
