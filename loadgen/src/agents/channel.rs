//! The messages between a coordinator and an agent: JSON over TCP, or over TLS if they have an
//! identity.
//!
//! Both sides first send a greeting with their version. A message follows its length in bytes.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use adapters::tls::{Acceptor, Certificates, ClientCertificates, Connector};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{TcpKeepalive, TcpStream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::error::Error;
use crate::run::WorkerRange;
use crate::stats::collector::Measurement;
use crate::stats::timeline::Progress;
use crate::transport::BoxedTransport;

#[derive(Debug, Serialize, Deserialize)]
pub enum CoordinatorRequest {
    Clock,
    Prepare(Box<Config>, WorkerRange),
    /// Start when the agent's clock shows this time, in nanoseconds.
    Start(u64),
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum AgentResponse {
    /// The first message of an agent that is free.
    Welcome {
        threads: usize,
        /// Share of the rate per connection.
        weight: u32,
    },
    /// The agent's clock, in nanoseconds since an arbitrary time.
    Clock(u64),
    Ready,
    /// The agent can't do what was requested.
    Failed(String),
    Running(Option<Progress>),
    Done(Box<Measurement>),
}

const MAGIC: &[u8; 8] = b"loadgen\0";
/// Version of the messages. Incremented with each change to them.
const VERSION: u32 = 4;
pub const GREETING: usize = 8 + 4;

/// The longest request, in bytes.
pub const LONGEST_REQUEST: usize = 1 << 20;
/// The longest response, in bytes. The measurement of an hour is shorter.
pub const LONGEST_RESPONSE: usize = 1 << 30;

/// How long the handshake and the greetings may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time before a keepalive probe.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long sent data may remain unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why communication with the peer failed.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}; the coordinator and its agents need copies of one file (--identity)")]
    Tls(io::Error),
    #[error(
        "it doesn't speak the protocol of loadgen agents, or it has an --identity and this side has none"
    )]
    UnknownProtocol,
    #[error(
        "it speaks version {theirs} of the agents' protocol instead of {VERSION}: use the same version of loadgen on all machines"
    )]
    Version { theirs: u32 },
    #[error("invalid message: {0}")]
    InvalidMessage(String),
    #[error("{0}")]
    Refused(String),
    #[error("no message for {} s", .0.as_secs())]
    Timeout(Duration),
}

/// The name in the certificate of an identity.
///
/// An identity is a PEM file with a certificate and its private key. Coordinator and agents have
/// the same one, and each trusts only what that key has signed.
pub const IDENTITY_NAME: &str = "loadgen-agent";

pub(super) fn acceptor(identity: &Path) -> Result<Acceptor, Error> {
    Acceptor::builder(Certificates::new(identity, identity))
        .client_certificates(identity, ClientCertificates::Required)
        .require_tls13()
        .open()
        .map_err(invalid_identity)
}

pub(super) fn connector(identity: &Path) -> Result<Connector, Error> {
    Connector::builder()
        .authorities(identity)
        .client_certificate(Certificates::new(identity, identity))
        .open()
        .map_err(invalid_identity)
}

fn invalid_identity(error: adapters::tls::Error) -> Error {
    Error::Config(format!("{error} (a file for --identity is made by --new-identity)"))
}

pub(super) struct Channel {
    stream: BoxedTransport,
    reader: MessageReader,
    /// Of any bytes, also of a message that is still incomplete.
    pub(super) last_received: Instant,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("last_received", &self.last_received).finish_non_exhaustive()
    }
}

impl Channel {
    /// The agent's side.
    pub(super) async fn accept(stream: TcpStream, tls: Option<&Acceptor>) -> Result<Self, ChannelError> {
        let encrypt = async |stream| match tls {
            Some(tls) => Ok(Box::new(tls.accept(stream).await?) as BoxedTransport),
            None => Ok(Box::new(stream) as BoxedTransport),
        };
        Self::open(stream, encrypt, LONGEST_REQUEST).await
    }

