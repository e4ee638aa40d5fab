//! Random requests to the proxy: its upstream finds the requests that a strict reader finds in the
//! client's bytes, no others, and none that could be read in two ways.
//!
//! `LULL_SEQUENCES=100000 cargo test -p tests --test web random_` runs more of them, `LULL_SEED=N`
//! those from a seed on.

use std::collections::{BTreeSet, HashMap};
use std::io::{ErrorKind, Read as _, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tests::memcached::wait_until;
use tests::random::{Random, seeds};
use tests::web::Web;

use crate::frames::*;
use crate::site::{Site, text};
use crate::strict::{Grammar, Next, Read, Request, read};

/// How many sequences run unless `LULL_SEQUENCES` is set.
const SEQUENCES: u64 = 500;
/// How long a connection is waited for that should end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one is waited for that need not, before the client closes its side.
const PAUSE: Duration = Duration::from_millis(50);

/// What an upstream has received.
#[derive(Debug)]
struct Received {
    /// In the order of arrival; the answer has it. None if the request was broken off.
    number: Option<u64>,
    request: Request,
}

/// By the client's address, which the proxy appends to `x-forwarded-for`.
#[derive(Debug, Default)]
struct Log {
    last: u64,
    received: HashMap<String, Vec<Received>>,
    wrong: Vec<String>,
}

impl Log {
    fn add(&mut self, request: Request, is_whole: bool) -> u64 {
        self.last += 1;
        let forwarded = request.values("x-forwarded-for").last().and_then(|value| value.rsplit(", ").next());
        let client = forwarded.unwrap_or_default().to_owned();
        let number = is_whole.then_some(self.last);
        self.received.entry(client).or_default().push(Received { number, request });
        self.last
    }
}

/// An upstream that reads strictly, and answers each request with its number.
fn upstream() -> (SocketAddr, Arc<Mutex<Log>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, log) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Log::default())));
    let shared = Arc::clone(&log);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let log = Arc::clone(&shared);
            std::thread::spawn(move || receive(stream, &log));
        }
    });
    (address, log)
}

fn receive(mut stream: TcpStream, log: &Mutex<Log>) {
    let (mut bytes, mut part, mut ended) = (Vec::new(), [0; 16 << 10], false);
    loop {
        match read(&bytes, Grammar::Canonical) {
            Read::Whole(request, length, _) => {
                let has_underscore = request.fields.iter().any(|(name, _)| name.contains('_'));
                let mut log = log.lock().unwrap();
                if has_underscore {
                    log.wrong.push(format!("a name with an underscore: {request:?}"));
                }
                let body = if request.method == "HEAD" { "" } else { "ok" };
                let number = log.add(request, true);
                drop(log);
                bytes.drain(..length);
                let answer =
                    format!("HTTP/1.1 200 OK\r\nx-number: {number}\r\ncontent-length: 2\r\n\r\n{body}");
                ended = ended || stream.write_all(answer.as_bytes()).is_err();
            }
            Read::Wrong(problem, _) => {
                let received = bytes.escape_ascii().to_string();
                return log.lock().unwrap().wrong.push(format!("{problem}: {received}"));
            }
            Read::Part(request) if ended => {
                if let Some(request) = request {
                    log.lock().unwrap().add(request, false);
                }
                return;
            }
            Read::Part(_) => match stream.read(&mut part) {
                Ok(0) | Err(_) => ended = true,
                Ok(length) => bytes.extend_from_slice(&part[..length]),
            },
        }
    }
}

/// The target with which a request is forwarded (RFC 9112, section 3.2).
fn forwarded_target(target: &str) -> String {
    let target = target.split('#').next().unwrap_or_default();
    match target.split_once("://").filter(|_| !target.starts_with('/')) {
        Some((_, rest)) => {
            let path = &rest[rest.find(['/', '?']).unwrap_or(rest.len())..];
            if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
        }
        None => target.to_owned(),
    }
}

/// Whether what was received may be this request. `is_whole`: it was sent to its end.
fn is_same(received: &Received, sent: &Request, is_whole: bool) -> bool {
    let Received { number, request } = received;
    request.method == sent.method
        && request.target == forwarded_target(&sent.target)
        && (number.is_none() || is_whole && request.body == sent.body)
}

