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
pub(super) const HELLO_RESPONSE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 13\r\ndate: Sun, 22 Nov 2026 16:00:00 GMT\r\n\r\nHello, World!";
/// How long a server may take to answer the request that checks it.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

impl PeerService {
    /// Whether this build has it: axum and tonic are optional dependencies.
    pub fn is_built(self) -> bool {
        matches!(self, Self::Echo | Self::Threads) || cfg!(feature = "adapters")
    }

    /// Whether it runs on a runtime, or is compared with what runs there: threads beside Lull's tasks.
    pub fn runs_on(self, peer: Peer) -> bool {
        match self {
            Self::Echo => !peer.has_threads(),
            Self::Threads => peer.has_threads() || matches!(peer, Peer::LullUring | Peer::LullEpoll),
            _ => matches!(peer, Peer::LullUring | Peer::LullEpoll | Peer::Tokio),
        }
    }

    /// The sizes of its only request and reply; `None` where they can be chosen.
    pub fn shape(self) -> Option<RequestShape> {
        match self {
            Self::Echo | Self::Threads => None,
            Self::Axum => {
                let (request, reply) = (HELLO_REQUEST.len(), HELLO_RESPONSE.len());
                Some(RequestShape { request, reply, depth: 1 })
            }
        }
    }

    /// The text of its only request; `None` where any bytes are one.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Self::Echo | Self::Threads => None,
            Self::Axum => Some(HELLO_REQUEST),
        }
    }

    pub fn request(self, shape: RequestShape) -> Vec<u8> {
        self.text().map_or_else(|| vec![b'r'; shape.request], |text| text.as_bytes().to_vec())
    }

    /// Asks a server once, if its replies have a given size: a load counts bytes, and would wait for ever for one that
    /// never comes.
    pub(crate) fn check(self, server: SocketAddr) -> io::Result<()> {
        // The dialogues of the others end with an error.
        let (Some(shape), Some(_)) = (self.shape(), self.text()) else { return Ok(()) };
        let mut stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        stream.write_all(&self.request(shape))?;
        let mut reply = vec![0; shape.reply];
        stream.read_exact(&mut reply)?;
        let reply = String::from_utf8_lossy(&reply);
        let (start, end) = ("HTTP/1.1 200 OK\r\n", "\r\n\r\nHello, World!");
        if reply.starts_with(start) && reply.ends_with(end) {
            return Ok(());
        }
        Err(io::Error::other(format!("the server answered {reply:?} to {HELLO_REQUEST:?}")))
    }
}

impl std::fmt::Display for PeerService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Echo => "echo",
            Self::Threads => "echo, a thread for each connection",
            Self::Axum => "axum, GET / over HTTP/1.1",
        })
    }
}
