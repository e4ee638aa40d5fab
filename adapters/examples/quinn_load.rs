//! Requests of 1 KiB on many connections, and a download, by quinn on Lull or on tokio; prints the
//! CPU time that each takes.
//!
//! ```sh
//! cargo build --release -p lull-adapters --example quinn_load
//! taskset -c 0 target/release/examples/quinn_load server --runtime lull --workers 1 &   # prints address and certificate
//! taskset -c 1 target/release/examples/quinn_load client ADDRESS CERTIFICATE --requests 200000 --mebibytes 1024
//! ```
//!
//! The client is always quinn's on tokio. Without arguments both servers are measured, briefly.

use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adapters::tls::{Acceptor, Certificates, Connector};
use quinn::{Connection, Endpoint, Incoming, RecvStream, SendStream, ServerConfig};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const PART: usize = 64 << 10;

/// A request is the length of its answer, and 1 KiB less 8 bytes more. The length 0 asks for the
/// CPU time of the server so far.
async fn answer(mut send: SendStream, mut receive: RecvStream) -> Result<()> {
    let request = receive.read_to_end(1024).await?;
    let length = u64::from_be_bytes(*request.first_chunk().ok_or("a request is too short")?);
    if length == 0 {
        send.write_all(&cpu_time().as_nanos().to_be_bytes()).await?;
    }
    let part = bytes::Bytes::from_static(&[7; PART]);
    let mut left = length as usize;
    while left > 0 {
        let next = left.min(PART);
        send.write_chunk(part.slice(..next)).await?;
        left -= next;
    }
    Ok(send.finish()?)
}

/// Streams are answered one after the other, as in all but the download there is one at a time.
async fn serve_connection(incoming: Incoming) {
    let Ok(connection) = incoming.await else { return };
    while let Ok((send, receive)) = connection.accept_bi().await {
        let _ = answer(send, receive).await;
    }
}

/// The time of all threads of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn serve_on_lull(config: ServerConfig, workers: usize, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    runtime::Builder::new().workers(workers).build()?.block_on(async {
        let server = adapters::quinn::serve(config, ([127, 0, 0, 1], 0).into(), serve_connection)?;
        ready(server.local_addr()?);
        std::future::pending().await
    })
}

fn serve_on_tokio(config: ServerConfig, workers: usize, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let mut builder = match workers {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(workers).enable_all().build()?.block_on(async {
        let endpoint = Endpoint::server(config, ([127, 0, 0, 1], 0).into())?;
        ready(endpoint.local_addr()?);
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(serve_connection(incoming));
        }
        Ok(())
    })
}

async fn request(connection: &Connection, length: u64) -> Result<(u64, [u8; 16])> {
    let (mut send, mut receive) = connection.open_bi().await?;
    let mut message = [0; 1024];
    message[..8].copy_from_slice(&length.to_be_bytes());
    send.write_all(&message).await?;
    send.finish()?;
    let (mut received, mut first) = (0, [0; 16]);
    while let Some(part) = receive.read_chunk(usize::MAX, true).await? {
        if let Some(start) = part.bytes.first_chunk() {
            first = *start;
        }
        received += part.bytes.len() as u64;
    }
    Ok((received, first))
}

async fn servers_time(connection: &Connection) -> Result<Duration> {
    let (_, nanoseconds) = request(connection, 0).await?;
    Ok(Duration::from_nanos(u128::from_be_bytes(nanoseconds) as u64))
}

struct Load {
    connections: usize,
    requests: usize,
    mebibytes: u64,
}

async fn load(server: SocketAddr, certificate: &Path, load: &Load) -> Result<()> {
    let connector = Connector::builder().authorities(certificate).open()?;
    let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into())?;
    endpoint.set_default_client_config(connector.quic(["load"])?);
    let mut connections = Vec::new();
    for _ in 0..load.connections {
        connections.push(Arc::new(endpoint.connect(server, "localhost")?.await?));
    }
    let each = load.requests / load.connections;
    let (started, cpu) = (Instant::now(), servers_time(&connections[0]).await?);
    let clients: Vec<_> = connections
        .iter()
        .map(|connection| {
            let connection = Arc::clone(connection);
            tokio::spawn(async move {
                for _ in 0..each {
                    assert_eq!(request(&connection, 1024).await?.0, 1024);
                }
                Result::Ok(())
            })
        })
        .collect();
    for client in clients {
        client.await??;
    }
    let cpu = servers_time(&connections[0]).await? - cpu;
    let requests = (each * load.connections) as f64;
    println!(
        "{requests} requests of 1 KiB on {} connections: {:.0} a second, server's CPU {:.2} µs a request",
        load.connections,
        requests / started.elapsed().as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / requests
    );
    let (started, cpu) = (Instant::now(), servers_time(&connections[0]).await?);
    let (received, _) = request(&connections[0], load.mebibytes << 20).await?;
    assert_eq!(received, load.mebibytes << 20);
    let took = started.elapsed();
    let cpu = servers_time(&connections[0]).await? - cpu;
    println!(
        "a download of {} MiB: {:.0} MiB a second, server's CPU {:.3} ms a MiB",
        load.mebibytes,
        load.mebibytes as f64 / took.as_secs_f64(),
        cpu.as_secs_f64() * 1e3 / load.mebibytes as f64
    );
    for connection in connections {
        connection.close(0_u32.into(), b"");
    }
    endpoint.wait_idle().await;
    Ok(())
}

fn run_client(server: SocketAddr, certificate: &Path, what: &Load) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(load(server, certificate, what))
}

fn run_server(
    name: &str,
    folder: &Path,
    workers: usize,
    ready: impl FnOnce(SocketAddr, PathBuf),
) -> Result<()> {
    let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    std::fs::write(&chain, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let config = Acceptor::builder(Certificates::new(&chain, &key)).open()?.quic(["load"])?;
    let ready = |address| ready(address, chain);
    match name {
        "lull" => serve_on_lull(config, workers, ready),
        "tokio" => serve_on_tokio(config, workers, ready),
        _ => Err(format!("--runtime {name}: lull and tokio are there").into()),
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let number = |flag, default: &str| value(flag).unwrap_or(default).parse::<usize>();
    let load = |requests, mebibytes| {
        Result::Ok(Load {
            connections: number("--connections", "64")?.max(1),
            requests: number("--requests", requests)?,
            mebibytes: number("--mebibytes", mebibytes)? as u64,
        })
    };
    let folder = tempfile::tempdir()?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", ..] => {
            let workers = number("--workers", "1")?.max(1);
            run_server(value("--runtime").unwrap_or("lull"), folder.path(), workers, |address, chain| {
                println!("{address} {}", chain.display());
            })
        }
        ["client", server, certificate, ..] => {
            run_client(server.parse()?, Path::new(certificate), &load("200000", "1024")?)
        }
        [] => {
            // The servers never end: their threads end with the process. Their CPU time is that of
            // both sides here.
            for name in ["lull", "tokio"] {
                let folder = folder.path().to_owned();
                let (sender, receiver) = std::sync::mpsc::channel();
                std::thread::spawn(move || {
                    let ready = |address, chain| drop(sender.send((address, chain)));
                    if let Err(error) = run_server(name, &folder, 1, ready) {
                        eprintln!("{name}: {error}");
                    }
                });
                let (address, chain) = receiver.recv()?;
                println!("{name}:");
                run_client(address, &chain, &load("640", "8")?)?;
            }
            Ok(())
        }
        _ => Err(
            "expected `server [--runtime NAME] [--workers N]`, `client ADDRESS CERTIFICATE …`, or nothing"
                .into(),
        ),
    }
}
