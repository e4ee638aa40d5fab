//! The log level, and the rate limit of messages that clients can cause.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use tracing::level_filters::LevelFilter;

static VERBOSITY: AtomicU32 = AtomicU32::new(0);

/// Sets memcached's verbosity, 0 to 3, from which [`level`] derives.
pub fn set_verbosity(level: u32) {
    VERBOSITY.store(level, Ordering::Relaxed);
}

pub(super) fn verbosity() -> u32 {
    VERBOSITY.load(Ordering::Relaxed)
}

/// The log level of the current verbosity: warnings, then info, debug and trace. The process's
/// subscriber should ask for it for each message, as clients may change it.
pub fn level() -> LevelFilter {
    match verbosity() {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Messages about failed connections per second; others are only counted.
const MAX_PER_SECOND: u64 = 10;

/// The start of the present second of messages, and how many it has had.
static LIMIT: Mutex<(Option<Instant>, u64)> = Mutex::new((None, 0));

/// Logs that a connection failed, within the rate limit.
pub(super) fn connection_failed(peer: &str, error: &io::Error) {
    if level() < LevelFilter::INFO {
        return;
    }
    let mut limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut suppressed = 0;
    if limit.0.is_none_or(|since| since.elapsed() >= Duration::from_secs(1)) {
        suppressed = limit.1.saturating_sub(MAX_PER_SECOND);
        *limit = (Some(Instant::now()), 0);
    }
    limit.1 += 1;
    let is_shown = limit.1 <= MAX_PER_SECOND;
    drop(limit);
    if suppressed > 0 {
        tracing::info!(suppressed, "more connections failed");
    }
    if is_shown {
        tracing::info!(peer, %error, "connection failed");
    }
}
