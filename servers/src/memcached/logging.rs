//! What is logged, and how much of it.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;

static VERBOSITY: AtomicU32 = AtomicU32::new(0);

/// Changes how much is logged: memcached's levels, 0 to 3.
pub fn set_verbosity(level: u32) {
    VERBOSITY.store(level, Ordering::Relaxed);
}

/// The level that a verbosity stands for.
pub fn level() -> LevelFilter {
    match VERBOSITY.load(Ordering::Relaxed) {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// So many lines about connections are logged in a second; of the others only the number.
const LINES_PER_SECOND: u64 = 10;

struct Limit {
    since: Option<Instant>,
    lines: u64,
}

static LIMIT: Mutex<Limit> = Mutex::new(Limit { since: None, lines: 0 });
static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// Logs that a connection ended by an error, but not as often as clients can bring that about.
pub fn connection_ended(peer: &str, error: &io::Error) {
    if level() < LevelFilter::INFO {
        return;
    }
    let mut limit = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if limit.since.is_none_or(|since| now - since >= Duration::from_secs(1)) {
        *limit = Limit { since: Some(now), lines: 0 };
        let suppressed = SUPPRESSED.swap(0, Ordering::Relaxed);
        if suppressed > 0 {
            tracing::info!(suppressed, "more connections ended");
        }
    }
    limit.lines += 1;
    if limit.lines > LINES_PER_SECOND {
        SUPPRESSED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    drop(limit);
    tracing::info!(peer, %error, "connection ended");
}
