//! What a coordinator and its agents receive from each other: neither panics on any bytes, however
//! they are cut, and what is accepted can be sent on and received again. Nothing that the messages
//! ask for is done.
//!
//! The input is two bytes that choose the receiver and the size of the chunks, and then lines. A
//! line is sent as a message after its length; one that begins with `r` is sent as it is.
#![no_main]

use loadgen::fuzzing::{
    AgentResponse, ChannelError, CoordinatorRequest, GREETING, LONGEST_REQUEST, LONGEST_RESPONSE,
    MessageReader, check_greeting, frame,
};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    greet(input);
    let [receiver, chunk_size, rest @ ..] = input else { return };
    let mut bytes = Vec::new();
    for line in rest.split(|byte| *byte == b'\n') {
        match line {
            [b'r', raw @ ..] => bytes.extend_from_slice(raw),
            [_, text @ ..] => {
                bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
                bytes.extend_from_slice(text);
            }
            [] => {}
        }
    }
    let chunks = bytes.chunks(usize::from(*chunk_size) + 1);
    match receiver % 2 {
        1 => receive_requests(chunks),
        _ => receive_responses(chunks),
    }
});

/// The greeting of a peer: another protocol is refused, and this one is recognized.
fn greet(greeting: &[u8]) {
    let Ok(greeting) = <&[u8; GREETING]>::try_from(greeting) else { return };
    match check_greeting(greeting) {
        Ok(()) => assert!(greeting.starts_with(b"loadgen\0")),
        Err(ChannelError::UnknownProtocol) => assert!(!greeting.starts_with(b"loadgen\0")),
        Err(error) => assert!(matches!(error, ChannelError::Version { .. }), "{error}"),
    }
}

/// Receives chunks until a message is refused.
macro_rules! receive {
    ($chunks:expr, $longest:expr, |$message:ident: $type:ty| $use:expr) => {{
        let mut reader = MessageReader::new($longest);
        for chunk in $chunks {
            reader.push(chunk);
            loop {
                let $message: $type = match reader.next() {
                    Ok(Some(message)) => message,
                    Ok(None) => break,
                    Err(_) => return,
                };
                let framed = frame(&$message).expect("what was received can be sent");
                let mut again = MessageReader::new(usize::MAX);
                again.push(&framed);
                let received: Option<$type> = again.next().expect("what was sent can be received");
                assert_eq!(framed, frame(&received.expect("a whole message")).expect("a message"));
                $use;
            }
        }
    }};
}

fn receive_requests<'a>(chunks: impl Iterator<Item = &'a [u8]>) {
    receive!(chunks, LONGEST_REQUEST, |request: CoordinatorRequest| {
        // As an agent does before it prepares a load.
        if let CoordinatorRequest::Prepare(config, _) = request {
            let _ = config.validate();
        }
    });
}

fn receive_responses<'a>(chunks: impl Iterator<Item = &'a [u8]>) {
    receive!(chunks, LONGEST_RESPONSE, |response: AgentResponse| drop(response));
}
