//! Entry points for fuzzing. Compiled with `--cfg fuzzing` only.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::authenticated_channel::{
    ChannelError, GREETING, LONGEST_UNAUTHENTICATED, MessageReader, NONCE, Role, SessionKey, parse_greeting,
};
use super::messages::{AgentResponse, CoordinatorRequest};

/// What happens to a message on its way.
#[derive(Debug, Clone, Copy)]
pub enum Tampering {
    /// It arrives as it was sealed.
    None,
    /// A bit is changed, counted from the start of the message's head, modulo its length.
    ChangedBit(u32),
    /// The receiver itself has sealed it: its own message is sent back.
    Reflected,
    /// The message before it is sent in its place.
    Repeated,
}

/// Parses the greeting of a peer: protocol, version and nonce.
///
/// # Panics
/// If it is accepted, but is not of this protocol and version.
pub fn greet(greeting: &[u8]) {
    let Ok(greeting) = <&[u8; GREETING]>::try_from(greeting) else { return };
    match parse_greeting(greeting) {
        Ok(nonce) => {
            assert_eq!(nonce, greeting[GREETING - NONCE..]);
            assert!(greeting.starts_with(b"loadgen\0"));
        }
        Err(ChannelError::UnknownProtocol) => assert!(!greeting.starts_with(b"loadgen\0")),
        Err(error) => assert!(matches!(error, ChannelError::Version { .. }), "{error}"),
    }
}

/// Sends messages to an agent, or to a coordinator, in chunks: JSON, or any other bytes. Nothing
/// that they ask for is done.
///
/// # Panics
/// If a message is accepted that was tampered with, or one is refused that was not. Also if
/// `chunk_size` is 0.
pub fn receive(to_agent: bool, messages: &[(&[u8], Tampering)], chunk_size: usize) {
    if to_agent {
        exchange::<CoordinatorRequest>(Role::Coordinator, Role::Agent, messages, chunk_size);
    } else {
        exchange::<AgentResponse>(Role::Agent, Role::Coordinator, messages, chunk_size);
    }
}

fn exchange<M: Serialize + DeserializeOwned>(
    sender: Role,
    receiver: Role,
    messages: &[(&[u8], Tampering)],
    chunk_size: usize,
) {
    let key = SessionKey::derive(b"secret", &[1; NONCE], &[2; NONCE]);
    let (mut sealer, mut reflector, mut reader) =
        (key.sealer(sender), key.sealer(receiver), key.reader(sender));
    let mut before = Vec::new();
    for (text, tampering) in messages {
        let seal = if matches!(tampering, Tampering::Reflected) { &mut reflector } else { &mut sealer };
        let Ok(mut sealed) = seal.seal(text) else { return };
        let genuine = match tampering {
            Tampering::None => true,
            Tampering::ChangedBit(bit) => {
                let byte = *bit as usize / 8 % sealed.len();
                sealed[byte] ^= 1 << (bit % 8);
                false
            }
            Tampering::Reflected => false,
            Tampering::Repeated if before.is_empty() => true,
            Tampering::Repeated => {
                sealed.clone_from(&before);
                false
            }
        };
        match deliver::<M>(&mut reader, &sealed, chunk_size) {
            Ok(Some(message)) => {
                assert!(genuine, "{tampering:?} was not noticed");
                check(text, &message);
            }
            // The length that it seems to have is not the one that was sent.
            Ok(None) => return assert!(!genuine, "a whole message is incomplete"),
            Err(ChannelError::InvalidMessage(_)) => {
                return assert!(genuine && serde_json::from_slice::<M>(text).is_err());
            }
            Err(error) => {
                let unauthenticated = before.is_empty() && text.len() > LONGEST_UNAUTHENTICATED;
                return assert!(!genuine || unauthenticated, "{error}");
            }
        }
        before = sealed;
    }
}

/// A received message is the one that was sent, and can be sent on.
fn check<M: Serialize + DeserializeOwned>(text: &[u8], message: &M) {
    let write = |message: &M| serde_json::to_vec(message).expect("what was read can be written");
    let sent: M = serde_json::from_slice(text).expect("a message that was accepted");
    let written = write(message);
    assert_eq!(written, write(&sent));
    assert!(serde_json::from_slice::<M>(&written).is_ok());
    validate_load(&written);
}

/// As an agent does before it prepares a load.
fn validate_load(request: &[u8]) {
    if let Ok(CoordinatorRequest::Prepare(config, _)) = serde_json::from_slice(request) {
        let _ = config.validate();
    }
}

fn deliver<M: DeserializeOwned>(
    reader: &mut MessageReader,
    bytes: &[u8],
    chunk_size: usize,
) -> Result<Option<M>, ChannelError> {
    for chunk in bytes.chunks(chunk_size) {
        reader.push(chunk);
        if let Some(message) = reader.next()? {
            return Ok(Some(message));
        }
    }
    Ok(None)
}
