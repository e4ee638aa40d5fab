//! The status of a call whose connection has broken.

use std::error::Error;
use std::io;
use std::sync::Arc;

use ::tonic::{Code, Status};
use h2::Reason;
use hyper_util::client::legacy;

use crate::hyper::BoxError;

/// Gives an error of a client's connection its status. Other errors stay as they are: tonic makes a
/// status of them.
///
/// Without its feature `transport`, tonic knows neither hyper's errors nor h2's, and takes all of
/// them for `UNKNOWN`.
pub(super) fn with_status(error: BoxError) -> BoxError {
    let Some(code) = code_of_chain(&*error) else { return error };
    let mut status = Status::new(code, explained(&*error));
    status.set_source(Arc::from(error));
    status.into()
}

fn code_of_chain(error: &(dyn Error + 'static)) -> Option<Code> {
    let mut code = None;
    let mut next = Some(error);
    while let Some(error) = next {
        // The caller's own stream has ended with it, or the deadline has: tonic finds it.
        if error.is::<Status>() {
            return None;
        }
        code = code.or_else(|| code_of(error));
        next = error.source();
    }
    code
}

fn code_of(error: &(dyn Error + 'static)) -> Option<Code> {
    if let Some(error) = error.downcast_ref::<h2::Error>() {
        return Some(code_of_h2(error));
    }
    let broken = if let Some(error) = error.downcast_ref::<legacy::Error>() {
        error.is_connect()
    } else if let Some(error) = error.downcast_ref::<::hyper::Error>() {
        // Cancelled and closed: the connection broke before the request was sent. A timeout is that
        // of keep-alive pings.
        error.is_canceled() || error.is_closed() || error.is_timeout() || error.is_incomplete_message()
    } else {
        error.is::<io::Error>()
    };
    broken.then_some(Code::Unavailable)
}

/// The status of a connection's end, or of a stream's (gRPC over HTTP/2, "HTTP2 Transport Mapping",
/// "Errors").
fn code_of_h2(error: &h2::Error) -> Code {
    if error.is_io() || error.is_go_away() {
        return Code::Unavailable;
    }
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => Code::Unavailable,
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        Some(
            Reason::NO_ERROR
            | Reason::PROTOCOL_ERROR
            | Reason::INTERNAL_ERROR
            | Reason::FLOW_CONTROL_ERROR
            | Reason::SETTINGS_TIMEOUT
            | Reason::FRAME_SIZE_ERROR
            | Reason::COMPRESSION_ERROR
            | Reason::CONNECT_ERROR,
        ) => Code::Internal,
        _ => Code::Unknown,
    }
}

fn explained(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some errors contain the text of their cause.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(error: impl Into<BoxError>) -> Option<Code> {
        with_status(error.into()).downcast_ref::<Status>().map(Status::code)
    }

    #[test]
    fn streams_that_were_reset_have_the_status_of_their_code() {
        let codes = [
            (Reason::REFUSED_STREAM, Code::Unavailable),
            (Reason::CANCEL, Code::Cancelled),
            (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
            (Reason::INADEQUATE_SECURITY, Code::PermissionDenied),
            (Reason::NO_ERROR, Code::Internal),
            (Reason::INTERNAL_ERROR, Code::Internal),
            (Reason::HTTP_1_1_REQUIRED, Code::Unknown),
        ];
        for (reason, expected) in codes {
            assert_eq!(code(h2::Error::from(reason)), Some(expected), "{reason:?}");
        }
    }

    #[test]
    fn broken_connections_are_unavailable_and_other_errors_stay_as_they_are() {
        assert_eq!(code(io::Error::from(io::ErrorKind::ConnectionReset)), Some(Code::Unavailable));
        assert_eq!(code("an error of another layer"), None);
        assert_eq!(code(Status::data_loss("of the caller's stream")), Some(Code::DataLoss));
    }
}