    /// The coordinator's side.
    pub(super) async fn connect(stream: TcpStream, tls: Option<&Connector>) -> Result<Self, ChannelError> {
        let encrypt = async |stream| match tls {
            Some(tls) => Ok(Box::new(tls.connect(IDENTITY_NAME, stream).await?) as BoxedTransport),
            None => Ok(Box::new(stream) as BoxedTransport),
        };
        Self::open(stream, encrypt, LONGEST_RESPONSE).await
    }

    async fn open(
        stream: TcpStream,
        encrypt: impl AsyncFnOnce(TcpStream) -> io::Result<BoxedTransport>,
        longest: usize,
    ) -> Result<Self, ChannelError> {
        let greeted = async {
            // A peer that is lost is noticed.
            stream.set_keepalive(Some(TcpKeepalive::new().with_time(KEEPALIVE)))?;
            stream.set_user_timeout(Some(USER_TIMEOUT))?;
            let mut stream = encrypt(stream).await.map_err(ChannelError::Tls)?;
            let mut theirs = [0; GREETING];
            stream.write_all(&[&MAGIC[..], &VERSION.to_le_bytes()].concat()).await?;
            stream.flush().await?;
            stream.read_exact(&mut theirs).await.map_err(|error| match error.kind() {
                // A peer that expects TLS ends the connection.
                io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                    ChannelError::UnknownProtocol
                }
                _ => error.into(),
            })?;
            check_greeting(&theirs)?;
            Ok(Self { stream, reader: MessageReader::new(longest), last_received: Instant::now() })
        };
        runtime::timeout(OPEN_TIMEOUT, greeted).await.unwrap_or(Err(ChannelError::UnknownProtocol))
    }

    pub(super) async fn send(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        self.stream.write_all(&frame(message)?).await?;
        Ok(self.stream.flush().await?)
    }

    /// Receives the next message. Cancel safe.
    pub(super) async fn receive<M: DeserializeOwned>(&mut self) -> Result<M, ChannelError> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(message) = self.reader.next()? {
                return Ok(message);
            }
            let length = self.stream.read(&mut buffer).await?;
            if length == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection").into());
            }
            self.last_received = Instant::now();
            self.reader.push(&buffer[..length]);
        }
    }

    /// Receives the next message, or fails with [`ChannelError::Timeout`].
    pub(super) async fn receive_within<M: DeserializeOwned>(
        &mut self,
        timeout: Duration,
    ) -> Result<M, ChannelError> {
        runtime::timeout(timeout, self.receive()).await.unwrap_or(Err(ChannelError::Timeout(timeout)))
    }
}

pub fn check_greeting(greeting: &[u8; GREETING]) -> Result<(), ChannelError> {
    let [magic @ .., a, b, c, d] = greeting;
    match u32::from_le_bytes([*a, *b, *c, *d]) {
        _ if magic != MAGIC => Err(ChannelError::UnknownProtocol),
        VERSION => Ok(()),
        theirs => Err(ChannelError::Version { theirs }),
    }
}

/// A message after its length.
pub fn frame(message: &impl Serialize) -> Result<Vec<u8>, ChannelError> {
    let text =
        serde_json::to_vec(message).map_err(|error| ChannelError::InvalidMessage(error.to_string()))?;
    let too_long = |_| ChannelError::InvalidMessage("the message is too long".to_owned());
    let length = u32::try_from(text.len()).map_err(too_long)?;
    Ok([&length.to_le_bytes()[..], &text].concat())
}

/// Splits received bytes into messages.
#[derive(Debug)]
pub struct MessageReader {
    buffered: Vec<u8>,
    /// Bytes of the longest message that is accepted.
    longest: usize,
}

impl MessageReader {
    pub fn new(longest: usize) -> Self {
        Self { buffered: Vec::new(), longest }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffered.extend_from_slice(bytes);
    }

    /// The next message, `None` if it was not received completely.
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ChannelError> {
        let Some((length, rest)) = self.buffered.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.longest {
            return Err(ChannelError::InvalidMessage(format!("its length is {length} bytes")));
        }
        let Some(text) = rest.get(..length) else { return Ok(None) };
        let message =
            serde_json::from_slice(text).map_err(|error| ChannelError::InvalidMessage(error.to_string()));
        self.buffered.drain(..4 + length);
        message.map(Some)
    }
}
