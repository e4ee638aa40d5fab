//! Database clients on Lull's sockets, against real servers.

use std::net::SocketAddr;
use std::time::Duration;

use adapters::{Io, SendIo};
use net::TcpStream;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};

use crate::drivers::on_each_driver;

async fn connect_redis(address: SocketAddr) -> MultiplexedConnection {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let settings = redis::RedisConnectionInfo::default();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&settings, SendIo::new(stream), config).await.unwrap();
    drop(runtime::spawn(driver));
    connection
}

#[test]
fn a_multiplexed_connection_of_redis_answers_each_its_own_and_loses_nothing_to_those_who_give_up() {
    let Some(server) = requirements::require("program redis-server", crate::servers::redis().unwrap()) else {
        return;
    };
    on_each_driver(1, async || {
        let connection = connect_redis(server.address).await;
        let keys = (0..200_u64).map(|number| {
            let mut connection = connection.clone();
            async move {
                let key = format!("key {number}");
                let limit = Duration::from_micros(number * 53 % 2000);
                let asked = async {
                    let _: () = connection.set(&key, number).await.unwrap();
                    connection.get::<_, u64>(&key).await.unwrap()
                };
                match number % 2 {
                    0 => Some((number, asked.await)),
                    _ => runtime::timeout(limit, asked).await.ok().map(|value| (number, value)),
                }
            }
        });
        let answers = futures_util::future::join_all(keys).await;
        assert!(answers.iter().flatten().count() >= 100);
        assert!(answers.iter().flatten().all(|(number, value)| number == value));
        // Larger than any buffer on the way.
        let large = vec![b'x'; 3 << 20];
        let mut connection = connection;
        let _: () = connection.set("large", &large).await.unwrap();
        assert!(connection.get::<_, Vec<u8>>("large").await.unwrap() == large);
    });
}

#[cfg(feature = "tokio-context")]
#[test]
fn a_connection_manager_of_redis_connects_again_on_tokios_thread_after_a_restart() {
    let Some(server) = requirements::require("program redis-server", crate::servers::redis().unwrap()) else {
        return;
    };
    let (address, server) = (server.address, std::sync::Mutex::new(server));
    on_each_driver(1, async || {
        adapters::tokio_context::enter().unwrap();
        let client = redis::Client::open(format!("redis://{address}")).unwrap();
        // By default an answer may take half a second.
        let config = redis::aio::ConnectionManagerConfig::new()
            .set_response_timeout(Some(Duration::from_secs(60)))
            .set_connection_timeout(Some(Duration::from_secs(60)));
        let mut manager = redis::aio::ConnectionManager::new_with_config(client, config).await.unwrap();
        let _: () = manager.set("key", 7).await.unwrap();
        server.lock().unwrap().stop().unwrap();
        manager.get::<_, Option<u32>>("key").await.expect_err("nobody is there");
        server.lock().unwrap().start_again().unwrap();
        let again = async {
            while manager.set::<_, _, ()>("key", 8).await.is_err() {
                runtime::sleep(Duration::from_millis(10)).await;
            }
        };
        runtime::timeout(Duration::from_secs(60), again).await.unwrap();
        assert_eq!(manager.get::<_, u32>("key").await.unwrap(), 8);
    });
}

#[test]
fn tokio_postgres_queries_and_pipelines_and_reports_errors() {
    let Some(server) = requirements::require("PostgreSQL's server", crate::servers::postgres().unwrap())
    else {
        return;
    };
    on_each_driver(1, async || {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let mut config = tokio_postgres::Config::new();
        config.user("postgres").dbname("postgres");
        let (client, connection) = config.connect_raw(Io::new(stream), tokio_postgres::NoTls).await.unwrap();
        let driver = runtime::spawn(connection);
        client.batch_execute("create temporary table notes (id int primary key, text text)").await.unwrap();
        let insert = client.prepare("insert into notes values ($1, $2)").await.unwrap();
        // In one batch: each is sent before the one before it is answered.
        let inserts = (0..100_i32).map(|id| {
            let (client, insert) = (&client, &insert);
            async move { client.execute(insert, &[&id, &format!("note {id}")]).await.unwrap() }
        });
        assert_eq!(futures_util::future::join_all(inserts).await.iter().sum::<u64>(), 100);
        let rows = client.query("select text from notes where id >= $1 order by id", &[&97]).await.unwrap();
        let texts: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(texts, ["note 97", "note 98", "note 99"]);
        let error = client.execute(&insert, &[&5, &"again".to_owned()]).await.unwrap_err();
        assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION));
        // A query that is given up doesn't confuse the next.
        let slow = client.query("select pg_sleep(0.2)", &[]);
        let _ = runtime::timeout(Duration::from_millis(20), slow).await;
        assert_eq!(client.query_one("select 7", &[]).await.unwrap().get::<_, i32>(0), 7);
        drop(client);
        driver.await.unwrap().unwrap();
    });
}

