//! A small JSON API with axum and PostgreSQL. `cargo run -p lull-adapters --example postgres_api`
//!
//! It starts a PostgreSQL server if one is installed (Debian: `postgresql`), and sends itself requests.

#[path = "../tests/servers/mod.rs"]
mod servers;

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use adapters::Io;
use adapters::hyper::Client;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use net::{TcpListener, TcpStream};
use serde::{Deserialize, Serialize};
use tokio_postgres::{Config, NoTls};

#[derive(Serialize, Deserialize)]
struct Note {
    text: String,
}

/// The connection's task is worker 0's; clients of all workers share it, and their queries are pipelined.
type Database = Arc<tokio_postgres::Client>;

async fn add(
    State(database): State<Database>,
    Json(note): Json<Note>,
) -> Result<String, (StatusCode, String)> {
    let insert = "insert into notes (text) values ($1) returning id";
    let row = database.query_one(insert, &[&note.text]).await.map_err(failed)?;
    Ok(row.get::<_, i32>(0).to_string())
}

async fn read(
    State(database): State<Database>,
    Path(id): Path<i32>,
) -> Result<Json<Note>, (StatusCode, String)> {
    let found = database.query_opt("select text from notes where id = $1", &[&id]).await.map_err(failed)?;
    let row = found.ok_or((StatusCode::NOT_FOUND, format!("there is no note {id}")))?;
    Ok(Json(Note { text: row.get(0) }))
}

fn failed(error: tokio_postgres::Error) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn connect(address: SocketAddr) -> Result<Database, Box<dyn Error>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut config = Config::new();
    config.user("postgres").dbname("postgres");
    let (client, connection) = config.connect_raw(Io::new(stream), NoTls).await?;
    drop(runtime::spawn(async {
        if let Err(error) = connection.await {
            eprintln!("the connection to the database has failed: {error}");
        }
    }));
    Ok(Arc::new(client))
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(postgres) = servers::postgres()? else {
        println!("skipped: PostgreSQL's server is not installed");
        return Ok(());
    };
    let database = connect(postgres.address).await?;
    database.batch_execute("create table notes (id serial primary key, text text not null)").await?;

    let app = Router::new().route("/notes", post(add)).route("/notes/{id}", get(read)).with_state(database);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = adapters::axum::serve(listener, app).start()?;

    let client = Client::<Full<Bytes>>::new();
    let request = Request::post(format!("http://{address}/notes")).header("content-type", "application/json");
    let response = client.get().request(request.body(Full::from(r#"{"text":"hello"}"#))?).await?;
    let id = String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?;
    for id in [&*id, "1000"] {
        let response = client.get().get(format!("http://{address}/notes/{id}").parse()?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        println!("note {id}: {status}: {}", String::from_utf8_lossy(&body));
    }
    server.shutdown(std::time::Duration::from_secs(1)).await;
    Ok(())
}
