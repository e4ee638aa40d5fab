//! Authenticated, sequence-numbered messages (HMAC-SHA256) over TCP.
//!
//! Each side begins with a greeting that contains its protocol version and a nonce. The session key
//! is derived from the secret and both nonces. Every message carries an HMAC over its direction,
//! sequence number and contents, so messages can't be forged, replayed, dropped or reflected.

use std::io;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use hmac::{Hmac, KeyInit, Mac};
use net::{OwnedReadHalf, OwnedWriteHalf, Tcp, TcpKeepalive, TcpStream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;

use crate::error::Error;

type HmacSha256 = Hmac<Sha256>;

const MAGIC: &[u8; 8] = b"loadgen\0";
/// Version of the messages. Incremented with each change to them.
const VERSION: u32 = 2;
pub(super) const NONCE: usize = 32;
pub(super) const GREETING: usize = 8 + 4 + NONCE;
const TAG: usize = 32;
/// What precedes a message: its length and its tag.
const HEAD: usize = 4 + TAG;
/// The least length of a secret, in bytes. Each message can be used to test guesses, so a secret
/// must not be guessable.
const SHORTEST_SECRET: usize = 16;

/// The longest message, in bytes. The measurement of an hour is shorter.
const LONGEST: usize = 1 << 30;
/// The longest first message, in bytes: an unauthenticated peer can't make this side allocate more.
pub(super) const LONGEST_UNAUTHENTICATED: usize = 4 << 10;
const GREETING_TIMEOUT: Duration = Duration::from_secs(3);

/// Idle time before a keepalive probe.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long sent data may remain unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why communication with the peer failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it doesn't speak the protocol of loadgen agents")]
    UnknownProtocol,
    #[error(
        "it speaks version {theirs} of the agents' protocol instead of {VERSION}: use the same version of loadgen on all machines"
    )]
    Version { theirs: u32 },
    #[error("its secret differs")]
    SecretMismatch,
    #[error("invalid message: {0}")]
    InvalidMessage(String),
    #[error("{0}")]
    Refused(String),
    #[error("no message for {} s", .0.as_secs())]
    Timeout(Duration),
}