/// Opens connections for a pool. Pools want a future that is `Send`: the work is a task's of
/// `worker`.
#[derive(Debug)]
struct Connector {
    address: SocketAddr,
    handle: runtime::Handle,
    worker: usize,
}

impl Connector {
    fn new(address: SocketAddr) -> Self {
        Self { address, handle: runtime::Handle::current(), worker: runtime::current_worker() }
    }

    async fn open(&self) -> std::io::Result<tokio_postgres::Client> {
        let address = self.address;
        let opening = self.handle.spawn_on(self.worker, move || async move {
            let stream = TcpStream::connect(address).await?;
            let mut config = tokio_postgres::Config::new();
            config.user("postgres").dbname("postgres");
            let connected = config.connect_raw(Io::new(stream), tokio_postgres::NoTls).await;
            let (client, connection) = connected.map_err(std::io::Error::other)?;
            drop(runtime::spawn(connection));
            Ok(client)
        });
        opening.await.map_err(std::io::Error::other)?
    }
}

impl deadpool::managed::Manager for Connector {
    type Type = tokio_postgres::Client;
    type Error = std::io::Error;

    async fn create(&self) -> std::io::Result<tokio_postgres::Client> {
        self.open().await
    }

    async fn recycle(
        &self,
        client: &mut tokio_postgres::Client,
        _: &deadpool::managed::Metrics,
    ) -> deadpool::managed::RecycleResult<std::io::Error> {
        match client.is_closed() {
            true => Err(deadpool::managed::RecycleError::message("the connection has ended")),
            false => Ok(()),
        }
    }
}

impl bb8::ManageConnection for Connector {
    type Connection = tokio_postgres::Client;
    type Error = std::io::Error;

    async fn connect(&self) -> std::io::Result<tokio_postgres::Client> {
        self.open().await
    }

    async fn is_valid(&self, client: &mut tokio_postgres::Client) -> std::io::Result<()> {
        client.simple_query("").await.map(drop).map_err(std::io::Error::other)
    }

    fn has_broken(&self, client: &mut tokio_postgres::Client) -> bool {
        client.is_closed()
    }
}

/// Twenty tasks query by a pool of three connections, at most three at a time; returns how many
/// connections have queried. One that the server ends is replaced.
macro_rules! clients_are_shared {
    ($pool:expr) => {{
        let pool = $pool;
        let queries: Vec<_> = (0..20_i32)
            .map(|number| {
                let pool = pool.clone();
                runtime::spawn(async move {
                    let client = pool.get().await.unwrap();
                    let query = "select $1::int, pg_backend_pid() from pg_sleep(0.01)";
                    let row = client.query_one(query, &[&number]).await.unwrap();
                    (row.get::<_, i32>(0), row.get::<_, i32>(1))
                })
            })
            .collect();
        let mut processes = std::collections::BTreeSet::new();
        for (number, query) in (0..).zip(queries) {
            let (answer, process) = query.await.unwrap();
            assert_eq!(answer, number);
            processes.insert(process);
        }
        assert!((1..=3).contains(&processes.len()), "{processes:?}");
        let client = pool.get().await.unwrap();
        client.query_one("select pg_terminate_backend(pg_backend_pid())", &[]).await.unwrap_err();
        drop(client);
        let client = pool.get().await.unwrap();
        assert_eq!(client.query_one("select 7", &[]).await.unwrap().get::<_, i32>(0), 7);
    }};
}

#[test]
fn pools_of_deadpool_and_bb8_share_connections_of_tokio_postgres() {
    let Some(server) = requirements::require("PostgreSQL's server", crate::servers::postgres().unwrap())
    else {
        return;
    };
    on_each_driver(1, async || {
        let deadpool: deadpool::managed::Pool<Connector> =
            deadpool::managed::Pool::builder(Connector::new(server.address)).max_size(3).build().unwrap();
        clients_are_shared!(deadpool);
        // Its timers and tasks are tokio's.
        #[cfg(feature = "tokio-context")]
        {
            adapters::tokio_context::enter().unwrap();
            let bb8 = bb8::Pool::builder().max_size(3).build(Connector::new(server.address)).await;
            clients_are_shared!(bb8.unwrap());
        }
    });
}

