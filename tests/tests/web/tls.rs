//! HTTPS: protocols, names and versions.

use std::path::Path;
use std::process::Command;

use tests::web::Web;

use crate::authority::Authority;
use crate::site::{Site, curl, pattern, run, succeed, text};

/// Serves a site by HTTPS only, with a certificate for `localhost`.
pub fn serve_encrypted(site: &Site, authority: &Authority, arguments: &[&str]) -> Web {
    let (chain, key) = authority.certify("server", "localhost");
    let mut command = tests::web::command();
    command
        .args(["-t", "2", "--tls-listen", "127.0.0.1:0", "--certificate"])
        .arg(chain)
        .arg("--key")
        .arg(key);
    Web::run(command.args(arguments).arg(site.root()))
}

/// curl, which trusts an authority and takes some names for this host.
fn trusting(authority: &Authority, server: &Web, names: &[&str]) -> Option<Command> {
    let (mut curl, port) = (curl()?, server.address().port());
    curl.arg("--cacert").arg(authority.path());
    for name in names {
        curl.arg("--resolve").arg(format!("{name}:{port}:127.0.0.1"));
    }
    Some(curl)
}

fn url(server: &Web, name: &str, path: &str) -> String {
    format!("https://{name}:{}{path}", server.address().port())
}

#[test]
fn curl_chooses_http_2_or_1_1_by_alpn() {
    let content = pattern(3 << 20);
    let site = Site::new().with("short", "short").with("large", &content);
    let authority = Authority::new();
    let server = serve_encrypted(&site, &authority, &[]);
    assert_eq!(server.urls.len(), 1);
    assert!(server.urls[0].starts_with("https://"), "{:?}", server.urls);
    for (flag, version) in [("--http2", "2"), ("--http1.1", "1.1"), ("--no-alpn", "1.1")] {
        let Some(mut curl) = trusting(&authority, &server, &["localhost"]) else { return };
        let received = site.beside("received");
        curl.args([flag, "--fail", "--write-out", "%{http_version} %{http_code}", "--output"]).arg(&received);
        let printed = succeed(curl.arg(url(&server, "localhost", "/large")));
        assert_eq!(printed, format!("{version} 200"), "{flag}");
        assert!(std::fs::read(received).unwrap() == content, "{flag}");
    }
}

#[test]
fn head_has_no_body_by_http_2_either_and_the_connection_goes_on() {
    let site = Site::new().with("a", "a").with("b", pattern(100_000)).with("index.html", "index");
    let authority = Authority::new();
    let server = serve_encrypted(&site, &authority, &["--stats", "/stats"]);
    let Some(mut curl) = trusting(&authority, &server, &["localhost"]) else { return };
    curl.args(["--write-out", "%{http_code} %{size_download} %{num_connects}\n", "--head"]);
    let printed =
        succeed(curl.args(["/a", "/b", "/", "/missing"].map(|path| url(&server, "localhost", path))));
    let statuses: Vec<&str> =
        printed.lines().filter(|line| line.ends_with(" 0 0") || line.ends_with(" 0 1")).collect();
    assert_eq!(statuses, ["200 0 1", "200 0 0", "200 0 0", "404 0 0"], "{printed}");
}

#[test]
fn a_certificate_is_chosen_by_the_name_that_the_client_asks_for() {
    let site = Site::new().with("file", "file");
    let authority = Authority::new();
    let mut tables = String::from("[tls]\nlisten = ['127.0.0.1:0']\n");
    let (chain, key) = authority.certify("default", "localhost");
    tables.push_str(&format!("certificate = '{}'\nkey = '{}'\n", text(&chain), text(&key)));
    for name in ["one.example", "two.example"] {
        let (chain, key) = authority.certify(name, name);
        let (chain, key) = (text(&chain), text(&key));
        tables.push_str(&format!("[[tls.names]]\nname = '{name}'\ncertificate = '{chain}'\nkey = '{key}'\n"));
    }
    let config = site.configure("", &tables);
    let mut command = tests::web::command();
    let server = Web::run(command.args(["-t", "2", "--listen", "127.0.0.1:0", "--config"]).arg(config));
    // With both, the plain one is named first.
    assert!(server.urls[0].starts_with("http://") && server.urls[1].starts_with("https://"));
    assert_eq!(server.get("/file", &[]).text(), "file");
    let port = server.urls[1].rsplit(':').next().unwrap();
    for (name, trusted) in
        [("localhost", true), ("one.example", true), ("two.example", true), ("three.example", false)]
    {
        let Some(mut curl) = curl() else { return };
        curl.arg("--cacert").arg(authority.path()).args(["--resolve", &format!("{name}:{port}:127.0.0.1")]);
        let printed = run(curl.arg(format!("https://{name}:{port}/file")));
        assert_eq!(printed.status.success(), trusted, "{name}: {printed:?}");
        assert_eq!(printed.stdout, if trusted { "file" } else { "" });
        // 60: the name is not the certificate's.
        assert!(trusted || printed.status.code() == Some(60), "{printed:?}");
    }
}

