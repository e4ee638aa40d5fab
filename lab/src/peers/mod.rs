//! Lull beside what a user would pick instead: the same echo server on several runtimes, each a
//! process of its own on one core, loaded by one and the same client on another core, over loopback.

mod bare;
mod client;
mod compio;
mod experiment;
mod lull;
mod monoio;
mod report;
mod tokio;

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

pub use self::client::{EchoLoad, load};
pub use self::experiment::{Plan, Row, run};
pub use self::report::Report;

/// What a server is built on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// Lull on the uring driver.
    LullUring,
    /// Lull on the epoll driver.
    LullEpoll,
    /// tokio, current_thread.
    Tokio,
    /// monoio on io_uring.
    Monoio,
    /// compio on io_uring.
    Compio,
    /// A bare epoll loop without tasks: what a runtime on readiness can't go below.
    Bare,
}

impl Peer {
    /// All, in the order of the table.
    pub const ALL: [Self; 6] =
        [Self::LullUring, Self::LullEpoll, Self::Tokio, Self::Monoio, Self::Compio, Self::Bare];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::LullUring => "lull uring",
            Self::LullEpoll => "lull epoll",
            Self::Tokio => "tokio",
            Self::Monoio => "monoio",
            Self::Compio => "compio",
            Self::Bare => "bare epoll",
        }
    }

    /// Whether it is another project's runtime.
    pub fn is_other(self) -> bool {
        matches!(self, Self::Tokio | Self::Monoio | Self::Compio)
    }
}

/// What a request and its answer look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Bytes of a request.
    pub request: usize,
    /// Bytes of an answer.
    pub reply: usize,
    /// Requests that a connection has under way.
    pub depth: usize,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} B to {} B", self.request, self.reply)?;
        if self.depth > 1 { write!(f, ", {} pipelined", self.depth) } else { Ok(()) }
    }
}

/// How an echo server is to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoOrder {
    /// On what.
    pub peer: Peer,
    /// Its core.
    pub core: u32,
    /// What it answers to what.
    pub shape: Shape,
}

/// The size of the buffers that servers read into, where they have some of their own.
const READ: usize = 4096;

static ANSWERS: [u8; 64 << 10] = [b'a'; 64 << 10];

/// Counts the requests in a stream of bytes.
struct Requests {
    shape: Shape,
    partial: usize,
}

impl Requests {
    fn new(shape: Shape) -> Self {
        Self { shape, partial: 0 }
    }

    /// The answers to what came to an end with these bytes.
    fn answers(&mut self, received: usize) -> &'static [u8] {
        self.partial += received;
        let whole = self.partial / self.shape.request;
        self.partial %= self.shape.request;
        // The most that one read can hold: READ / 40 requests of 200 bytes, or a buffer of Lull's.
        &ANSWERS[..(whole * self.shape.reply).min(ANSWERS.len())]
    }
}

/// Lets this process have as many descriptors as it may.
fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}

/// Serves until the process is killed.
pub fn serve(
    order: &EchoOrder,
    ready: impl FnOnce(std::net::SocketAddr) -> io::Result<()>,
) -> io::Result<()> {
    raise_descriptor_limit()?;
    policies::Cpus::one(order.core).pin(None)?;
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.listen(4096)?;
    let listener: TcpListener = socket.into();
    ready(listener.local_addr()?)?;
    match order.peer {
        Peer::LullUring => lull::serve(listener, order.shape, runtime::DriverKind::Uring),
        Peer::LullEpoll => lull::serve(listener, order.shape, runtime::DriverKind::Epoll),
        Peer::Tokio => tokio::serve(listener, order.shape),
        Peer::Monoio => monoio::serve(listener, order.shape),
        Peer::Compio => compio::serve(listener, order.shape),
        Peer::Bare => bare::serve(&listener, order.shape),
    }
}
