//! Where a chunked request ends.

use std::cell::Cell;
use std::rc::Rc;

use hyper::body::Body;
use hyper::{Request, Version};

/// Whether the end of a chunked request is certain: it was read, and no trailers were before it.
///
/// hyper takes a bare LF for a byte of a trailer, and so what follows for more trailers: perhaps
/// the head of a request, whose body would be read as the next. So nothing is read after trailers,
/// nor after a body that may still end with some.
#[derive(Debug, Clone, Default)]
pub struct ChunkedEnd(Rc<Cell<bool>>);

impl ChunkedEnd {
    /// None for requests with a length, and those of HTTP/2.
    pub fn of<B: Body>(request: &Request<B>) -> Option<Self> {
        let is_chunked =
            request.version() <= Version::HTTP_11 && request.body().size_hint().upper().is_none();
        is_chunked.then(Self::default)
    }

    /// It was read, without trailers.
    pub fn set_certain(&self) {
        self.0.set(true);
    }

    pub fn is_certain(&self) -> bool {
        self.0.get()
    }
}