#[test]
fn tls_1_2_is_refused_only_where_1_3_is_required() {
    let site = Site::new().with("file", "file");
    let authority = Authority::new();
    let (chain, key) = authority.certify("server", "localhost");
    for required in [false, true] {
        let tables = format!(
            "[tls]\nlisten = ['127.0.0.1:0']\ncertificate = '{}'\nkey = '{}'\nrequire-tls13 = {required}",
            text(&chain),
            text(&key)
        );
        let config = site.configure("", &format!("{tables}\n"));
        // No plain address: the configuration's own default would be port 8080.
        let with_listen = format!("listen = []\n{}", std::fs::read_to_string(&config).unwrap());
        std::fs::write(&config, with_listen).unwrap();
        let server = Web::run(tests::web::command().args(["-t", "2", "--config", text(&config)]));
        for (flags, served) in [(["--tls-max", "1.2"], !required), (["--tlsv1.3", "--tls13-ciphers"], true)] {
            let Some(mut curl) = trusting(&authority, &server, &["localhost"]) else { return };
            curl.args(flags);
            if flags[0] == "--tlsv1.3" {
                curl.arg("TLS_AES_128_GCM_SHA256");
            }
            let printed = run(curl.arg(url(&server, "localhost", "/file")));
            assert_eq!(printed.status.success(), served, "{flags:?}, required: {required}: {printed:?}");
            assert_eq!(printed.stdout == "file", served, "{printed:?}");
        }
    }
}

#[test]
fn plain_http_to_an_https_port_harms_nobody() {
    let site = Site::new().with("file", "file");
    let authority = Authority::new();
    let server = serve_encrypted(&site, &authority, &[]);
    let answer = server.talk("GET /file HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    let Some(mut curl) = trusting(&authority, &server, &["localhost"]) else { return };
    assert_eq!(succeed(curl.arg(url(&server, "localhost", "/file"))), "file");
}

#[test]
fn certificates_that_cannot_be_used_are_named() {
    let site = Site::new();
    let authority = Authority::new();
    let (chain, key) = authority.certify("server", "localhost");
    let (_, other) = authority.certify("other", "localhost");
    std::fs::write(site.beside("empty.pem"), "").unwrap();
    let start = |chain: &Path, key: &Path| {
        let mut command = tests::web::command();
        command.args(["--tls-listen", "127.0.0.1:0", "--certificate", text(chain), "--key", text(key)]);
        let printed = run(command.arg(site.root()));
        assert_eq!(printed.status.code(), Some(1), "{printed:?}");
        printed.stderr
    };
    let missing = site.beside("missing.pem");
    assert!(start(&missing, &key).contains(text(&missing)));
    assert!(start(&chain, &missing).contains(text(&missing)));
    assert!(start(&site.beside("empty.pem"), &key).contains("empty.pem"));
    let mismatch = start(&chain, &other);
    assert!(mismatch.contains("other.key") || mismatch.contains("server.pem"), "{mismatch}");
}

#[test]
fn a_session_is_resumed_from_the_clients_ticket() {
    let Some(openssl) = tests::program("openssl") else { return };
    let site = Site::new().with("file", "file");
    let server = serve_encrypted(&site, &Authority::new(), &[]);
    let session = site.beside("session");
    let shake = |more: &[&str]| {
        let mut command = Command::new(&openssl);
        command.args(["s_client", "-tls1_2", "-connect", &server.address().to_string()]);
        succeed(command.args(more))
    };
    let first = shake(&["-sess_out", text(&session)]);
    // Without a ticket the server would have to remember it.
    assert!(first.contains("New, ") && first.contains("TLS session ticket:"), "{first}");
    let second = shake(&["-sess_in", text(&session)]);
    assert!(second.contains("Reused, "), "{second}");
}

#[test]
fn a_client_that_has_agreed_to_http_2_and_speaks_something_else_gets_no_answer() {
    let Some(openssl) = tests::program("openssl") else { return };
    let site = Site::new().with("file", "file");
    let server = serve_encrypted(&site, &Authority::new(), &[]);
    for (protocol, answer) in [("h2", ""), ("http/1.1", "HTTP/1.1 404 ")] {
        let mut command = Command::new("sh");
        let request =
            "(printf 'GET /missing HTTP/1.1\\r\\nhost: a\\r\\nconnection: close\\r\\n\\r\\n'; sleep 1)";
        command.arg("-c").arg(format!(
            "{request} | {} s_client -quiet -alpn {protocol} -connect {}",
            openssl.display(),
            server.address()
        ));
        let printed = run(&mut command);
        assert!(
            printed.stdout.starts_with(answer) && (protocol != "h2" || printed.stdout.is_empty()),
            "{printed:?}"
        );
    }
}
