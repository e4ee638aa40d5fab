//! The pool of connections to PostgreSQL, against its server.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adapters::Io;
use adapters::postgres::tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use adapters::postgres::tokio_postgres::error::SqlState;
use adapters::postgres::tokio_postgres::{self, Config, NoTls};
use adapters::postgres::{Error, Pool, PooledClient};

use crate::authority::Authority;
use crate::drivers::on_each_driver;
use crate::servers::DatabaseServer;

/// Returns without a server, unless everything is required.
macro_rules! server {
    ($started:expr) => {
        match requirements::require("PostgreSQL's server", $started.unwrap()) {
            Some(server) => server,
            None => return,
        }
    };
}

fn config(server: &DatabaseServer) -> Config {
    let mut config = Config::new();
    config.host("127.0.0.1").port(server.address.port()).user("postgres").dbname("postgres");
    config
}

/// Which of the server's processes has the connection.
async fn process(client: &PooledClient) -> i32 {
    client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// How many connections the server has.
async fn connections(client: &PooledClient) -> i64 {
    let count = "select count(*) from pg_stat_activity where backend_type = 'client backend'";
    client.query_one(count, &[]).await.unwrap().get(0)
}

/// A connection of a pool whose limit is short, on a machine that may be slow.
async fn opened(pool: &Pool) -> PooledClient {
    let begin = Instant::now();
    loop {
        match pool.get().await {
            Ok(client) => return client,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(60), "{error}"),
        }
    }
}

/// Runs on a worker what needs not be `Send`.
async fn on_worker<T: Send + 'static>(
    worker: usize,
    pool: &Pool,
    work: impl AsyncFnOnce(Pool) -> T + Send + 'static,
) -> T {
    let pool = pool.clone();
    runtime::spawn_on(worker, move || async move { work(pool).await }).await.unwrap()
}

#[test]
fn a_connection_is_opened_on_the_worker_that_asks_and_stays_there() {
    let server = server!(crate::servers::postgres());
    on_each_driver(2, async || {
        let pool = Pool::builder(config(&server)).max_size(4).build();
        let mut processes = [BTreeSet::new(), BTreeSet::new()];
        for round in 0..10 {
            let worker = round % 2;
            let received = || [0, 1].map(|worker| runtime::metrics()[worker].received_bytes);
            let before = received();
            let query = async |pool: Pool| {
                let client = pool.get().await.unwrap();
                let text: String = client.query_one("select repeat('x', 1000000)", &[]).await.unwrap().get(0);
                assert_eq!(text.len(), 1_000_000);
                process(&client).await
            };
            processes[worker].insert(on_worker(worker, &pool, query).await);
            let after = received();
            assert!(after[worker] - before[worker] >= 1_000_000, "worker {worker}: {before:?}, {after:?}");
            assert!(after[1 - worker] - before[1 - worker] < 1_000, "worker {worker}: {before:?}, {after:?}");
        }
        assert!(processes.iter().all(|of_worker| of_worker.len() == 1), "{processes:?}");
        assert!(processes[0].is_disjoint(&processes[1]), "{processes:?}");
    });
}

#[test]
fn a_worker_waits_at_its_part_of_the_limit_and_says_so_when_its_time_is_over() {
    let server = server!(crate::servers::postgres());
    on_each_driver(2, async || {
        let limit = Duration::from_secs(1);
        let pool = Pool::builder(config(&server)).max_size(3).timeout(limit).build();
        let (first, _second) = (opened(&pool).await, opened(&pool).await);
        let begin = Instant::now();
        let error = pool.get().await.unwrap_err();
        assert!(begin.elapsed() >= limit);
        assert!(matches!(error, Error::TimedOut { open: 2, .. }), "{error:?}");
        let text = "no connection to PostgreSQL was free or opened within 1s; open ones of this worker: 2";
        assert_eq!(error.to_string(), text);
        // The other worker's part is its own.
        on_worker(1, &pool, async |pool: Pool| {
            let _only = opened(&pool).await;
            let error = pool.get().await.unwrap_err();
            assert!(matches!(error, Error::TimedOut { open: 1, .. }), "{error:?}");
        })
        .await;
        let returned = process(&first).await;
        drop(first);
        assert_eq!(process(&opened(&pool).await).await, returned);
    });
}

