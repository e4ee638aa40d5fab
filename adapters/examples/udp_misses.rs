//! Answers every UDP request of memcached's protocol with a miss, on Lull or on tokio: what
//! `lab/services/compare.py` compares.
//!
//! `udp_misses tokio 198.18.0.1:11211`, or `lull`, whose policy, interface and driver come from the
//! environment (`RUNTIME_POLICY`, `RUNTIME_INTERFACE`, `RUNTIME_DRIVER`). Either serves on one
//! thread, on core 0.

use std::net::SocketAddr;

use runtime::policy::Cpus;

/// The bytes of a frame header, which is sent back.
const FRAME_HEADER: usize = 8;
const MISS: &[u8] = b"END\r\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let Some(on) = arguments.next() else { return miss_once() };
    let address = arguments.next().ok_or("usage: udp_misses [lull|tokio ADDRESS]")?;
    let address: SocketAddr = address.parse()?;
    match on.as_str() {
        "lull" => {
            let builder = runtime::Builder::new().workers(1).cores(Cpus::one(0));
            builder.build()?.block_on(async {
                let _serving = net::UdpSocket::bind(address)?.serve(on_lull)?;
                std::future::pending::<std::io::Result<()>>().await
            })?;
        }
        "tokio" => {
            Cpus::one(0).pin(None)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            runtime.block_on(async {
                on_tokio(tokio::net::UdpSocket::bind(address).await?).await;
                Ok::<(), std::io::Error>(())
            })?;
        }
        other => return Err(format!("{other} is neither lull nor tokio").into()),
    }
    Ok(())
}

/// Without arguments: one request over loopback.
fn miss_once() -> Result<(), Box<dyn std::error::Error>> {
    runtime::Builder::new().workers(1).build()?.block_on(async {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = net::UdpSocket::bind(any)?;
        let address = socket.local_addr()?;
        let _serving = socket.serve(on_lull)?;
        let client = net::UdpSocket::bind(any)?;
        client.send_to(&[0; FRAME_HEADER], address).await?;
        let mut buffer = [0; 64];
        let (length, _) = client.recv_from(&mut buffer).await?;
        println!("the reply is {:?}", String::from_utf8_lossy(&buffer[FRAME_HEADER..length]));
        Ok(())
    })
}

/// Serves with a socket of either runtime.
macro_rules! miss_on {
    ($name:ident, $socket:ty) => {
        async fn $name(socket: $socket) {
            let mut buffer = [0; 2048];
            loop {
                let Ok((FRAME_HEADER.., client)) = socket.recv_from(&mut buffer).await else { continue };
                let end = FRAME_HEADER + MISS.len();
                buffer[FRAME_HEADER..end].copy_from_slice(MISS);
                let _ = socket.send_to(&buffer[..end], client).await;
            }
        }
    };
}

miss_on!(on_lull, net::UdpSocket);
miss_on!(on_tokio, tokio::net::UdpSocket);
