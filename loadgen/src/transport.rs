//! Connections to servers: plain, over TLS, with the kernel's timestamps, and with a user's name.

use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::io::BufReader;
use futures_util::{AsyncBufRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use net::{TcpStream, UnixStream};

use crate::address::Address;
use crate::answers::{Answer, Sink};
use crate::binary;
use crate::config::{Config, Credentials, Protocol};
use crate::decoder::Decoder;
use crate::error::Error;
use crate::stamped::Stamped;
use crate::tls::Tls;

/// When the kernel received the last of what was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    /// Since 1970.
    pub(crate) at: Duration,
    /// Before it was read.
    pub(crate) age: Duration,
}

/// What was read, and when it came where the kernel says so.
pub(crate) type Chunk<'a> = (&'a [u8], Option<Stamp>);

/// A connection, whatever it goes over.
pub(crate) trait Transport: AsyncBufRead + AsyncWrite + Unpin {
    /// What there is to read. Where the kernel says when what was sent `went` out, this is told by the place
    /// of the last byte.
    fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
        went: &mut VecDeque<(u32, Duration)>,
    ) -> Poll<io::Result<Chunk<'_>>> {
        let _ = went;
        Pin::new(self).poll_fill_buf(context).map_ok(|chunk| (chunk, None))
    }

    /// Where the kernel says when what was sent went out: places are counted from the next byte on.
    fn count_from_here(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport for TcpStream {}
impl Transport for UnixStream {}
impl Transport for BufReader<futures_rustls::client::TlsStream<TcpStream>> {}

/// A connection of any kind.
pub(crate) type Wire = Box<dyn Transport>;

/// A server that takes longer to accept, or to say who may use it, is not there.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Makes connections, as a run wants them.
#[derive(Debug)]
pub(crate) struct Connector {
    nodelay: bool,
    stamps: bool,
    protocol: Protocol,
    credentials: Option<Credentials>,
    tls: Option<Tls>,
}

impl Connector {
    /// # Errors
    /// Where TLS's files can't be used.
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        Ok(Self {
            nodelay: config.nodelay,
            stamps: config.kernel_timestamps,
            protocol: config.protocol,
            credentials: config.credentials.clone(),
            tls: config.tls.as_ref().map(Tls::open).transpose()?,
        })
    }

    /// Without what only measuring needs.
    pub(crate) fn to_load(config: &Config) -> Result<Self, Error> {
        Ok(Self { nodelay: true, stamps: false, ..Self::new(config)? })
    }

    pub(crate) async fn connect(&self, server: &Address) -> Result<Wire, Error> {
        let failed = |source| Error::Connect { server: server.clone(), source };
        let connected = async {
            let mut wire = self.open(server).await.map_err(failed)?;
            if let Some(credentials) = &self.credentials {
                self.log_in(&mut wire, credentials, server).await?;
            }
            // What a request's place in the stream is counted from.
            wire.count_from_here().map_err(failed)?;
            Ok(wire)
        };
        let late = || failed(io::Error::new(io::ErrorKind::TimedOut, "no answer within 5 s"));
        runtime::timeout(CONNECT_WITHIN, connected).await.unwrap_or_else(|_| Err(late()))
    }

    async fn open(&self, server: &Address) -> io::Result<Wire> {
        let stream = match server {
            Address::Tcp(address) => TcpStream::connect(*address).await?,
            Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
        };
        stream.set_nodelay(self.nodelay)?;
        match &self.tls {
            Some(tls) => Ok(Box::new(BufReader::with_capacity(64 << 10, tls.connect(stream, server).await?))),
            None if self.stamps => Ok(Box::new(Stamped::new(stream)?)),
            None => Ok(Box::new(stream)),
        }
    }

    /// Says who asks: to a server with `-Y` by the line that looks like a `set`, in the binary protocol by
    /// SASL (memcached's `doc/protocol.txt`, "Authentication"; its wiki's "SASLHowto").
    async fn log_in(&self, wire: &mut Wire, who: &Credentials, server: &Address) -> Result<(), Error> {
        let Credentials { user, password } = who;
        let binary = self.protocol == Protocol::Binary;
        let mut out = Vec::new();
        if binary {
            binary::authenticate(user, password, &mut out);
        } else {
            let line = format!("{user} {password}");
            out.extend_from_slice(format!("set auth 0 0 {}\r\n{line}\r\n", line.len()).as_bytes());
        }
        wire.write_all(&out).await.map_err(Error::Connection)?;
        wire.flush().await.map_err(Error::Connection)?;
        let (mut decoder, mut heard, mut buffer) = (Decoder::new(binary), Heard(None), [0; 1024]);
        while heard.0.is_none() {
            let length = wire.read(&mut buffer).await.map_err(Error::Connection)?;
            if length == 0 {
                break;
            }
            decoder.feed(&buffer[..length], &mut heard)?;
        }
        match heard.0 {
            Some(Answer::Done) => Ok(()),
            _ => Err(Error::Refused { server: server.clone(), user: user.clone() }),
        }
    }

    /// A socket that sends to one server, and hears only it.
    pub(crate) fn datagrams(server: &Address) -> Result<UdpSocket, Error> {
        let Address::Tcp(address) = server else {
            return Err(Error::Config("datagrams go to addresses, not to Unix sockets".to_owned()));
        };
        let any: std::net::IpAddr = match address {
            std::net::SocketAddr::V4(_) => [0_u8; 4].into(),
            std::net::SocketAddr::V6(_) => [0_u8; 16].into(),
        };
        let socket = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        socket.map_err(|source| Error::Connect { server: server.clone(), source })
    }
}

/// One answer.
struct Heard(Option<Answer>);

impl Sink for Heard {
    fn answer(&mut self, answer: Answer) -> Result<(), Error> {
        self.0 = self.0.or(Some(answer));
        Ok(())
    }
}
