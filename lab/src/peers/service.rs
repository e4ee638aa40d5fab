//! What the servers of a comparison do.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::peer::Peer;
use super::request_shape::RequestShape;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerService {
    /// Answers so many bytes with so many bytes, without looking at them.
    #[default]
    Echo,
    Threads,
    /// Answers `GET /` with `Hello, World!`, by axum over HTTP/1.1.
    Axum,
}

const HELLO_REQUEST: &str = "GET / HTTP/1.1\r\nhost: lull\r\n\r\n";
/// The date differs, but not its length.
const HELLO_RESPONSE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 13\r\ndate: Sun, 22 Nov 2026 16:00:00 GMT\r\n\r\nHello, World!";
/// How long a server may take to answer the request that checks it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

impl PeerService {
    /// Whether this build has it: axum is an optional dependency.
    pub fn is_built(self) -> bool {
        self != Self::Axum || cfg!(feature = "adapters")
    }

    /// The runtimes of others that it is compared on.
    pub fn others(self) -> &'static [Peer] {
        match self {
            Self::Echo => &[Peer::Tokio, Peer::Monoio, Peer::Compio, Peer::BareEpoll],
            Self::Threads => &[Peer::PlainThreads],
            Self::Axum => &[Peer::Tokio],
        }
    }

    /// The sizes of a request and its reply.
    pub fn shape(self) -> RequestShape {
        match self {
            Self::Echo | Self::Threads => RequestShape::SMALL,
            Self::Axum => RequestShape { request: HELLO_REQUEST.len(), reply: HELLO_RESPONSE.len() },
        }
    }

    /// The text of its only request; `None` where any bytes are one.
    pub fn text(self) -> Option<&'static str> {
        (self == Self::Axum).then_some(HELLO_REQUEST)
    }

    /// Asks a server once, if its replies have a given size: a load counts bytes, and would wait for ever for one that
    /// never comes.
    pub(crate) fn check(self, server: SocketAddr) -> io::Result<()> {
        let Some(text) = self.text() else { return Ok(()) };
        let mut stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        stream.write_all(text.as_bytes())?;
        let mut reply = vec![0; self.shape().reply];
        stream.read_exact(&mut reply)?;
        let reply = String::from_utf8_lossy(&reply);
        let (start, end) = ("HTTP/1.1 200 OK\r\n", "\r\n\r\nHello, World!");
        if reply.starts_with(start) && reply.ends_with(end) {
            return Ok(());
        }
        Err(io::Error::other(format!("the server answered {reply:?} to {text:?}")))
    }
}
