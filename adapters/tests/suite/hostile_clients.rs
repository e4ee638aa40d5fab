//! The examples `static_files` and `reverse_proxy`, asked by clients that send what no browser does.

#[allow(dead_code, reason = "a program, too")]
#[path = "../../examples/reverse_proxy.rs"]
mod reverse_proxy;
#[allow(dead_code, reason = "a program, too")]
#[path = "../../examples/static_files.rs"]
mod static_files;

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adapters::hyper::Server;
use futures_util::{AsyncReadExt, AsyncWriteExt, SinkExt, StreamExt};
use net::{Serving, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use crate::common::listener;

const SECRET: &str = "beside the folder";

/// Paths to the secret or to `/etc/passwd`, in encodings that have fooled servers, and to what is
/// no file.
const ESCAPES: &str = r"
    /../secret //../secret /./../secret /folder/../../secret /.. ../secret //etc/passwd /%2e%2e/secret
    /..%2fsecret /%2e%2e%2fsecret /folder/..%2f..%2fsecret /%2fetc%2fpasswd /folder/.%2e/.%2e/.%2e/etc/passwd
    /%%32%65%%32%65/secret /%252e%252e/secret /..\secret /..%5csecret /%c0%ae%c0%ae/secret /..%c0%afsecret
    /%u002e%u002e/secret /..;/secret /../secret%00 /..%00/secret /%00/../secret /..%0d/secret /....//secret
    /..././secret http://x/../secret file:///etc/passwd */../secret /index.html/../../secret /file/ /up
    /up/secret /relative /absolute/passwd /magic/etc/passwd /pipe /proc/self/environ";

/// A range, and the status, the body and the place that are sent for it.
const RANGES: &str = "
    0-0 206 0 0-0/10; 3-5 206 345 3-5/10; 7-99999999999999999999999 206 789 7-9/10; 8- 206 89 8-9/10;
    -1 206 9 9-9/10; -18446744073709551615 206 0123456789 0-9/10; 10- 416 - */10; -0 416 - */10;
    5-2 200 0123456789; - 200 0123456789; +1-2 200 0123456789; --1 200 0123456789; 1 200 0123456789;
    0-1,3-4 200 0123456789; a-b 200 0123456789";

/// Sends bytes as they are, and returns what comes until the end.
async fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // It may be closed before all is sent.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = runtime::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn authority(address: SocketAddr) -> hyper::http::uri::Authority {
    address.to_string().parse().unwrap()
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or("")
}

