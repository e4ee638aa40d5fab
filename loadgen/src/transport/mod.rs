//! Connections to servers: TCP, Unix sockets, TLS and UDP.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use net::{TcpStream, UnixStream};

use crate::address::Address;
use crate::config::{Config, Credentials, Protocol, TlsFiles};
use crate::error::Error;
use crate::protocol::ResponseDecoder;
use crate::protocol::binary::authenticate;
use crate::protocol::message::{Response, ResponseSink};

/// What the transports have in common.
pub(crate) trait Transport: AsyncBufRead + AsyncWrite + Unpin {}

impl<T: AsyncBufRead + AsyncWrite + Unpin> Transport for T {}

pub(crate) type BoxedTransport = Box<dyn Transport>;

/// How long connecting and authenticating may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes connections with the transport options of a run.
#[derive(Debug)]
pub(crate) struct Connector {
    config: Config,
    /// The TLS connector, and the name in the servers' certificates unless it is their address.
    tls: Option<(adapters::tls::Connector, Option<String>)>,
}

impl Connector {
    /// # Errors
    /// Returns [`Error::Config`] if the certificates or keys can't be used.
    pub(crate) fn new(config: &Config) -> Result<Self, Error> {
        Ok(Self { config: config.clone(), tls: config.tls.as_ref().map(tls_connector).transpose()? })
    }

    pub(crate) async fn connect(&self, server: &Address) -> Result<BoxedTransport, Error> {
        let failed = |source| Error::Connect { server: server.clone(), source };
        let connected = async {
            let mut stream = self.open(server).await.map_err(failed)?;
            if let Some(credentials) = &self.config.credentials {
                log_in(&mut stream, self.config.protocol == Protocol::Binary, credentials, server).await?;
            }
            Ok(stream)
        };
        let timed_out = || failed(io::Error::new(io::ErrorKind::TimedOut, "no response within 5 s"));
        runtime::timeout(CONNECT_TIMEOUT, connected).await.unwrap_or_else(|_| Err(timed_out()))
    }

    async fn open(&self, server: &Address) -> io::Result<BoxedTransport> {
        let stream = match server {
            Address::Tcp(address) => TcpStream::connect(*address).await?,
            Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
        };
        stream.set_nodelay(self.config.nodelay)?;
        if let (Some((tls, name)), Address::Tcp(address)) = (&self.tls, server) {
            let name = name.clone().unwrap_or_else(|| address.ip().to_string());
            return Ok(Box::new(tls.connect(&name, stream).await?));
        }
        Ok(Box::new(stream))
    }

    pub(crate) fn datagram_socket(server: &Address) -> Result<UdpSocket, Error> {
        let Address::Tcp(address) = server else {
            return Err(Error::Config("UDP needs an IP address, not a Unix socket".to_owned()));
        };
        let unspecified: std::net::IpAddr = match address {
            std::net::SocketAddr::V4(_) => [0_u8; 4].into(),
            std::net::SocketAddr::V6(_) => [0_u8; 16].into(),
        };
        let socket = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        socket.map_err(|source| Error::Connect { server: server.clone(), source })
    }
}

fn tls_connector(files: &TlsFiles) -> Result<(adapters::tls::Connector, Option<String>), Error> {
    use adapters::tls::{Certificates, Connector};
    let reject = |reason: &str| Err(Error::Config(reason.to_owned()));
    let mut builder = Connector::builder();
    if files.skip_verification {
        builder = builder.accept_any_certificate();
    } else if let Some(path) = &files.ca_certificates {
        builder = builder.authorities(path);
    }
    builder = match (&files.certificate, &files.key) {
        (Some(chain), Some(key)) => builder.client_certificate(Certificates::new(chain, key)),
        (None, None) => builder,
        _ => return reject("a client certificate and its key have to be given together"),
    };
    let connector = builder.open().map_err(|error| Error::Config(error.to_string()))?;
    Ok((connector, files.server_name.clone()))
}

/// Sends the credentials: in the text protocol as the `set` that memcached's `-Y` expects, in the
/// binary protocol by SASL (memcached's `doc/protocol.txt`, "Authentication"; "SASLHowto" in its
/// wiki).
async fn log_in(
    stream: &mut BoxedTransport,
    binary: bool,
    credentials: &Credentials,
    server: &Address,
) -> Result<(), Error> {
    let Credentials { user, password } = credentials;
    let mut out = Vec::new();
    if binary {
        authenticate(user, password, &mut out);
    } else {
        let line = format!("{user} {password}");
        out.extend_from_slice(format!("set auth 0 0 {}\r\n{line}\r\n", line.len()).as_bytes());
    }
    stream.write_all(&out).await.map_err(Error::Connection)?;
    stream.flush().await.map_err(Error::Connection)?;
    let (mut decoder, mut first, mut buffer) = (
        ResponseDecoder::new(if binary { Protocol::Binary } else { Protocol::Text }),
        FirstResponse(None),
        [0; 1024],
    );
    while first.0.is_none() {
        let length = stream.read(&mut buffer).await.map_err(Error::Connection)?;
        if length == 0 {
            break;
        }
        decoder.feed(&buffer[..length], &mut first)?;
    }
    match first.0 {
        Some(Response::Done) => Ok(()),
        _ => Err(Error::Refused { server: server.clone(), user: user.clone() }),
    }
}

struct FirstResponse(Option<Response>);

impl ResponseSink for FirstResponse {
    fn response(&mut self, response: Response) -> Result<(), Error> {
        self.0 = self.0.or(Some(response));
        Ok(())
    }
}