/// Bodies, some of which are requests to whoever takes them for no bodies.
fn body(random: &mut Random, name: &str) -> Vec<u8> {
    match random.below(5) {
        0 => Vec::new(),
        1 => b"hello".to_vec(),
        2 => format!("GET /never-{name} HTTP/1.1\r\nhost: a\r\n\r\n").into_bytes(),
        3 => format!("0\r\n\r\nGET /never-{name} HTTP/1.1\r\nhost: a\r\n\r\n").into_bytes(),
        _ => (0..random.below(300)).map(|_| random.of(b"\r\n\0 0a5:;/")).collect(),
    }
}

fn chunked(random: &mut Random, mut body: &[u8]) -> Vec<u8> {
    let mut chunks = Vec::new();
    let extension = |random: &mut Random| match random.below(12) {
        0 => ";a=b",
        1 => "; a=\"b;c\"",
        2 => " ",
        _ => "",
    };
    while !body.is_empty() {
        let (chunk, rest) = body.split_at(1 + random.below(body.len()));
        let size = match random.below(8) {
            0 => format!("000{:x}", chunk.len()),
            1 => format!("{:X}", chunk.len()),
            _ => format!("{:x}", chunk.len()),
        };
        chunks.extend_from_slice(format!("{size}{}\r\n", extension(random)).as_bytes());
        chunks.extend_from_slice(chunk);
        chunks.extend_from_slice(b"\r\n");
        body = rest;
    }
    let trailers = ["", "", "", "x-forwarded-for: 7.7.7.7\r\n", "content-length: 50\r\nhost: b\r\n"];
    chunks.extend_from_slice(format!("0{}\r\n{}\r\n", extension(random), random.of(&trailers)).as_bytes());
    chunks
}

/// Fields beside those of the framing, those first with which a request is forwarded and the
/// connection goes on.
const FIELDS: &[&str] = &[
    "x: y",
    "X:\ty \t",
    "x: \u{e9}",
    "x_y: z",
    "content_length: 5",
    "transfer_encoding: chunked",
    "connection: keep-alive",
    "connection: content-length",
    "connection: transfer-encoding, host",
    "connection: x-forwarded-for",
    "keep-alive: timeout=5",
    "proxy-connection: close",
    "te: trailers, chunked",
    "trailer: content-length",
    "expect: 100-continue",
    "x-forwarded-for: 6.6.6.6",
    "x-http-method-override: DELETE",
    "connection: close",
    "connection: upgrade\r\nupgrade: websocket",
    "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__",
    "max-forwards: 0",
];
const PLAIN_FIELDS: usize = 17;

/// Framings that are wrong, or nearly. `{n}`: the body's length.
const ODD_FRAMINGS: &[&str] = &[
    "content-length: {n}\r\ncontent-length: {n}",
    "content-length: {n}\r\ncontent-length: 0",
    "content-length: 0\r\ncontent-length: {n}",
    "content-length: {n}, {n}",
    "content-length: +{n}",
    "content-length: 00{n}",
    "content-length: {n}0",
    "content-length: 3",
    "content-length: 0x{n}",
    "content-length: {n} ",
    "content-length : {n}",
    "content-length:\r\n {n}",
    "content-length: 18446744073709551616",
    "content-length: {n}\r\ntransfer-encoding: chunked",
    "transfer-encoding: chunked\r\ncontent-length: {n}",
    "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
    "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "transfer-encoding: gzip, chunked",
    "transfer-encoding: chunked, identity",
    "transfer-encoding: identity",
    "transfer-encoding: xchunked",
    "transfer-encoding : chunked",
    "transfer-encoding:\tchunked",
    "transfer-encoding: \x0bchunked",
    "TRANSFER-ENCODING: CHUNKED",
    "transfer-encoding: chunked\r\nx: y\r\n z",
    "x: y\rtransfer-encoding: chunked",
    "x: y\ntransfer-encoding: chunked",
    "transfer-encoding:\r\n chunked",
];