/// A folder with an index, a file, links out of it and a named pipe; beside it a secret.
fn serve_files(place: &tempfile::TempDir) -> (Server, SocketAddr) {
    let site = place.path().join("site");
    std::fs::create_dir_all(site.join("folder")).unwrap();
    std::fs::write(place.path().join("secret"), SECRET).unwrap();
    std::fs::write(site.join("index.html"), "index").unwrap();
    std::fs::write(site.join("file"), "0123456789").unwrap();
    let links = [("..", "up"), ("../secret", "relative"), ("/etc", "absolute"), ("/proc/self/root", "magic")];
    links.iter().for_each(|(target, link)| symlink(target, site.join(link)).unwrap());
    rustix::fs::mkfifoat(rustix::fs::CWD, site.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
    let (listener, folder) = (listener(), static_files::Folder::open(&site).unwrap());
    let address = listener.local_addr().unwrap();
    (static_files::server(listener, folder, None).start().unwrap(), address)
}

#[runtime::test]
async fn no_path_leads_out_of_the_folder_or_to_what_is_no_file() {
    let place = tempfile::tempdir().unwrap();
    let (server, address) = serve_files(&place);
    let raw: [&[u8]; 3] = [b"/..\x00/secret", b"/\xc0\xae\xc0\xae/secret", b"/..\x7f/secret"];
    for target in ESCAPES.split_whitespace().map(str::as_bytes).chain(raw) {
        let request = [b"GET ", target, b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"].concat();
        let answer = ask(address, &request).await;
        let leaks = answer.contains(SECRET) || answer.contains("root:");
        assert!(!leaks && ["400", "404"].contains(&status(&answer)), "{}: {answer}", target.escape_ascii());
    }
    for method in ["POST", "DELETE", "PUT", "OPTIONS"] {
        let request = format!("{method} /file HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        assert_eq!(status(&ask(address, request.as_bytes()).await), "405");
    }
    let folder = ask(address, b"GET //folder HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(!folder.contains("location: //"), "it leads to another host: {folder}");
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_range_is_sent_with_its_place_or_ignored_or_refused() {
    let place = tempfile::tempdir().unwrap();
    let (server, address) = serve_files(&place);
    for case in RANGES.split(';') {
        let mut case = case.split_whitespace();
        let [range, wanted, body] = [(); 3].map(|()| case.next().unwrap());
        let head = format!("host: a\r\nrange: bytes={range}\r\nconnection: close");
        let answer = ask(address, format!("GET /file HTTP/1.1\r\n{head}\r\n\r\n").as_bytes()).await;
        let (head, sent) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!((status(head), sent), (wanted, body.trim_matches('-')), "{range}: {head}");
        let place = head.lines().find_map(|line| line.strip_prefix("content-range: bytes "));
        assert_eq!(place, case.next(), "{range}");
    }
    server.shutdown(Duration::from_secs(60)).await;
}

/// An upstream that parses nothing but lengths, strictly, and notes what comes.
fn note_requests() -> (Serving, SocketAddr, Arc<Mutex<Vec<String>>>) {
    let (listener, noted) = (listener(), Arc::new(Mutex::new(Vec::new())));
    let (address, notes) = (listener.local_addr().unwrap(), Arc::clone(&noted));
    let serving = listener.serve(move |mut stream: TcpStream| {
        let notes = Arc::clone(&notes);
        async move {
            let mut received = String::new();
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut bytes).await {
                received += &String::from_utf8_lossy(&bytes[..length]);
                let Some((head, body)) = received.split_once("\r\n\r\n") else { continue };
                let header =
                    |name| head.lines().filter_map(|line| line.strip_prefix(name)).collect::<Vec<_>>();
                let is_complete = match (&header("content-length: ")[..], &header("transfer-encoding: ")[..])
                {
                    ([], []) => body.is_empty(),
                    ([length], []) => body.len() == length.parse::<usize>().unwrap(),
                    ([], ["chunked"]) => body.ends_with("0\r\n\r\n"),
                    _ => panic!("it has two ends: {received:?}"),
                };
                if is_complete {
                    notes.lock().unwrap().push(std::mem::take(&mut received));
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                }
            }
        }
    });
    (serving.unwrap(), address, noted)
}

#[runtime::test]
async fn no_request_is_smuggled_through_the_proxy() {
    let (_serving, upstream, noted) = note_requests();
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server =
        reverse_proxy::proxy(listener, authority(upstream), Duration::from_secs(60)).start().unwrap();
    // The head after the request line and the body, with | for line ends; and how many requests the
    // upstream gets: of two lengths the connection ends with the first request.
    let cases = [
        ("host: a|content-length: 5", "hello", 2),
        ("host: a|content-length: 5|content-length: 5", "hello", 2),
        ("host: a|content-length: 6|connection: content-length", "GET /n", 2),
        ("host: a|transfer-encoding: chunked", "5;a=b|hello|0||", 2),
        ("host: a|transfer-encoding: Chunked|connection: host, transfer-encoding", "0||", 2),
        ("host: a|content-length: 35|transfer-encoding: chunked", "0||", 1),
        ("host: a|transfer-encoding: chunked|content-length: 4", "5|hello|0||", 1),
        ("host: a|content-length: 0|content-length: 35", "", 0),
        ("host: a|content-length: 0, 35", "", 0),
        ("host: a|content-length: +0", "", 0),
        ("host: a|content-length : 35", "", 0),
        ("host: a|transfer-encoding: chunked|transfer-encoding: x", "0||", 0),
        ("host: a|transfer-encoding: x|transfer-encoding: chunked", "0||", 0),
        ("host: a|transfer-encoding: gzip, chunked", "0||", 0),
        ("host: a|transfer-encoding: xchunked", "0||", 0),
        ("host: a|transfer-encoding: \x0bchunked", "0||", 0),
        ("host: a|transfer-encoding : chunked", "0||", 0),
        ("host: a|x: y\rtransfer-encoding: chunked", "0||", 0),
        ("host: a|x: y| transfer-encoding: chunked", "0||", 0),
        ("host: a|transfer-encoding: chunked", "f0000000000000000||", 0),
        ("host: a|transfer-encoding: chunked", "4|hello|0||", 0),
        ("host: a|host: b", "", 0),
        ("x: y", "", 0),
    ];
    for (head, body, wanted) in cases {
        let following = "GET /following HTTP/1.1|host: a|connection: close||";
        let request = format!("POST / HTTP/1.1|{head}||{body}{following}").replace('|', "\r\n");
        let answer = ask(address, request.as_bytes()).await;
        let seen = std::mem::take(&mut *noted.lock().unwrap());
        assert_eq!(seen.len(), wanted, "{head:?}: {seen:?}");
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), wanted, "{head:?}: {answer}");
        let lines: Vec<_> = seen.iter().map(|request| request.lines().next().unwrap()).collect();
        assert_eq!(lines, ["POST / HTTP/1.1", "GET /following HTTP/1.1"][..wanted], "{head:?}");
        let once = |request: &String| {
            ["host: a\r\n", "x-forwarded-for: 127.0.0.1\r\n"].map(|line| request.matches(line).count())
                == [1; 2]
        };
        assert!(seen.iter().all(once), "{seen:?}");
    }
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_websocket_passes_the_proxy_and_other_upgrades_do_not() {
    let upstream = listener();
    let to = upstream.local_addr().unwrap();
    let echo = upstream.serve(async |stream: TcpStream| {
        let Ok(mut socket) = tokio_tungstenite::accept_async(adapters::Io::new(stream)).await else { return };
        while let Some(Ok(message)) = socket.next().await {
            let _ = socket.send(message).await;
        }
    });
    let _echo = echo.unwrap();
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let server = reverse_proxy::proxy(listener, authority(to), Duration::from_secs(60)).start().unwrap();
    let stream = adapters::Io::new(TcpStream::connect(address).await.unwrap());
    let (mut socket, _) = tokio_tungstenite::client_async(format!("ws://{address}/"), stream).await.unwrap();
    let large = Message::binary(vec![7; 1 << 20]);
    socket.send(large.clone()).await.unwrap();
    assert!(socket.next().await.unwrap().unwrap() == large);
    drop(socket);
    let h2c = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close, upgrade\r\nupgrade: h2c\r\n\r\n";
    assert_eq!(status(&ask(address, h2c).await), "502", "the upstream takes WebSockets only");
    server.shutdown(Duration::from_secs(60)).await;
}
