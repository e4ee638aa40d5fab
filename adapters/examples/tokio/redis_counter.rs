//! Counts in Redis from all workers. `cargo run --bin redis_counter`
//!
//! It starts a Redis server if one is installed (Debian: `redis-server`).

#[path = "../../tests/servers/mod.rs"]
mod servers;

use std::error::Error;
use std::net::SocketAddr;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

/// A connection for the calling worker. Its clones send at the same time.
async fn connect(address: SocketAddr) -> Result<MultiplexedConnection, Box<dyn Error + Send + Sync>> {
    let client = redis::Client::open(format!("redis://{address}"))?;
    Ok(client.get_multiplexed_async_connection().await?)
}

#[tokio::main(worker_threads = 2)]
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
    let workers: Vec<_> = (0..2).map(|_| tokio::spawn(count())).collect();
    for worker in workers {
        worker.await.map_err(|error| error.to_string())??;
    }
    let total: u64 = connect(address).await?.get("counter").await?;
    println!("2 workers have counted to {total}");
    Ok(())
}
