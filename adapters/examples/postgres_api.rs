//! A small JSON API with axum, PostgreSQL and a pool of connections.
//! `cargo run -p lull-adapters --example postgres_api`
//!
//! It starts a PostgreSQL server if one is installed (Debian: `postgresql`), and sends itself
//! requests.

#[path = "../tests/servers/mod.rs"]
mod servers;

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::SocketAddr;

use adapters::postgres::Pool;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use net::TcpListener;
use serde::{Deserialize, Serialize};
use tokio_postgres::Config;

#[derive(Serialize, Deserialize)]
struct Note {
    text: String,
}

async fn add(State(database): State<Pool>, Json(note): Json<Note>) -> Result<String, (StatusCode, String)> {
    let database = database.get().await.map_err(failed)?;
    let insert = "insert into notes (text) values ($1) returning id";
    let insert = database.prepare_cached(insert).await.map_err(failed)?;
    let row = database.query_one(&insert, &[&note.text]).await.map_err(failed)?;
    Ok(row.get::<_, i32>(0).to_string())
}

async fn read(State(database): State<Pool>, Path(id): Path<i32>) -> Result<Json<Note>, (StatusCode, String)> {
    let database = database.get().await.map_err(failed)?;
    let select = database.prepare_cached("select text from notes where id = $1").await.map_err(failed)?;
    let found = database.query_opt(&select, &[&id]).await.map_err(failed)?;
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
    let mut config = Config::new();
    config.user("postgres").dbname("postgres");
    config.host(postgres.address.ip().to_string()).port(postgres.address.port());
    let database = Pool::builder(config).max_size(3).build();
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
