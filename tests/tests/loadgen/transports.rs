//! Transports: TLS, authentication, UDP, and connections that are replaced during a run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loadgen::{Config, Credentials, Error, Loop, Protocol, TlsFiles, Workload};
use serial_test::serial;
use tests::fake_server::{FakeServer, MISS};
use tests::load::{config, load_and_run, open, run};
use tests::memcached::Memcached;

/// A self-signed certificate for 127.0.0.1 and `name`, with its key.
fn certificate(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), name.to_owned()]).unwrap();
    let (chain, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    fs::write(&chain, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (chain, key)
}

/// A server that requires certificates of clients, signed by `authority`.
fn requiring_certificates(chain: &Path, key: &Path, authority: &Path) -> Memcached {
    let [chain, key, authority] = [chain, key, authority].map(|path| path.to_str().unwrap());
    let options = format!("ssl_chain_cert={chain},ssl_key={key},ssl_ca_cert={authority},ssl_verify_mode=2");
    Memcached::start(&["-Z", "-o", &options])
}

#[test]
#[serial]
fn tls_certificates_are_verified_unless_that_is_turned_off() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = certificate(folder.path(), "server");
    let (other, other_key) = certificate(folder.path(), "client");
    let server = requiring_certificates(&chain, &key, &other);
    let files = |authorities: Option<&PathBuf>| TlsFiles {
        ca_certificates: authorities.cloned(),
        certificate: Some(other.clone()),
        key: Some(other_key.clone()),
        ..TlsFiles::default()
    };
    let with = |tls: TlsFiles| Config {
        tls: Some(tls),
        connections: 4,
        depth: 4,
        workload: Workload { verify: true, records: 200, ..Workload::default() },
        ..config(server.address)
    };
    for good in [
        files(Some(&chain)),
        TlsFiles { server_name: Some("server".to_owned()), ..files(Some(&chain)) },
        TlsFiles { skip_verification: true, ..files(None) },
    ] {
        let report = load_and_run(&with(good), 1).unwrap();
        assert!(report.hits > 0 && report.misses == 0 && !report.has_failures(), "{}", report.table());
    }
    for (bad, word) in [
        (files(Some(&other)), "certificate"),
        (TlsFiles { server_name: Some("somebody".to_owned()), ..files(Some(&chain)) }, "certificate"),
        (files(None), "CA certificate"),
        (files(Some(&folder.path().join("none.pem"))), "none.pem"),
        (files(Some(&key)), "no certificate"),
        (TlsFiles { key: None, ..files(Some(&chain)) }, "its key"),
    ] {
        let error = load_and_run(&with(bad), 1).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
#[serial]
fn authentication_works_in_either_protocol_and_a_wrong_password_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "me:secret\n").unwrap();
    for protocol in [Protocol::Text, Protocol::Binary] {
        let port = tests::memcached::free_port();
        let mut command = tests::memcached::command();
        command.args(["-p", &port.to_string()]);
        match protocol {
            Protocol::Binary => command.arg("-S").env("MEMCACHED_SASL_PWDB", &users),
            _ => command.arg("-Y").arg(&users),
        };
        let server = Memcached::run(&mut command, port);
        let with = |password: &str| Config {
            protocol,
            credentials: Some(Credentials { user: "me".to_owned(), password: password.to_owned() }),
            workload: Workload { records: 100, ..Workload::default() },
            ..config(server.address)
        };
        let report = load_and_run(&with("secret"), 1).unwrap();
        assert!(report.hits > 0 && !report.has_failures(), "{}", report.table());
        let error = load_and_run(&with("wrong"), 1).unwrap_err();
        assert!(matches!(&error, Error::Refused { user, .. } if user == "me"), "{error}");
    }
}

#[test]
#[serial]
fn gets_run_over_udp_also_with_responses_of_several_datagrams() {
    let port = tests::memcached::free_port();
    let server = Memcached::start_on(port, &["-U", &port.to_string()]);
    for size in [100.0, 9000.0] {
        let config = Config {
            protocol: Protocol::Udp,
            connections: 4,
            depth: 4,
            workload: Workload {
                verify: true,
                records: 50,
                value: loadgen::Distribution::Fixed(size),
                ..Workload::default()
            },
            ..config(server.address)
        };
        let report = load_and_run(&config, 1).unwrap();
        assert!(report.hits > 0 && report.misses + report.wrong + report.errors == 0, "{}", report.table());
        assert!(report.unanswered <= report.requests / 1000 + 16, "{}", report.table());
    }
}

/// Loses one datagram of ten. Returns the median latency in µs.
fn lose_datagrams() -> f64 {
    let server = FakeServer::datagrams(|request, index| {
        if index % 10 == 9 || request.len() < 8 {
            return Vec::new();
        }
        // Twice: the duplicate matches no request.
        vec![[&request[..2], &[0, 0, 0, 1, 0, 0], MISS].concat(); 2]
    });
    // What a stall of the generator delays comes at once, and the sockets hold some 250 answers.
    let report = run(&Config {
        protocol: Protocol::Udp,
        connections: 2,
        depth: 500,
        pacing: open(250.0),
        duration: Duration::from_secs(2),
        ..config(server.address)
    });
    assert_eq!((report.latency.count, report.unanswered), (500, 50), "{}", report.table());
    // After a second without an answer.
    assert!(report.latency.p95 > 900_000.0, "{}", report.table());
    report.latency.p50
}

#[test]
#[serial]
fn lost_datagrams_are_counted() {
    lose_datagrams();
}

#[test]
#[ignore = "timing"]
#[serial]
fn lost_datagrams_delay_nothing() {
    let p50 = lose_datagrams();
    assert!(p50 < 100_000.0, "{p50}");
}

#[test]
#[serial]
fn connections_are_replaced_without_losing_requests() {
    let server = Memcached::start(&[]);
    for pacing in [Loop::Closed, open(5000.0)] {
        let config = Config { connections: 20, churn: 2.0, pacing, ..config(server.address) };
        let report = load_and_run(&config, 1).unwrap();
        // Each is replaced twice per second, for half a second.
        let made = report.connect.unwrap().count;
        assert!((1..=20).contains(&made), "{made}");
        assert!(report.requests > 0 && report.misses == 0 && !report.has_failures(), "{}", report.table());
    }
}