/// What a pool of sqlx's does: its queries run on several connections at once, an error leaves a
/// connection usable, and a query that is given up doesn't confuse the next.
macro_rules! pool_works {
    ($pool:expr, $slow:literal) => {{
        let pool = $pool;
        sqlx::query("create table if not exists notes (id int primary key, text text)")
            .execute(&pool)
            .await
            .unwrap();
        sqlx::query("delete from notes").execute(&pool).await.unwrap();
        let inserts = (0..100_i32).map(|id| {
            let insert = sqlx::query("insert into notes values ($1, $2)").bind(id).bind(format!("note {id}"));
            let pool = pool.clone();
            runtime::spawn(async move { insert.execute(&pool).await.unwrap().rows_affected() })
        });
        let inserts: Vec<_> = inserts.collect();
        let mut rows = 0;
        for insert in inserts {
            rows += insert.await.unwrap();
        }
        assert_eq!(rows, 100);
        let text =
            sqlx::query_scalar::<_, String>("select text from notes where id >= $1 order by id").bind(97);
        assert_eq!(text.fetch_all(&pool).await.unwrap(), ["note 97", "note 98", "note 99"]);
        let again = sqlx::query("insert into notes values (5, 'again')").execute(&pool).await.unwrap_err();
        assert!(again.as_database_error().unwrap().is_unique_violation());
        for _ in 0..10 {
            let slow = sqlx::query_scalar::<_, i64>($slow);
            let _ = runtime::timeout(Duration::from_millis(2), slow.fetch_one(&pool)).await;
        }
        let count = sqlx::query_scalar::<_, i64>("select count(*) from notes");
        assert_eq!(count.fetch_one(&pool).await.unwrap(), 100);
        pool.close().await;
    }};
}

#[test]
fn a_pool_of_sqlx_queries_postgres_without_and_within_tokios_context() {
    let Some(server) = requirements::require("PostgreSQL's server", crate::servers::postgres().unwrap())
    else {
        return;
    };
    let url = format!("postgres://postgres@{}/postgres", server.address);
    let pool = async || PgPoolOptions::new().max_connections(3).connect(&url).await.unwrap();
    on_each_driver(1, async || {
        pool_works!(pool().await, "select count(*) from pg_sleep(0.05)");
        #[cfg(feature = "tokio-context")]
        {
            adapters::tokio_context::enter().unwrap();
            pool_works!(pool().await, "select count(*) from pg_sleep(0.05)");
        }
    });
}

/// As an application does whose pool is axum's state, with `runtime-tokio`.
#[cfg(feature = "tokio-context")]
#[test]
fn handlers_of_all_workers_query_postgres_by_a_pool_of_sqlx() {
    use axum::extract::{Path, State};
    use http_body_util::{BodyExt, Empty};

    let Some(server) = requirements::require("PostgreSQL's server", crate::servers::postgres().unwrap())
    else {
        return;
    };
    let url = format!("postgres://postgres@{}/postgres", server.address);
    let double = async |State(pool): State<sqlx::PgPool>, Path(number): Path<i32>| {
        let worker = runtime::current_worker();
        let query = sqlx::query_scalar::<_, i32>("select $1 * 2").bind(number);
        let twice = query.fetch_one(&pool).await.unwrap();
        assert_eq!(runtime::current_worker(), worker);
        twice.to_string()
    };
    on_each_driver(2, async || {
        adapters::tokio_context::enter().unwrap();
        let pool = PgPoolOptions::new().max_connections(3).connect(&url).await.unwrap();
        let app = axum::Router::new().route("/{number}", axum::routing::get(double)).with_state(pool.clone());
        let listener = crate::common::listener();
        let address = listener.local_addr().unwrap();
        let http = adapters::axum::serve(listener, app).start().unwrap();
        let client = adapters::hyper::Client::<Empty<hyper::body::Bytes>>::new();
        let asked = (0..40).map(|number| {
            let client = client.clone();
            runtime::spawn_on(number % 2, move || async move {
                let uri = format!("http://{address}/{number}").parse().unwrap();
                let body = client.get().get(uri).await.unwrap().into_body();
                assert_eq!(body.collect().await.unwrap().to_bytes(), (number * 2).to_string());
            })
        });
        for answer in asked.collect::<Vec<_>>() {
            answer.await.unwrap();
        }
        drop(client);
        assert_eq!(http.shutdown(Duration::from_secs(60)).await.aborted, 0);
        pool.close().await;
    });
}

#[test]
fn a_pool_of_sqlx_queries_sqlite() {
    on_each_driver(1, async || {
        let folder = tempfile::tempdir().unwrap();
        // A slow disk holds a writer up for longer than the others wait for it by default.
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("notes"))
            .create_if_missing(true)
            .synchronous(SqliteSynchronous::Off)
            .busy_timeout(Duration::from_secs(60));
        let pool = SqlitePoolOptions::new()
            .max_connections(3)
            .acquire_timeout(Duration::from_secs(60))
            .connect_with(options)
            .await
            .unwrap();
        pool_works!(
            pool,
            "with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < 300000)
             select count(*) from numbers"
        );
    });
}
