//! Messages over TCP, of which both sides know that they are the other's.
//!
//! At first each says which version it speaks and draws a number; of both numbers and the secret they make
//! the key that every message is sealed with, together with its place in the conversation and its direction:
//! none can be made up, repeated, left out or sent back.

use std::io;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use hmac::{Hmac, KeyInit, Mac};
use net::{OwnedReadHalf, OwnedWriteHalf, Tcp, TcpStream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;

type Code = Hmac<Sha256>;

/// What both sides begin with.
const MAGIC: &[u8; 8] = b"loadgen\0";
/// Of what they say to each other; another number with each change of the messages.
const VERSION: u32 = 1;
const NUMBER: usize = 32;
const GREETING: usize = 8 + 4 + NUMBER;
const SEAL: usize = 32;

/// The longest message: what an hour of measuring makes is below.
const LONGEST: usize = 1 << 30;
/// The longest first one, of which it is not known yet whose it is: a stranger gets no memory.
const LONGEST_FIRST: usize = 4 << 10;
/// A greeting that takes longer does not come.
const GREET_WITHIN: Duration = Duration::from_secs(3);

/// A connection that is silent for so long is tried, and one whose packets nobody takes for so long is gone.
const KEEPALIVE: Duration = Duration::from_secs(10);
const GONE: Duration = Duration::from_secs(30);

/// Why the other side can't be talked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it does not greet as a loadgen agent does")]
    Stranger,
    #[error(
        "it speaks version {theirs} of the agents' protocol, and this is version {VERSION}: use the same loadgen on both"
    )]
    Version { theirs: u32 },
    #[error("its secret is another one")]
    Secret,
    #[error("it said something that is not understood: {0}")]
    Message(String),
    #[error("{0}")]
    Refused(String),
    #[error("nothing was heard of it for {} s", .0.as_secs())]
    Silent(Duration),
}

/// Which side one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Master,
    Agent,
}

fn code(key: &[u8]) -> Code {
    // A key of any length will do: RFC 2104 hashes long ones and fills up short ones.
    Code::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

/// The seal's state for one direction.
#[derive(Debug)]
struct Seals {
    key: [u8; SEAL],
    direction: u8,
    count: u64,
}

impl Seals {
    fn next(&mut self, message: &[u8]) -> Code {
        let mut code = code(&self.key);
        code.update(&[self.direction]);
        code.update(&self.count.to_le_bytes());
        code.update(message);
        self.count += 1;
        code
    }
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Sender {
    stream: OwnedWriteHalf<Tcp>,
    seals: Seals,
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Receiver {
    stream: OwnedReadHalf<Tcp>,
    seals: Seals,
    /// What has come of the next message: waiting for it can be given up and taken up again.
    come: Vec<u8>,
    longest: usize,
    /// When anything came, last.
    heard: Instant,
}

/// Greets the other side, and finds out whether it speaks the same version; both then know the key.
pub(crate) async fn open(
    mut stream: TcpStream,
    secret: &[u8],
    side: Side,
) -> Result<(Sender, Receiver), Fault> {
    // A machine that has vanished says nothing: it is asked from time to time.
    stream.set_keepalive(Some(KEEPALIVE))?;
    stream.set_user_timeout(Some(GONE))?;
    let mine: [u8; NUMBER] = rand::random();
    let mut greeting = [0; GREETING];
    let greet = async {
        let hello = [&MAGIC[..], &VERSION.to_le_bytes(), &mine].concat();
        stream.write_all(&hello).await?;
        stream.read_exact(&mut greeting).await
    };
    match runtime::timeout(GREET_WITHIN, greet).await {
        Ok(greeted) => greeted?,
        Err(_) => return Err(Fault::Stranger),
    }
    let (magic, rest) = greeting.split_at(MAGIC.len());
    let (version, theirs) = rest.split_at(4);
    if magic != MAGIC {
        return Err(Fault::Stranger);
    }
    let version = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
    if version != VERSION {
        return Err(Fault::Version { theirs: version });
    }
    let mut key = code(secret);
    let (masters, agents) = if side == Side::Master { (&mine[..], theirs) } else { (theirs, &mine[..]) };
    key.update(MAGIC);
    key.update(masters);
    key.update(agents);
    let key: [u8; SEAL] = key.finalize().into_bytes().into();
    let (read, write) = stream.into_split();
    let from = |side: Side| Seals { key, direction: u8::from(side == Side::Agent), count: 0 };
    let other = if side == Side::Master { Side::Agent } else { Side::Master };
    let sender = Sender { stream: write, seals: from(side) };
    Ok((
        sender,
        Receiver {
            stream: read,
            seals: from(other),
            come: Vec::new(),
            longest: LONGEST_FIRST,
            heard: Instant::now(),
        },
    ))
}

impl Sender {
    pub(crate) async fn send(&mut self, message: &impl Serialize) -> Result<(), Fault> {
        let text = serde_json::to_vec(message).map_err(|error| Fault::Message(error.to_string()))?;
        let seal = self.seals.next(&text).finalize().into_bytes();
        let length = u32::try_from(text.len()).ok().filter(|length| *length as usize <= LONGEST);
        let length = length.ok_or_else(|| Fault::Message("it is too long to be sent".to_owned()))?;
        let all = [&length.to_le_bytes()[..], &seal, &text].concat();
        Ok(self.stream.write_all(&all).await?)
    }
}

impl Receiver {
    /// The next message. May be given up at any time: nothing is lost.
    pub(crate) async fn receive<M: DeserializeOwned>(&mut self) -> Result<M, Fault> {
        const HEAD: usize = 4 + SEAL;
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some((head, text)) = self.come.split_at_checked(HEAD) {
                let (length, seal) = head.split_at(4);
                let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
                if length > self.longest {
                    // An honest one is shorter, so the seal would be wrong as well.
                    return Err(Fault::Secret);
                }
                if let Some(text) = text.get(..length) {
                    self.seals.next(text).verify_slice(seal).map_err(|_| Fault::Secret)?;
                    self.longest = LONGEST;
                    let message =
                        serde_json::from_slice(text).map_err(|error| Fault::Message(error.to_string()));
                    self.come.drain(..HEAD + length);
                    return message;
                }
            }
            let length = self.stream.read(&mut buffer).await?;
            if length == 0 {
                return Err(Fault::Io(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it closed the connection",
                )));
            }
            self.heard = Instant::now();
            self.come.extend_from_slice(&buffer[..length]);
        }
    }

    /// For how long nothing came at all: a long message takes its time.
    pub(crate) fn silent_for(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Likewise, but not for longer than this.
    pub(crate) async fn receive_within<M: DeserializeOwned>(&mut self, time: Duration) -> Result<M, Fault> {
        runtime::timeout(time, self.receive()).await.unwrap_or(Err(Fault::Silent(time)))
    }
}