#[test]
fn tasks_of_all_workers_share_no_more_connections_than_the_limit() {
    let server = server!(crate::servers::postgres());
    on_each_driver(2, async || {
        let pool = Pool::builder(config(&server)).max_size(3).build();
        let processes = Arc::new(Mutex::new(BTreeSet::new()));
        let tasks = (0..40).map(|number| {
            let (pool, processes) = (pool.clone(), Arc::clone(&processes));
            runtime::spawn_on(number % 2, move || async move {
                let client = pool.get().await.unwrap();
                client.execute("select pg_sleep(0.005)", &[]).await.unwrap();
                let process = process(&client).await;
                processes.lock().unwrap().insert(process);
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!(processes.lock().unwrap().len(), 3);
    });
}

#[test]
fn workers_share_a_part_if_there_are_fewer_connections() {
    let server = server!(crate::servers::postgres());
    on_each_driver(2, async || {
        let pool = Pool::builder(config(&server)).max_size(1).build();
        let mut processes = BTreeSet::new();
        for worker in [0, 1, 0] {
            let query = async |pool: Pool| process(&pool.get().await.unwrap()).await;
            processes.insert(on_worker(worker, &pool, query).await);
        }
        assert_eq!(processes.len(), 1);
    });
}

#[test]
fn a_server_that_was_restarted_is_connected_to_again() {
    let server = Mutex::new(server!(crate::servers::postgres()));
    on_each_driver(1, async || {
        let pool = Pool::builder(config(&server.lock().unwrap())).max_size(2).build();
        let client = pool.get().await.unwrap();
        // This one has nothing to do when the server goes.
        drop(pool.get().await.unwrap());
        server.lock().unwrap().stop().unwrap();
        client.query_one("select 7", &[]).await.unwrap_err();
        drop(client);
        let error = pool.get().await.unwrap_err();
        let address = server.lock().unwrap().address;
        let text = format!("cannot connect to PostgreSQL at {address}: Connection refused");
        assert!(error.to_string().starts_with(&text), "{error}");
        server.lock().unwrap().start_again().unwrap();
        for _ in 0..2 {
            let client = pool.get().await.unwrap();
            assert_eq!(client.query_one("select 7", &[]).await.unwrap().get::<_, i32>(0), 7);
            assert_eq!(connections(&client).await, 1);
        }
    });
}

#[test]
fn a_transaction_that_is_dropped_leaves_nothing_to_the_next_user() {
    let server = server!(crate::servers::postgres());
    on_each_driver(1, async || {
        let pool = Pool::builder(config(&server)).max_size(1).build();
        let mut client = pool.get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute("create table never (id int)").await.unwrap();
        drop(transaction);
        drop(client);
        let client = pool.get().await.unwrap();
        let found = client.query_one("select to_regclass('never')::text", &[]).await.unwrap();
        assert_eq!(found.get::<_, Option<String>>(0), None);
    });
}

#[test]
fn a_cached_statement_is_prepared_once_by_each_connection() {
    let server = server!(crate::servers::postgres());
    on_each_driver(1, async || {
        let pool = Pool::builder(config(&server)).max_size(1).build();
        for number in 0..3_i32 {
            let client = pool.get().await.unwrap();
            let double = client.prepare_cached("select $1::int * 2").await.unwrap();
            let row = client.query_one(&double, &[&number]).await.unwrap();
            assert_eq!(row.get::<_, i32>(0), 2 * number);
        }
        let client = pool.get().await.unwrap();
        let count = client.simple_query("select count(*) from pg_prepared_statements").await.unwrap();
        let count = count.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        assert_eq!(count, Some("1"));
        assert!(client.prepare_cached("select nothing").await.is_err());
    });
}

#[test]
fn cached_statements_that_a_changed_table_has_made_invalid_can_be_cleared() {
    let server = server!(crate::servers::postgres());
    on_each_driver(1, async || {
        let client = Pool::builder(config(&server)).max_size(1).build().get().await.unwrap();
        client.batch_execute("create temp table changed (a int)").await.unwrap();
        let columns = async || {
            let select = client.prepare_cached("select * from changed").await.unwrap();
            client.query(&select, &[]).await.map(|_| select.columns().len())
        };
        assert_eq!(columns().await.unwrap(), 1);
        client.batch_execute("alter table changed add b int").await.unwrap();
        let error = columns().await.unwrap_err();
        let text = error.as_db_error().unwrap().message();
        assert_eq!(text, "cached plan must not change result type");
        client.clear_statements();
        assert_eq!(columns().await.unwrap(), 2);
    });
}

#[test]
fn a_connection_that_is_discarded_ends_and_another_one_takes_its_place() {
    let server = server!(crate::servers::postgres());
    on_each_driver(1, async || {
        let pool = Pool::builder(config(&server)).max_size(1).build();
        let client = pool.get().await.unwrap();
        let discarded = process(&client).await;
        client.discard();
        let client = pool.get().await.unwrap();
        let begin = Instant::now();
        let is_there = "select 1 from pg_stat_activity where pid = $1";
        while client.query_opt(is_there, &[&discarded]).await.unwrap().is_some() {
            assert!(begin.elapsed() < Duration::from_secs(60), "process {discarded} has not ended");
        }
    });
}

#[test]
fn queries_end_by_the_configs_limit_and_when_they_are_cancelled() {
    let server = server!(crate::servers::postgres());
    on_each_driver(1, async || {
        let sleep = async |client: &PooledClient| {
            let error = client.batch_execute("select pg_sleep(600)").await.unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
        };
        let limited = config(&server).options("-c statement_timeout=50ms").clone();
        sleep(&Pool::builder(limited).build().get().await.unwrap()).await;

        let pool = Pool::builder(config(&server)).max_size(2).build();
        let other = pool.get().await.unwrap();
        for by_token in [true, false] {
            let client = pool.get().await.unwrap();
            let (token, sleeper) = (client.cancel_token(), process(&client).await);
            let sleeping = runtime::spawn(async move {
                sleep(&client).await;
                // To cancel a query, PostgreSQL 15 signals the process twice. The second signal may
                // come after the answer, and would cancel the next query.
                client.discard();
            });
            let begin = Instant::now();
            let sleeps = "select 1 from pg_stat_activity where pid = $1 and state = 'active'";
            while other.query_opt(sleeps, &[&sleeper]).await.unwrap().is_none() {
                assert!(!sleeping.is_finished(), "the query ended before it was cancelled");
                assert!(begin.elapsed() < Duration::from_secs(60), "the query has not begun");
            }
            if by_token {
                let stream = net::TcpStream::connect(server.address).await.unwrap();
                token.cancel_query_raw(Io::new(stream), NoTls).await.unwrap();
            } else {
                other.query_one("select pg_cancel_backend($1)", &[&sleeper]).await.unwrap();
            }
            sleeping.await.unwrap();
        }
    });
}

#[test]
fn the_first_host_that_answers_is_connected_to() {
    let server = server!(crate::servers::postgres());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (silent_port, port) = (silent.local_addr().unwrap().port(), server.address.port());
    let closed_port = requirements::free_port();
    on_each_driver(1, async || {
        let config = |ports: &[u16]| {
            let mut config = Config::new();
            config.user("postgres");
            for port in ports {
                config.host("127.0.0.1").port(*port);
            }
            config
        };
        let failure = async |ports: &[u16]| {
            let config = config(ports).connect_timeout(Duration::from_millis(50)).clone();
            Pool::builder(config).build().get().await.unwrap_err().to_string()
        };
        let silent =
            format!("cannot connect to PostgreSQL at 127.0.0.1:{silent_port}: no answer within 50ms");
        assert_eq!(failure(&[closed_port, silent_port]).await, silent);
        let closed = format!("cannot connect to PostgreSQL at 127.0.0.1:{closed_port}: Connection refused");
        assert!(failure(&[silent_port, closed_port]).await.starts_with(&closed));
        process(&Pool::builder(config(&[closed_port, port])).build().get().await.unwrap()).await;
        // A socket in a folder, and an address in place of a lookup.
        for (host, address) in
            [(server.folder.path().to_str().unwrap(), None), ("invalid.", Some("127.0.0.1"))]
        {
            let mut config = Config::new();
            config.user("postgres").host(host).port(port);
            if let Some(address) = address {
                config.hostaddr(address.parse().unwrap());
            }
            let is_unix = matches!(config.get_hosts(), [Host::Unix(_)]);
            let client = Pool::builder(config).build().get().await.unwrap();
            let peer = client.query_one("select inet_client_addr() is null", &[]).await.unwrap();
            assert_eq!(peer.get::<_, bool>(0), is_unix);
        }
    });
}

/// Closes connections as soon as they are accepted. The address, and how many they were.
fn closing(address: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(address).unwrap();
    let (address, accepted) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&accepted);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            count.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    (address, accepted)
}

#[test]
fn a_host_that_has_answered_is_tried_first_from_then_on() {
    let server = server!(crate::servers::postgres());
    let (closing, accepted) = closing((Ipv4Addr::LOCALHOST, 0).into());
    on_each_driver(1, async || {
        let mut config = Config::new();
        config.user("postgres");
        for address in [closing, server.address] {
            config.host("127.0.0.1").port(address.port());
        }
        let pool = Pool::builder(config).max_size(2).build();
        let before = accepted.load(Ordering::SeqCst);
        let (_first, _second) = (pool.get().await.unwrap(), pool.get().await.unwrap());
        assert_eq!(accepted.load(Ordering::SeqCst) - before, 1);
    });
}

#[test]
fn calls_that_time_out_at_silent_hosts_reach_the_last_one_in_the_end() {
    let server = server!(crate::servers::postgres());
    let silent = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    on_each_driver(1, async || {
        let mut config = Config::new();
        config.user("postgres").connect_timeout(Duration::from_millis(400));
        for address in silent.iter().map(|silent| silent.local_addr().unwrap()).chain([server.address]) {
            config.host("127.0.0.1").port(address.port());
        }
        let pool = Pool::builder(config).max_size(1).timeout(Duration::from_secs(1)).build();
        let text = pool.get().await.unwrap_err().to_string();
        let head = "no connection to PostgreSQL was free or opened within 1s; \
                    open ones of this worker: 0; 127.0.0.1:";
        assert!(text.starts_with(head) && text.ends_with(": no answer within 400ms"), "{text}");
        process(&opened(&pool).await).await;
    });
}

/// Set in a process for which `two.test` has the addresses `::1` and `127.0.0.1`: the port of a
/// server that listens on the second one.
const PORT_OF_SECOND: &str = "PORT_OF_SECOND";

#[test]
fn an_address_of_a_name_that_lets_nobody_in_is_passed_over_and_not_tried_again() {
    if let Ok(port) = std::env::var(PORT_OF_SECOND) {
        return pass_over_the_first_address(port.parse().unwrap());
    }
    let server = server!(crate::servers::postgres());
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&hosts, "::1 two.test\n127.0.0.1 two.test\n").unwrap();
    let with_these_hosts = |program: &std::path::Path| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c"]);
        command.args(["mount --bind \"$0\" /etc/hosts && exec \"$@\"".as_ref(), hosts.path(), program]);
        command
    };
    let can = with_these_hosts("true".as_ref()).status().is_ok_and(|status| status.success());
    let Some(()) = requirements::require("another /etc/hosts for a process", can.then_some(())) else {
        return;
    };
    let mut command = with_these_hosts(&std::env::current_exe().unwrap());
    let name = std::thread::current().name().unwrap().to_owned();
    command.args([&name, "--exact", "--nocapture"]).env(PORT_OF_SECOND, server.address.port().to_string());
    let output = command.output().unwrap();
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

fn pass_over_the_first_address(port: u16) {
    let (_, accepted) = closing((Ipv6Addr::LOCALHOST, port).into());
    on_each_driver(1, async || {
        let mut config = Config::new();
        config.host("two.test").port(port).user("postgres");
        let pool = Pool::builder(config.clone()).max_size(2).build();
        let before = accepted.load(Ordering::SeqCst);
        let (_first, _second) = (pool.get().await.unwrap(), pool.get().await.unwrap());
        assert_eq!(accepted.load(Ordering::SeqCst) - before, 1);
        let error = Pool::builder(config.dbname("nowhere").clone()).build().get().await.unwrap_err();
        let head = format!("cannot connect to PostgreSQL at two.test:{port} (127.0.0.1): ");
        assert!(error.to_string().starts_with(&head), "{error}");
    });
}

#[test]
fn an_opening_that_is_given_up_leaves_room_for_another() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    on_each_driver(1, async || {
        let mut config = Config::new();
        config.user("postgres").host("127.0.0.1").port(silent_port);
        config.connect_timeout(Duration::from_secs(3600));
        let pool = Pool::builder(config).max_size(1).timeout(Duration::from_millis(50)).build();
        for _ in 0..2 {
            let error = pool.get().await.unwrap_err();
            assert!(matches!(error, Error::TimedOut { open: 0, .. }), "{error:?}");
            // The socket is closed, though nobody has answered.
            let (mut accepted, _) = silent.accept().unwrap();
            accepted.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let read = runtime::spawn_blocking(move || std::io::copy(&mut accepted, &mut std::io::sink()));
            read.await.unwrap().unwrap();
        }
    });
}

#[test]
fn errors_say_what_the_server_says() {
    let server = server!(crate::servers::postgres());
    on_each_driver(1, async || {
        let failure = async |config: Config| Pool::builder(config).build().get().await.unwrap_err();
        let error = failure(config(&server).dbname("nowhere").clone()).await;
        assert!(error.to_string().ends_with("database \"nowhere\" does not exist"), "{error}");
        let source = error.source().unwrap().downcast_ref::<tokio_postgres::Error>().unwrap();
        assert_eq!(source.code(), Some(&SqlState::INVALID_CATALOG_NAME));

        let mut read_only = config(&server);
        let error = failure(read_only.target_session_attrs(TargetSessionAttrs::ReadOnly).clone()).await;
        assert!(error.to_string().ends_with("the session allows writes"), "{error}");
        let pool = Pool::builder(read_only.target_session_attrs(TargetSessionAttrs::ReadWrite).clone());
        process(&pool.build().get().await.unwrap()).await;

        for (config, text) in [
            ("", "the config names no host"),
            ("host=a,b hostaddr=127.0.0.1", "the config has hosts: 2, but addresses: 1"),
            ("host=a,b,c port=1,2", "the config has hosts: 3, but ports: 2"),
        ] {
            let error = failure(config.parse().unwrap()).await;
            assert_eq!(error.to_string(), format!("cannot connect to PostgreSQL: {text}"));
        }
        let error = failure(config(&server).ssl_mode(SslMode::Require).clone()).await;
        assert!(error.to_string().contains("server does not support TLS"), "{error}");
    });
}

#[test]
fn connections_are_encrypted_for_a_host_whose_certificate_is_valid() {
    let authority = Authority::new();
    authority.certificates("server", "localhost");
    let files = [authority.file("server.pem"), authority.file("server.key")];
    let server = server!(crate::servers::postgres_with_tls(&files[0], &files[1]));
    on_each_driver(1, async || {
        let mut config = Config::new();
        config.host("localhost").port(server.address.port()).user("postgres").ssl_mode(SslMode::Require);
        let client = Pool::builder(config.clone()).tls(authority.connector()).build().get().await.unwrap();
        let encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
        assert!(client.query_one(encrypted, &[]).await.unwrap().get::<_, bool>(0));
        let large = client.query_one("select repeat('x', 3000000)", &[]).await.unwrap();
        assert_eq!(large.get::<_, &str>(0).len(), 3_000_000);

        let stranger = Authority::named("stranger");
        let error = Pool::builder(config.clone()).tls(stranger.connector()).build().get().await.unwrap_err();
        let text = "error performing TLS handshake: the certificate of localhost is not trusted";
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(error.to_string().matches("UnknownIssuer").count(), 1, "{error}");
        let error = Pool::builder(config.clone()).build().get().await.unwrap_err();
        assert!(error.to_string().ends_with("no TLS implementation configured"), "{error}");
    });
}
