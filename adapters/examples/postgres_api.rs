//! A small JSON API with axum, PostgreSQL and a pool of deadpool's.
//! `cargo run -p lull-adapters --example postgres_api`
//!
//! It starts a PostgreSQL server if one is installed (Debian: `postgresql`), and sends itself
//! requests.

#[path = "../tests/servers/mod.rs"]
mod servers;

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::SocketAddr;

use adapters::Io;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use deadpool::managed::{Manager, Metrics, Pool, RecycleError, RecycleResult};
use net::{TcpListener, TcpStream};
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Config, NoTls};

#[derive(Serialize, Deserialize)]
struct Note {
    text: String,
}

/// Connections that requests of all workers take turns with.
type Database = Pool<Connector>;

/// Opens them, by tasks of the runtime's workers: a pool wants a future that is `Send`, which a
/// socket's is not.
struct Connector {
    address: SocketAddr,
    runtime: runtime::Handle,
}

impl Manager for Connector {
    type Type = Client;
    type Error = io::Error;

    async fn create(&self) -> io::Result<Client> {
        let address = self.address;
        let opened = self.runtime.spawn_on(0, move || async move {
            let stream = Io::new(TcpStream::connect(address).await?);
            let mut config = Config::new();
            config.user("postgres").dbname("postgres");
            let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(io::Error::other)?;
            runtime::spawn(connection);
            Ok(client)
        });
        opened.await.map_err(io::Error::other)?
    }

    async fn recycle(&self, client: &mut Client, _: &Metrics) -> RecycleResult<io::Error> {
        match client.is_closed() {
            true => Err(RecycleError::message("the connection has ended")),
            false => Ok(()),
        }
    }
}

async fn add(
    State(database): State<Database>,
    Json(note): Json<Note>,
) -> Result<String, (StatusCode, String)> {
    let database = database.get().await.map_err(failed)?;
    let insert = "insert into notes (text) values ($1) returning id";
    let row = database.query_one(insert, &[&note.text]).await.map_err(failed)?;
    Ok(row.get::<_, i32>(0).to_string())
}

async fn read(
    State(database): State<Database>,
    Path(id): Path<i32>,
) -> Result<Json<Note>, (StatusCode, String)> {
    let database = database.get().await.map_err(failed)?;
    let found = database.query_opt("select text from notes where id = $1", &[&id]).await.map_err(failed)?;
    let row = found.ok_or((StatusCode::NOT_FOUND, format!("there is no note {id}")))?;
    Ok(Json(Note { text: row.get(0) }))
}

fn failed(error: impl Error) -> (StatusCode, String) {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Some(postgres) = servers::postgres()? else {
        println!("skipped: PostgreSQL's server is not installed");
        return Ok(());
    };
    let connector = Connector { address: postgres.address, runtime: runtime::Handle::current() };
    let database = Database::builder(connector).max_size(3).build()?;
    let create = "create table notes (id serial primary key, text text not null)";
    database.get().await?.batch_execute(create).await?;

    let app = Router::new().route("/notes", post(add)).route("/notes/{id}", get(read)).with_state(database);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    runtime::spawn(adapters::axum::serve(listener, app).into_future());
    let asked = runtime::spawn_blocking(move || {
        let note = r#"{"text":"hello"}"#;
        let head = "content-type: application/json\r\ncontent-length: 16";
        let id =
            ask(address, &format!("POST /notes HTTP/1.1\r\n{head}\r\nconnection: close\r\n\r\n{note}"))?.1;
        let read = |id| ask(address, &format!("GET /notes/{id} HTTP/1.1\r\nconnection: close\r\n\r\n"));
        io::Result::Ok([read(&*id)?, read("1000")?])
    });
    for (status, body) in asked.await?? {
        println!("{status}: {body}");
    }
    Ok(())
}

/// The status line and the body.
fn ask(address: SocketAddr, request: &str) -> io::Result<(String, String)> {
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
}