fn request(random: &mut Random, name: &str) -> Vec<u8> {
    // Others would seldom be reached behind those that are refused.
    let is_plain = random.below(3) > 0;
    let odd = |random: &mut Random| !is_plain && random.below(6) == 0;
    let method = random.of(&["GET", "GET", "GET", "POST", "POST", "PUT", "HEAD", "DELETE", "OPTIONS"]);
    let method = if odd(random) { random.of(&["TRACE", "CONNECT", "get", "X-M", "", "G,T"]) } else { method };
    let target = match random.below(if is_plain { 3 } else { 20 }) {
        0 => format!("/{name}?q=http://a/#f"),
        3 => format!("/a/../{name}"),
        11 => format!("http://a/{name}"),
        12 => format!("http://b?{name}"),
        4 => format!("/%2e%2e/{name}%0d%0a"),
        5 => format!("//{name}"),
        6 => format!("/{name} x"),
        7 => format!("http://u@a/{name}"),
        8 => name.to_owned(),
        9 => "*".to_owned(),
        10 => format!("/{name}\u{e9}\"<>"),
        _ => format!("/{name}"),
    };
    let version = if odd(random) {
        random.of(&["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", ""])
    } else {
        "HTTP/1.1"
    };
    let host = if odd(random) {
        random.of(&["x: y", "host: a\r\nhost: b", "host:", "host: a/b", "Host:b"])
    } else {
        "host: a"
    };
    let body = body(random, name);
    let (framing, sent) = match random.below(if is_plain { 6 } else { 8 }) {
        0 | 1 if body.is_empty() => (String::new(), body),
        0..=3 => (format!("content-length: {}", body.len()), body),
        4 | 5 => ("transfer-encoding: chunked".to_owned(), chunked(random, &body)),
        _ => {
            let framing = random.of(ODD_FRAMINGS).replace("{n}", &body.len().to_string());
            let is_chunked = framing.to_ascii_lowercase().contains("chunked") && random.below(3) > 0;
            (framing, if is_chunked { chunked(random, &body) } else { body })
        }
    };
    let mut fields = vec![host.to_owned(), framing];
    for _ in 0..random.below(4) {
        let field = random.of(if is_plain { &FIELDS[..PLAIN_FIELDS] } else { FIELDS });
        fields.insert(random.below(fields.len() + 1), field.to_owned());
    }
    let mut lines = vec![format!("{method} {target} {version}")];
    lines.extend(fields.into_iter().filter(|field| !field.is_empty()));
    lines.push(String::new());
    let end = |random: &mut Random| {
        if !is_plain && random.below(30) == 0 {
            random.of(&["\n", "\r", "\r\r\n", "\r\n\r\n"])
        } else {
            "\r\n"
        }
    };
    let head: String = lines.into_iter().map(|line| line + end(random)).collect();
    [head.into_bytes(), sent].concat()
}

/// All that a client sends on a connection. The last request closes it.
fn sequence(random: &mut Random, seed: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..=random.below(4)).flat_map(|index| request(random, &format!("s{seed}-{index}"))).collect();
    if random.below(4) == 0 {
        for _ in 0..=random.below(2) {
            let position = random.below(bytes.len());
            let byte = random.of(b"\0\t\n\x0b\r 05:;,aZ/#\x7f\x80\xff");
            match random.below(3) {
                0 => bytes[position] = byte,
                1 => bytes.insert(position, byte),
                _ => drop(bytes.drain(position..bytes.len().min(position + 1 + random.below(3)))),
            }
        }
    }
    bytes.extend_from_slice(
        format!("GET /s{seed}-end HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes(),
    );
    bytes
}

/// The requests in a client's bytes, whether each is whole, and whether the connection ends with
/// the last.
fn requests_in(mut bytes: &[u8]) -> (Vec<(Request, bool)>, bool) {
    let mut requests = Vec::new();
    loop {
        match read(bytes, Grammar::Permitted) {
            Read::Whole(request, length, next) => {
                requests.push((request, true));
                if next != Next::Request {
                    return (requests, next == Next::Nothing);
                }
                bytes = &bytes[length..];
            }
            Read::Part(request) | Read::Wrong(_, request) => {
                requests.extend(request.map(|request| (request, false)));
                return (requests, false);
            }
        }
    }
}

