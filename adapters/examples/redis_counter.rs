//! Counts in Redis from all workers. `cargo run -p lull-adapters --example redis_counter`
//!
//! It starts a Redis server if one is installed (Debian: `redis-server`).

#[path = "../tests/servers/mod.rs"]
mod servers;

use std::error::Error;
use std::net::SocketAddr;

use adapters::SendIo;
use net::TcpStream;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, RedisConnectionInfo};

/// A connection for the calling worker. Its clones send at the same time.
async fn connect(address: SocketAddr) -> Result<MultiplexedConnection, Box<dyn Error + Send + Sync>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (settings, config) = (RedisConnectionInfo::default(), AsyncConnectionConfig::new());
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&settings, SendIo::new(stream), config).await?;
    runtime::spawn(driver);
    Ok(connection)
}

#[runtime::main(workers = 2)]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let Some(server) = servers::redis()? else {
        println!("skipped: redis-server is not installed");
        return Ok(());
    };
    let address = server.address;
    let count = move || async move {
        let mut connection = connect(address).await.map_err(|error| error.to_string())?;
        for _ in 0..100 {
            let _: u64 = connection.incr("counter", 1).await.map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(())
    };
    let workers: Vec<_> = (0..runtime::workers()).map(|worker| runtime::spawn_on(worker, count)).collect();
    for worker in workers {
        worker.await.map_err(|error| error.to_string())??;
    }
    let total: u64 = connect(address).await?.get("counter").await?;
    println!("{} workers have counted to {total}", runtime::workers());
    Ok(())
}
