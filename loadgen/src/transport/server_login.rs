//! Authentication of a new connection.

use futures_util::{AsyncReadExt, AsyncWriteExt};

use crate::config::Credentials;
use crate::error::Error;
use crate::protocol::binary::requests::authenticate;
use crate::protocol::response::{Response, ResponseSink};
use crate::protocol::response_decoder::ResponseDecoder;
use crate::transport::address::Address;
use crate::transport::stream::BoxedTransport;

/// Sends the credentials: in the text protocol as the `set` that memcached's `-Y` expects, in the binary
/// protocol by SASL (memcached's `doc/protocol.txt`, "Authentication"; "SASLHowto" in its wiki).
pub(super) async fn log_in(
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
    let (mut decoder, mut first, mut buffer) = (ResponseDecoder::new(binary), FirstResponse(None), [0; 1024]);
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