/// Each sequence comes from another address.
fn client(seed: u64) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from_be_bytes([127, 64, 0, 0]) | (seed as u32 & 0x3f_ffff))
}

fn connect(proxy: SocketAddr, client: Ipv4Addr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
    socket.connect(&proxy.into()).unwrap();
    socket.set_tcp_nodelay(true).unwrap();
    socket.into()
}

/// Sends bytes in a few parts. Returns what came until the server closed the connection, and
/// whether it did so by itself.
fn converse(random: &mut Random, mut stream: TcpStream, mut bytes: &[u8], closes: bool) -> (Vec<u8>, bool) {
    for _ in 0..random.below(4) {
        let (part, rest) = bytes.split_at(random.below(bytes.len()));
        // Fails where the server has refused something already.
        let _ = stream.write_all(part);
        bytes = rest;
    }
    let _ = stream.write_all(bytes);
    stream.set_read_timeout(Some(if closes { PATIENCE } else { PAUSE })).unwrap();
    let mut answer = Vec::new();
    let is_open = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
    let is_closed = !stream.read_to_end(&mut answer).is_err_and(is_open);
    if !is_closed {
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.read_to_end(&mut answer);
    }
    (answer, is_closed)
}

/// The status of each response, and the number that the upstream gave to its request.
fn responses(mut answer: &[u8], requests: &[(Request, bool)]) -> Result<Vec<(u16, Option<u64>)>, String> {
    let mut responses = Vec::new();
    while !answer.is_empty() {
        let end =
            answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or("a head without an end")?;
        let head = tests::web::split(&answer[..end + 4]);
        answer = &answer[end + 4..];
        let is_head = requests.get(responses.len()).is_some_and(|(request, _)| request.method == "HEAD");
        let status = head.status();
        if status < 200 {
            continue;
        }
        let length = head.header("content-length").map_or(0, |length| length.parse::<usize>().unwrap_or(0));
        let length = if is_head || matches!(status, 204 | 304) { 0 } else { length };
        answer = answer.get(length..).ok_or("a body without an end")?;
        responses.push((status, head.header("x-number").and_then(|number| number.parse().ok())));
    }
    Ok(responses)
}

/// What an upstream has received of a client, and what that was answered, compared with what it has
/// sent.
fn compare(bytes: &[u8], received: &[Received], answer: &[u8], is_closed: bool) -> Result<(), String> {
    let (requests, closes) = requests_in(bytes);
    let mut rest = requests.iter();
    for received in received {
        rest.find(|(request, is_whole)| is_same(received, request, *is_whole))
            .ok_or_else(|| format!("the upstream has read what was not sent, or twice: {received:?}"))?;
    }
    let responses = responses(answer, &requests)?;
    let answered: Vec<u64> = responses.iter().filter_map(|(_, number)| *number).collect();
    let numbers: Vec<u64> = received.iter().filter_map(|received| received.number).collect();
    if !numbers.starts_with(&answered) || closes && numbers != answered {
        return Err(format!(
            "the upstream has answered {numbers:?}, and the client was answered {answered:?}"
        ));
    }
    // A request that the proxy answers by itself may end the connection: its body is not read.
    let is_refused = responses.last().is_some_and(|(_, number)| number.is_none());
    if closes && !(is_closed && (responses.len() == requests.len() || is_refused)) {
        let (sent, read) = (requests.len(), responses.len());
        return Err(format!(
            "{sent} requests have {read} responses, and the connection is closed: {is_closed}"
        ));
    }
    Ok(())
}

/// A proxy of everything to an upstream.
fn proxy(site: &Site, upstream: SocketAddr) -> Web {
    let config = site.beside("proxy.toml");
    let proxy =
        format!("[[proxy]]\npath = '/'\nupstreams = ['http://{upstream}']\nresponse-timeout = '60s'\n");
    std::fs::write(&config, proxy).unwrap();
    Web::run(tests::web::command().args(["-t", "1", "-l", "127.0.0.1:0", "--config", text(&config)]))
}

