//! Notes in SQLite, by sqlx, over HTTP. `cargo run -p lull-adapters --example sqlx_notes`
//!
//! For PostgreSQL take a `PgPool` instead of the `SqlitePool`.

use std::error::Error;
use std::time::Duration;

use adapters::hyper::Client;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use net::TcpListener;
use sqlx::sqlite::{SqlitePool, SqlitePoolOptions};

async fn write(
    State(pool): State<SqlitePool>,
    Path(id): Path<i64>,
    text: String,
) -> Result<StatusCode, (StatusCode, String)> {
    let insert = sqlx::query("insert into notes values ($1, $2)").bind(id).bind(text);
    insert.execute(&pool).await.map_err(failed)?;
    Ok(StatusCode::CREATED)
}

async fn read(State(pool): State<SqlitePool>, Path(id): Path<i64>) -> Result<String, (StatusCode, String)> {
    let select = sqlx::query_scalar("select text from notes where id = $1").bind(id);
    select.fetch_one(&pool).await.map_err(failed)
}

fn failed(error: sqlx::Error) -> (StatusCode, String) {
    let status = match &error {
        sqlx::Error::RowNotFound => StatusCode::NOT_FOUND,
        sqlx::Error::Database(error) if error.is_unique_violation() => StatusCode::CONFLICT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, error.to_string())
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Every connection to `:memory:` opens a new, empty database, so the pool has only one.
    let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    sqlx::query("create table notes (id integer primary key, text text not null)").execute(&pool).await?;

    let app = Router::new().route("/notes/{id}", get(read).put(write)).with_state(pool.clone());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let notes = format!("http://{}/notes", listener.local_addr()?);
    let server = adapters::axum::serve(listener, app).start()?;

    let client = Client::<Full<Bytes>>::new();
    for text in ["hello", "again"] {
        let request = Request::put(format!("{notes}/1")).body(Full::from(text))?;
        println!("write {text:?}: {}", client.get().request(request).await?.status());
    }
    for id in [1, 2] {
        let response = client.get().get(format!("{notes}/{id}").parse()?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        println!("read {id}: {status}: {}", String::from_utf8_lossy(&body));
    }
    server.shutdown(Duration::from_secs(1)).await;
    pool.close().await;
    Ok(())
}
