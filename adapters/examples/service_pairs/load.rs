//! A client on Lull, whichever runtime the server has: one request in flight on each connection, in
//! as few bytes and steps as the protocols allow.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::TcpStream;
use runtime::policy::Cpus;

use super::{Result, Service};

#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub service: Service,
    pub address: SocketAddr,
    pub connections: usize,
    /// Requests of this time at the beginning are not in the figures.
    pub warm_up: Duration,
    pub time: Duration,
    /// Requests a second of all connections, at random; 0: each follows the response before it.
    pub rate: f64,
}

/// Returns the figures as JSON, named as those of `loadgen`. A latency counts from when its request
/// was due.
pub(super) fn run(load: Load, core: Option<Cpus>) -> Result<String> {
    let mut builder = runtime::Builder::new().workers(1);
    if let Some(core) = core {
        builder = builder.cores(core);
    }
    builder.build()?.block_on(async {
        let mut connections = Vec::new();
        for _ in 0..load.connections {
            connections.push(Connection::open(load.service, load.address).await?);
        }
        let start = Instant::now() + load.warm_up;
        let ask = |connection| runtime::spawn(ask_repeatedly(connection, load, start));
        let asking: Vec<_> = connections.into_iter().map(ask).collect();
        let mut latencies = Vec::new();
        for connection in asking {
            latencies.extend(connection.await??);
        }
        let per_second = latencies.len() as f64 / load.time.as_secs_f64();
        latencies.sort_unstable();
        let percentile = |share: usize| {
            let at = (latencies.len() * share / 100).min(latencies.len().saturating_sub(1));
            latencies.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        Ok(format!(
            r#"{{"requests": {}, "qps": {per_second:.1}, "latency": {{"p50": {:.2}, "p99": {:.2}}}}}"#,
            latencies.len(),
            percentile(50),
            percentile(99)
        ))
    })
}

async fn ask_repeatedly(mut connection: Connection, load: Load, start: Instant) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let gap = load.connections as f64 / load.rate;
    let mut due = Instant::now();
    loop {
        if load.rate > 0.0 {
            // A Poisson process.
            due += Duration::from_secs_f64(-(1.0 - rand::random::<f64>()).ln() * gap);
            runtime::sleep_until(due.min(start + load.time)).await;
        } else {
            due = Instant::now();
        }
        if due >= start + load.time {
            return Ok(latencies);
        }
        connection.ask().await?;
        if due >= start {
            latencies.push(due.elapsed());
        }
    }
}

struct Connection {
    service: Service,
    stream: TcpStream,
    request: Vec<u8>,
    /// Of gRPC, the next call's number.
    call: u32,
    received: Vec<u8>,
}

impl Connection {
    async fn open(service: Service, address: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut received = Vec::new();
        let request = match service {
            Service::Axum | Service::Proxy(_) => format!("GET / HTTP/1.1\r\nhost: {address}\r\n\r\n").into(),
            Service::Grpc => {
                stream.write_all(&http2::opening()).await?;
                http2::call()
            }
            Service::WebSocket => {
                // The key is the one of the RFC's example: nobody checks the server's answer to it.
                let upgrade = format!(
                    "GET / HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
                );
                stream.write_all(upgrade.as_bytes()).await?;
                read_head(&mut stream, &mut received, "101").await?;
                // A binary message of 64 bytes, whose mask is zero.
                let mut frame = vec![0x82, 0x80 | 64, 0, 0, 0, 0];
                frame.resize(frame.len() + 64, b'm');
                frame
            }
        };
        Ok(Self { service, stream, request, call: 1, received })
    }

    /// Sends a request and waits for its response.
    async fn ask(&mut self) -> Result<()> {
        if self.service == Service::Grpc {
            http2::number(&mut self.request, self.call);
            self.call += 2;
        }
        self.stream.write_all(&self.request).await?;
        match self.service {
            Service::Axum | Service::Proxy(_) => {
                let length = read_head(&mut self.stream, &mut self.received, "200").await?;
                self.read(length.ok_or("a response has no content-length")?).await
            }
            Service::WebSocket => self.read(2 + 64).await,
            Service::Grpc => self.read_grpc_response().await,
        }
    }