fn take(log: &Mutex<Log>, seed: u64) -> Vec<Received> {
    let mut log = log.lock().unwrap();
    assert!(log.wrong.is_empty(), "LULL_SEED={seed} or one before: {:#?}", log.wrong);
    log.received.remove(&IpAddr::from(client(seed)).to_string()).unwrap_or_default()
}

#[test]
fn random_bytes_are_the_same_requests_to_an_upstream() {
    let (site, (address, log)) = (Site::new(), upstream());
    let server = proxy(&site, address);
    let seeds = seeds(SEQUENCES);
    let (mut sent, mut forwarded, mut late) = (0, 0, 0);
    for seed in seeds.clone() {
        let mut random = Random::new(seed);
        let bytes = sequence(&mut random, seed);
        let (requests, closes) = requests_in(&bytes);
        let stream = connect(server.address(), client(seed));
        let (answer, is_closed) = converse(&mut random, stream, &bytes, closes);
        let received = take(&log, seed);
        if let Err(problem) = compare(&bytes, &received, &answer, is_closed) {
            panic!(
                "LULL_SEED={seed} LULL_SEQUENCES=1: {problem}\nsent:\n{}\nreceived: {received:#?}\nanswer:\n{}",
                bytes.escape_ascii(),
                answer.escape_ascii()
            );
        }
        sent += requests.len();
        forwarded += received.len();
    }
    // Requests of clients that had gone: as many as have reached the upstream when the proxy has
    // ended.
    drop(server);
    let mut last = TcpStream::connect(address).unwrap();
    last.shutdown(std::net::Shutdown::Write).unwrap();
    last.read_to_end(&mut Vec::new()).unwrap();
    // All connections before it were accepted, each with a thread that has the log, as this one and
    // that of the listener.
    wait_until("the upstream has read them all", || Arc::strong_count(&log) == 2);
    for seed in seeds.clone() {
        for received in take(&log, seed) {
            let bytes = sequence(&mut Random::new(seed), seed);
            let (requests, _) = requests_in(&bytes);
            let is_sent = requests.iter().any(|(request, is_whole)| is_same(&received, request, *is_whole));
            assert!(is_sent, "LULL_SEED={seed}: {received:?}");
            late += 1;
        }
    }
    assert!(log.lock().unwrap().received.is_empty(), "requests of nobody");
    println!("{sent} requests, {forwarded} of which reached the upstream, and {late} later");
    let count = seeds.end - seeds.start;
    assert!(count < SEQUENCES || forwarded as u64 > count, "too few reach the upstream to compare");
}

/// A request whose body looks like another request if its head is skipped.
const NEXT: &str =
    "POST /next HTTP/1.1\r\nhost: a\r\ncontent-length: 35\r\n\r\nGET /never HTTP/1.1\r\nhost: abcd\r\n\r\n";

#[test]
fn nothing_is_read_after_trailers_or_an_unread_chunked_body() {
    const BARE_LF: &str = "5\r\nhello\r\n0\r\n\n";
    let (site, (address, log)) = (Site::new(), upstream());
    let server = proxy(&site, address);
    let cases = [
        ("POST", "5\r\nhello\r\n0\r\n\r\n", &["/first", "/next"][..]),
        ("POST", "0\r\n\r\n", &["/first", "/next"]),
        ("POST", BARE_LF, &["/first"]),
        ("POST", "0\r\nx: y\n\r\n", &["/first"]),
        ("POST", "0\r\nx: y\r\n\r\n", &["/first"]),
        // The proxy answers without reading the body.
        ("TRACE", BARE_LF, &[]),
        ("TRACE", "0\r\n\r\n", &[]),
    ];
    for (number, (method, body, targets)) in (1 << 21..).zip(cases) {
        let head = format!("{method} /first HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
        let mut stream = connect(server.address(), client(number));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("{head}{body}{NEXT}").as_bytes()).unwrap();
        let is_kept = targets.len() == 2;
        if is_kept {
            // Nothing else would end it.
            let end = "GET /end HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
            stream.write_all(end.as_bytes()).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let received = take(&log, number);
        let mut found: Vec<&str> = received.iter().map(|it| it.request.target.as_str()).collect();
        assert_eq!(
            found.pop_if(|target| *target == "/end").is_some(),
            is_kept,
            "{method} {body:?}: {answer}"
        );
        assert_eq!(found, targets, "{method} {body:?}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), if is_kept { 3 } else { 1 }, "{answer}");
        assert!(answer.contains("connection: close"), "{method} {body:?}: {answer}");
    }
}

#[test]
fn nothing_is_read_after_a_chunked_body_that_is_answered_before_its_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let site = Site::new();
    let server = proxy(&site, listener.local_addr().unwrap());
    // Answers as soon as the first chunk has come.
    let upstream = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut received, mut part) = (Vec::new(), [0; 4096]);
        let mut is_answered = false;
        while let Ok(length @ 1..) = stream.read(&mut part) {
            received.extend_from_slice(&part[..length]);
            if !is_answered && received.ends_with(b"hello\r\n") {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
                is_answered = true;
            }
        }
        String::from_utf8(received).unwrap()
    });
    let mut stream = server.connect();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "POST /first HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = vec![0; 17];
    stream.read_exact(&mut answer).unwrap();
    // The server may have closed the connection already.
    let _ = stream.write_all(format!("0\r\n\n{NEXT}").as_bytes());
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("connection: close"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    drop(server);
    assert!(!upstream.join().unwrap().contains("/ne"));
}

