//! Why a pool has no connection to give.

use std::fmt;
use std::time::Duration;

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why [`Pool::get`](super::Pool::get) has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection can be opened.
    #[error(
        "cannot connect to PostgreSQL{}{host}: {}",
        if host.is_empty() { "" } else { " at " },
        WithCause(source)
    )]
    Connect {
        /// What was tried last, with its port: `db.internal:5432 (10.0.0.7)`, or without the address
        /// if the lookup has failed, `10.0.0.7:5432`, or the folder of a Unix socket,
        /// `/run/postgresql:5432`. Empty if the config is wrong.
        host: String,
        /// An `io::Error` of the lookup or the socket, a `tokio_postgres::Error` of the TLS handshake or of the
        /// login, or a text that says what is wrong with the config or the session.
        source: BoxError,
    },
    /// No connection became free, or was opened, in time.
    #[error(
        "no connection to PostgreSQL was free or opened within {limit:?}; open ones of this worker: {open}{}",
        failed.as_ref().map(|failed| format!("; {failed}")).unwrap_or_default()
    )]
    TimedOut {
        /// The pool's limit.
        limit: Duration,
        /// The connections in the calling worker's part of the pool, in use or not.
        open: usize,
        /// The last failure to open one, with its host, unless one was opened since:
        /// `10.0.0.7:5432: no answer within 10s`.
        failed: Option<String>,
    },
}

/// An error with its cause, which tokio-postgres leaves out of the text.
pub(super) struct WithCause<'a>(pub(super) &'a BoxError);

impl fmt::Display for WithCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let error = self.0.downcast_ref::<tokio_postgres::Error>();
        match error.and_then(std::error::Error::source) {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}
