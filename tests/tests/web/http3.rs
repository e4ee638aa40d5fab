//! HTTP/3, with a client that is not ours: aioquic.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use tests::web::Web;

use crate::authority::Authority;
use crate::site::{Site, curl, pattern, run, succeed, text};

/// A server that answers `/api/echo` with the request's body, and others with its head.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream.unwrap());
                while let Some((head, body)) = read_request(&mut stream) {
                    let answer = if head.starts_with("POST /api/echo") { body } else { head.into_bytes() };
                    let length = answer.len();
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
                    stream.get_mut().write_all(&[head.as_bytes(), &answer].concat()).unwrap();
                }
            });
        }
    });
    address
}

/// None if it is broken off.
fn read_request(stream: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let (mut head, mut body) = (String::new(), Vec::new());
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    if let Some(length) = length {
        body.resize(length.parse().unwrap(), 0);
        stream.read_exact(&mut body).ok()?;
    } else if head.contains("chunked") {
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let length = usize::from_str_radix(line.trim(), 16).ok()?;
            let mut part = vec![0; length + 2];
            stream.read_exact(&mut part).ok()?;
            body.extend_from_slice(&part[..length]);
            if length == 0 {
                break;
            }
        }
    }
    Some((head, body))
}

/// Serves a site by HTTPS and HTTP/3; `None` if the program can't.
fn serve(site: &Site, authority: &Authority) -> Option<Web> {
    let (chain, key) = authority.certify("server", "localhost");
    let config = site.configure(
        "",
        &format!(
            "[tls]\nlisten = ['127.0.0.1:0']\ncertificate = '{}'\nkey = '{}'\nhttp3 = true\n\
             [[proxy]]\npath = '/api'\nupstreams = ['http://{}']\n\
             [limits]\nconnections = 2\nstreams = 4\nbody-size = 200_000\nheader-size = '128k'\n",
            text(&chain),
            text(&key),
            upstream()
        ),
    );
    let arguments = ["-t", "2", "-l", "127.0.0.1:0", "--config", text(&config)];
    let checked = run(tests::web::command().args(arguments).arg("--check"));
    let is_there = !checked.stderr.contains("built without HTTP/3");
    tests::require("the web server with its feature http3", is_there.then_some(()))?;
    Some(Web::run(tests::web::command().args(arguments)))
}

fn python() -> Option<PathBuf> {
    let python = tests::program("python3")?;
    let importable = Command::new(&python).args(["-c", "import aioquic"]).output().unwrap().status.success();
    tests::require("Python module aioquic (pip install aioquic)", importable.then_some(()))?;
    Some(python)
}

#[test]
fn aioquic_gets_files_and_what_is_proxied_within_the_limits_of_http_2_until_the_server_stops() {
    let Some(python) = python() else { return };
    let site = Site::new().with("short", "short").with("long", pattern(300_000));
    let authority = Authority::new();
    let Some(server) = serve(&site, &authority) else { return };
    let (_, port) = server.urls[1].rsplit_once(':').unwrap();
    let script = site.beside("client.py");
    std::fs::write(&script, include_str!("http3_client.py")).unwrap();
    let (authority, process) = (authority.path(), server.id().to_string());
    let arguments = [text(&script), port, text(&authority), &process];
    let printed = succeed(Command::new(python).args(arguments));
    assert_eq!(printed.trim(), "all as expected");
}

#[test]
fn responses_with_tls_and_no_others_name_the_port_of_http_3() {
    let site = Site::new().with("short", "short");
    let authority = Authority::new();
    let Some(server) = serve(&site, &authority) else { return };
    let (_, port) = server.urls[1].rsplit_once(':').unwrap();
    let named = |scheme: &str, port: &str| {
        let mut curl = curl()?;
        curl.args(["--cacert", text(&authority.path()), "--head", "--fail"]);
        let head = succeed(curl.arg(format!("{scheme}://localhost:{port}/short")));
        let mut values = head.lines().filter_map(|line| line.strip_prefix("alt-svc: "));
        Some(values.next().map(|value| value.trim().to_owned()))
    };
    let Some(told) = named("https", port) else { return };
    assert_eq!(told, Some(format!("h3=\":{port}\"; ma=86400")));
    assert_eq!(named("http", &server.address().port().to_string()), Some(None));
}
