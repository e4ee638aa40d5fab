//! What the transports have in common.

use futures_util::{AsyncBufRead, AsyncWrite};

pub(crate) trait Transport: AsyncBufRead + AsyncWrite + Unpin {}

impl<T: AsyncBufRead + AsyncWrite + Unpin> Transport for T {}

pub(crate) type BoxedTransport = Box<dyn Transport>;