/// A stream's request.
#[derive(Debug)]
struct Sent {
    request: Request,
    ended: bool,
}

/// A field without the tables of HPACK.
fn field(name: &str, value: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
    [&[0, length(name.as_bytes())], name.as_bytes(), &[length(value)], value].concat()
}

/// Fields that HTTP/1 would take for something else, and harmless ones.
const HTTP_2_FIELDS: &[(&str, &[u8])] = &[
    ("x", b"y"),
    ("cookie", b"a=1"),
    ("cookie", b"b=2; c"),
    ("te", b"trailers"),
    ("te", b"chunked"),
    ("host", b"b"),
    ("host", b"a\r\nx: y"),
    ("content-length", b"0"),
    ("content-length", b"5"),
    ("content-length", b"+5"),
    ("content-length", b"5, 5"),
    ("transfer-encoding", b"chunked"),
    ("transfer_encoding", b"chunked"),
    ("connection", b"close"),
    ("connection", b"transfer-encoding"),
    ("upgrade", b"websocket"),
    ("keep-alive", b"5"),
    ("expect", b"100-continue"),
    ("x-forwarded-for", b"6.6.6.6"),
    ("x", b"y\r\ntransfer-encoding: chunked"),
    ("x", b"y\r\n\r\nGET /never HTTP/1.1\r\nhost: a\r\n\r\n"),
    ("x", b"y\n z"),
    ("x", b"\0"),
    ("x\r\ntransfer-encoding", b"chunked"),
    ("transfer-encoding: chunked\r\nx", b"y"),
    ("x y", b"z"),
    ("x:", b"z"),
    ("X", b"y"),
    ("", b"y"),
    (":path", b"/never"),
    (":authority", b"b"),
    (":unknown", b"x"),
];