    async fn read_grpc_response(&mut self) -> Result<()> {
        let mut message = 0;
        loop {
            self.read(http2::HEAD).await?;
            let [high, middle, low, kind, flags, ..] = *self.received else {
                return Err("a frame is short".into());
            };
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            self.read(length).await?;
            match kind {
                http2::RESET | http2::GO_AWAY => {
                    return Err("the server has ended a call or the connection".into());
                }
                http2::DATA => message += length,
                _ => {}
            }
            if matches!(kind, http2::DATA | http2::HEADERS) && flags & http2::END_STREAM != 0 {
                // A call that fails has trailers and no message.
                return if message > 0 { Ok(()) } else { Err("a call has failed".into()) };
            }
        }
    }

    async fn read(&mut self, length: usize) -> Result<()> {
        self.received.resize(length, 0);
        Ok(self.stream.read_exact(&mut self.received).await?)
    }
}

/// Reads a head of HTTP/1.1, and returns the length of the body.
async fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>, status: &str) -> Result<Option<usize>> {
    head.clear();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_until(b'\n', head).await? == 0 {
            return Err("the server has closed a connection".into());
        }
    }
    let text = std::str::from_utf8(head)?;
    if text.get(9..12) != Some(status) {
        return Err(format!("the server answered {text:?}").into());
    }
    let length = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
    };
    Ok(text.lines().find_map(length))
}

/// Frames of HTTP/2 (RFC 9113), as far as calls without TLS need them.
mod http2 {
    pub(super) const HEAD: usize = 9;
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RESET: u8 = 3;
    pub(super) const GO_AWAY: u8 = 7;
    pub(super) const END_STREAM: u8 = 1;
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    const ACKNOWLEDGED: u8 = 1;
    const END_HEADERS: u8 = 4;
    const LARGEST_WINDOW: u32 = (1 << 31) - 1;
    const FIRST_WINDOW: u32 = 65_535;
    /// A message's: not compressed, 0 bytes long.
    const MESSAGE: [u8; 5] = [0; 5];

    fn push_frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(&[kind, flags]);
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
    }

    /// What a client sends first, with a window that needs no updates, and what the server's
    /// settings are answered with.
    pub(super) fn opening() -> Vec<u8> {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        push_frame(&mut bytes, SETTINGS, 0, 0, &[]);
        push_frame(&mut bytes, WINDOW_UPDATE, 0, 0, &(LARGEST_WINDOW - FIRST_WINDOW).to_be_bytes());
        push_frame(&mut bytes, SETTINGS, ACKNOWLEDGED, 0, &[]);
        bytes
    }

    /// A call: headers of the static table, and literals that are not indexed (RFC 7541), so that
    /// each call has the same bytes.
    pub(super) fn call() -> Vec<u8> {
        let mut block = vec![0x83, 0x86];
        let mut literal = |name: &[u8], value: &str| {
            block.extend_from_slice(name);
            block.push(value.len() as u8);
            block.extend_from_slice(value.as_bytes());
        };
        literal(&[0x04], "/grpc.health.v1.Health/Check");
        literal(&[0x01], "lull");
        literal(&[0x0f, 0x10], "application/grpc");
        literal(&[0x00, 2, b't', b'e'], "trailers");
        let mut bytes = Vec::new();
        push_frame(&mut bytes, HEADERS, END_HEADERS, 1, &block);
        push_frame(&mut bytes, DATA, END_STREAM, 1, &MESSAGE);
        bytes
    }

    /// Writes a call's number into both of its frames.
    pub(super) fn number(call: &mut [u8], stream: u32) {
        let second = call.len() - HEAD - MESSAGE.len();
        for frame in [0, second] {
            call[frame + 5..frame + HEAD].copy_from_slice(&stream.to_be_bytes());
        }
    }
}
