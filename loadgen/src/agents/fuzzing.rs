//! Entry points for fuzzing. Compiled with `--cfg fuzzing` only.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::channel::{
    AgentResponse, ChannelError, CoordinatorRequest, GREETING, LONGEST_REQUEST, LONGEST_RESPONSE,
    MessageReader, check_greeting, frame,
};

/// Checks the greeting of a peer: protocol and version.
///
/// # Panics
/// If another protocol is accepted, or this one is not recognized.
pub fn greet(greeting: &[u8]) {
    let Ok(greeting) = <&[u8; GREETING]>::try_from(greeting) else { return };
    match check_greeting(greeting) {
        Ok(()) => assert!(greeting.starts_with(b"loadgen\0")),
        Err(ChannelError::UnknownProtocol) => assert!(!greeting.starts_with(b"loadgen\0")),
        Err(error) => assert!(matches!(error, ChannelError::Version { .. }), "{error}"),
    }
}

/// Sends bytes to an agent, or to a coordinator, in chunks, until a message is refused. Nothing that
/// the messages ask for is done.
///
/// # Panics
/// If what is accepted can't be sent on and received again. Also if `chunk_size` is 0.
pub fn receive(to_agent: bool, bytes: &[u8], chunk_size: usize) {
    if to_agent {
        receive_all(bytes, chunk_size, LONGEST_REQUEST, |request| {
            // As an agent does before it prepares a load.
            if let CoordinatorRequest::Prepare(config, _) = request {
                let _ = config.validate();
            }
        });
    } else {
        receive_all(bytes, chunk_size, LONGEST_RESPONSE, |_: AgentResponse| {});
    }
}

fn receive_all<M: Serialize + DeserializeOwned>(
    bytes: &[u8],
    chunk_size: usize,
    longest: usize,
    use_it: impl Fn(M),
) {
    let mut reader = MessageReader::new(longest);
    for chunk in bytes.chunks(chunk_size) {
        reader.push(chunk);
        loop {
            let message: M = match reader.next() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(_) => return,
            };
            let framed = frame(&message).expect("what was received can be sent");
            let mut again = MessageReader::new(usize::MAX);
            again.push(&framed);
            let received: Option<M> = again.next().expect("what was sent can be received");
            assert_eq!(framed, frame(&received.expect("a whole message")).expect("a message"));
            use_it(message);
        }
    }
}