/// Refuses a secret that may be guessed. Without a secret, both sides use the empty one.
pub(crate) fn check_secret(secret: Option<&str>) -> Result<(), Error> {
    match secret {
        Some(secret) if !secret.is_empty() && secret.len() < SHORTEST_SECRET => Err(Error::Config(format!(
            "the secret has {} bytes, and may be guessed: it needs at least {SHORTEST_SECRET} (--secret-file; for example \
             from `openssl rand -hex 16`)",
            secret.len()
        ))),
        _ => Ok(()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Coordinator,
    Agent,
}

fn new_hmac(key: &[u8]) -> HmacSha256 {
    // RFC 2104 hashes long keys and pads short ones.
    HmacSha256::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

#[derive(Debug)]
struct MessageAuthenticator {
    key: [u8; TAG],
    direction: u8,
    sequence_number: u64,
}

impl MessageAuthenticator {
    fn next(&mut self, message: &[u8]) -> HmacSha256 {
        let mut hmac = new_hmac(&self.key);
        hmac.update(&[self.direction]);
        hmac.update(&self.sequence_number.to_le_bytes());
        hmac.update(message);
        self.sequence_number += 1;
        hmac
    }
}

#[derive(Debug)]
pub(crate) struct Sender {
    stream: OwnedWriteHalf<Tcp>,
    sealer: MessageSealer,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    stream: OwnedReadHalf<Tcp>,
    reader: MessageReader,
    /// When bytes were last received.
    last_received: Instant,
}

/// Takes messages out of the received bytes.
#[derive(Debug)]
pub(super) struct MessageReader {
    authenticator: MessageAuthenticator,
    /// Received bytes of the next message. They are kept if `receive` is cancelled.
    buffered: Vec<u8>,
    /// Limit for the length of the next message.
    longest: usize,
}

impl MessageReader {
    fn new(authenticator: MessageAuthenticator) -> Self {
        Self { authenticator, buffered: Vec::new(), longest: LONGEST_UNAUTHENTICATED }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffered.extend_from_slice(bytes);
    }

    /// The next message, `None` if it was not received completely.
    pub(super) fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ChannelError> {
        let Some((head, text)) = self.buffered.split_at_checked(HEAD) else { return Ok(None) };
        let (length, tag) = head.split_at(4);
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if length > self.longest {
            // A peer with the right secret doesn't send this.
            return Err(ChannelError::SecretMismatch);
        }
        let Some(text) = text.get(..length) else { return Ok(None) };
        self.authenticator.next(text).verify_slice(tag).map_err(|_| ChannelError::SecretMismatch)?;
        self.longest = LONGEST;
        let message =
            serde_json::from_slice(text).map_err(|error| ChannelError::InvalidMessage(error.to_string()));
        self.buffered.drain(..HEAD + length);
        message.map(Some)
    }
}

pub(super) fn parse_greeting(greeting: &[u8; GREETING]) -> Result<[u8; NONCE], ChannelError> {
    let (magic, rest) = greeting.split_at(MAGIC.len());
    let (version, nonce) = rest.split_at(4);
    if magic != MAGIC {
        return Err(ChannelError::UnknownProtocol);
    }
    let version = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
    if version != VERSION {
        return Err(ChannelError::Version { theirs: version });
    }
    nonce.try_into().map_err(|_| ChannelError::UnknownProtocol)
}

/// What the two sides of a channel seal and verify messages with.
pub(super) struct SessionKey([u8; TAG]);

impl SessionKey {
    pub(super) fn derive(secret: &[u8], coordinators: &[u8; NONCE], agents: &[u8; NONCE]) -> Self {
        let mut key = new_hmac(secret);
        key.update(MAGIC);
        key.update(coordinators);
        key.update(agents);
        Self(key.finalize().into_bytes().into())
    }

    fn authenticator(&self, sender: Role) -> MessageAuthenticator {
        MessageAuthenticator { key: self.0, direction: u8::from(sender == Role::Agent), sequence_number: 0 }
    }

    pub(super) fn sealer(&self, sender: Role) -> MessageSealer {
        MessageSealer(self.authenticator(sender))
    }

    pub(super) fn reader(&self, sender: Role) -> MessageReader {
        MessageReader::new(self.authenticator(sender))
    }
}

/// Puts a head with a tag before messages.
#[derive(Debug)]
pub(super) struct MessageSealer(MessageAuthenticator);

impl MessageSealer {
    pub(super) fn seal(&mut self, text: &[u8]) -> Result<Vec<u8>, ChannelError> {
        let tag = self.0.next(text).finalize().into_bytes();
        let length = u32::try_from(text.len()).ok().filter(|length| *length as usize <= LONGEST);
        let length =
            length.ok_or_else(|| ChannelError::InvalidMessage("the message is too long".to_owned()))?;
        Ok([&length.to_le_bytes()[..], &tag, text].concat())
    }
}

/// Exchanges greetings and derives the session key.
pub(crate) async fn open(
    mut stream: TcpStream,
    secret: &[u8],
    role: Role,
) -> Result<(Sender, Receiver), ChannelError> {
    // Detect a peer that has vanished.
    stream.set_keepalive(Some(TcpKeepalive::new().with_time(KEEPALIVE)))?;
    stream.set_user_timeout(Some(USER_TIMEOUT))?;
    let mine: [u8; NONCE] = rand::random();
    let mut greeting = [0; GREETING];
    let greet = async {
        let hello = [&MAGIC[..], &VERSION.to_le_bytes(), &mine].concat();
        stream.write_all(&hello).await?;
        stream.read_exact(&mut greeting).await
    };
    match runtime::timeout(GREETING_TIMEOUT, greet).await {
        Ok(greeted) => greeted?,
        Err(_) => return Err(ChannelError::UnknownProtocol),
    }
    let theirs = parse_greeting(&greeting)?;
    let (coordinators, agents, other) = match role {
        Role::Coordinator => (&mine, &theirs, Role::Agent),
        Role::Agent => (&theirs, &mine, Role::Coordinator),
    };
    let key = SessionKey::derive(secret, coordinators, agents);
    let (read, write) = stream.into_split();
    let sender = Sender { stream: write, sealer: key.sealer(role) };
    Ok((sender, Receiver { stream: read, reader: key.reader(other), last_received: Instant::now() }))
}

impl Sender {
    /// Tells a peer that is not authenticated that the secrets differ: it can't verify this
    /// message. Nothing is sealed for it, as a known text sealed with the secret would let it try
    /// secrets without being seen.
    pub(crate) async fn refuse(&mut self) -> Result<(), ChannelError> {
        Ok(self.stream.write_all(&[0; HEAD]).await?)
    }

    pub(crate) async fn send(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        let text =
            serde_json::to_vec(message).map_err(|error| ChannelError::InvalidMessage(error.to_string()))?;
        let sealed = self.sealer.seal(&text)?;
        Ok(self.stream.write_all(&sealed).await?)
    }
}

impl Receiver {
    /// Receives the next message. Cancel safe.
    pub(crate) async fn receive<M: DeserializeOwned>(&mut self) -> Result<M, ChannelError> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(message) = self.reader.next()? {
                return Ok(message);
            }
            let length = self.stream.read(&mut buffer).await?;
            if length == 0 {
                return Err(ChannelError::Io(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it closed the connection",
                )));
            }
            self.last_received = Instant::now();
            self.reader.push(&buffer[..length]);
        }
    }

    /// The time since bytes were last received, also if a long message is still incomplete.
    pub(crate) fn idle_time(&self) -> Duration {
        self.last_received.elapsed()
    }

    /// Receives the next message, or fails with [`ChannelError::Timeout`].
    pub(crate) async fn receive_within<M: DeserializeOwned>(
        &mut self,
        timeout: Duration,
    ) -> Result<M, ChannelError> {
        runtime::timeout(timeout, self.receive()).await.unwrap_or(Err(ChannelError::Timeout(timeout)))
    }
}