/// The frames of a stream, and the request that they are.
fn stream(random: &mut Random, number: u32, name: &str) -> (Vec<u8>, Sent) {
    let is_plain = random.below(2) == 0;
    let odd = |random: &mut Random| !is_plain && random.below(8) == 0;
    let method = random.of(&["GET", "GET", "POST", "POST", "PUT", "HEAD", "OPTIONS"]);
    let method = if odd(random) {
        random.of(&["TRACE", "CONNECT", "GET / HTTP/1.1\r\nx:", "", "g t"])
    } else {
        method
    };
    let path = match if is_plain { 9 } else { random.below(16) } {
        0 => format!("/{name} HTTP/1.1\r\nhost: b\r\n\r\nGET /never"),
        1 => format!("http://b/{name}"),
        2 => format!("/{name}#f"),
        3 => format!("/{name}?http://a/b"),
        4 => format!("/%2e%2e/{name}"),
        5 => name.to_owned(),
        6 => "*".to_owned(),
        7 => String::new(),
        _ => format!("/{name}"),
    };
    let authority = if odd(random) { random.of(&["a\r\nx: y", "u@a", "", "a b", "a/b"]) } else { "a" };
    let scheme = if odd(random) { random.of(&["https", "http://b/x?", ""]) } else { "http" };
    let mut block = [
        field(":method", method.as_bytes()),
        field(":scheme", scheme.as_bytes()),
        field(":authority", authority.as_bytes()),
        field(":path", path.as_bytes()),
    ]
    .concat();
    let body = body(random, name);
    if random.below(3) == 0 {
        block.extend(field("content-length", body.len().to_string().as_bytes()));
    }
    for _ in 0..if is_plain { 0 } else { random.below(3) } {
        let (name, value) = random.of(HTTP_2_FIELDS);
        block.extend(field(name, value));
    }
    // How it ends: by its head, its data, its trailers, or not at all.
    let ends = if body.is_empty() { random.below(4) } else { 1 + random.below(3) };
    let ends = if ends == 3 && random.below(3) > 0 { 1 } else { ends };
    let mut sent = frame(HEADERS, END_HEADERS | if ends == 0 { END_STREAM } else { 0 }, number, &block);
    if ends > 0 {
        let (first, second) = body.split_at(random.below(body.len() + 1));
        sent.extend(frame(DATA, 0, number, first));
        sent.extend(frame(DATA, if ends == 1 { END_STREAM } else { 0 }, number, second));
    }
    if ends == 2 {
        let (name, value) = random.of(HTTP_2_FIELDS);
        sent.extend(frame(HEADERS, END_HEADERS | END_STREAM, number, &field(name, value)));
    }
    let request = Request { method: method.to_owned(), target: path, fields: Vec::new(), body };
    (sent, Sent { request, ended: ends < 3 })
}

/// How many streams have ended, one way or the other; all if the connection has.
fn ended(mut answer: &[u8]) -> usize {
    let mut ended = BTreeSet::new();
    while let Some((head, rest)) = answer.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        match (head[3], head[4] & END_STREAM) {
            (GOAWAY, _) => return usize::MAX,
            (RST_STREAM, _) | (DATA | HEADERS, END_STREAM) => drop(ended.insert(&head[5..])),
            _ => {}
        }
        answer = rest.get(length..).unwrap_or_default();
    }
    ended.len()
}

#[test]
fn random_requests_of_http_2_are_the_same_to_an_upstream() {
    let (site, (address, log)) = (Site::new(), upstream());
    let server = proxy(&site, address);
    let seeds = seeds(SEQUENCES);
    let (mut count, mut forwarded) = (0, 0);
    let mut check = |seed: u64, streams: &mut Vec<Sent>| {
        for received in take(&log, seed) {
            // With a length it is whole before the stream is ended.
            let has_length = received.request.values("content-length").next().is_some();
            let is_sent = |sent: &Sent| is_same(&received, &sent.request, sent.ended || has_length);
            let found = streams.iter().position(is_sent);
            let found = found.unwrap_or_else(|| {
                panic!("LULL_SEED={seed} LULL_SEQUENCES=1: {received:?}, of {streams:#?}")
            });
            streams.remove(found);
            forwarded += 1;
        }
    };
    for seed in seeds.clone() {
        let mut random = Random::new(seed);
        let (mut sent, mut streams) = (PREFACE.to_vec(), Vec::new());
        for index in 0..=random.below(3) as u32 {
            let (frames, stream) = stream(&mut random, 2 * index + 1, &format!("h{seed}-{index}"));
            sent.extend(frames);
            streams.push(stream);
        }
        count += streams.len();
        let wanted = streams.iter().filter(|stream| stream.ended).count();
        let mut connection = connect(server.address(), client(seed));
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = connection.write_all(&sent);
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        while ended(&answer) < wanted {
            match connection.read(&mut part) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    panic!("LULL_SEED={seed}: no answer to {streams:#?}")
                }
                Ok(0) | Err(_) => break,
                Ok(length) => answer.extend_from_slice(&part[..length]),
            }
        }
        drop(connection);
        check(seed, &mut streams);
    }
    println!("{count} requests, {forwarded} of which reached the upstream");
    assert!(forwarded as u64 > (seeds.end - seeds.start) / 4, "too few reach the upstream to compare");
}
