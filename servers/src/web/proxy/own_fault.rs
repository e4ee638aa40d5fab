//! Errors of connects that say something of this host, not of the upstream.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whether this host lacks descriptors, memory or ports.
pub(super) fn is_own_fault(error: &io::Error) -> bool {
    let own = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| own.contains(&code))
}

/// Logs it, once a second at most.
pub(super) fn report(error: &io::Error) {
    static FAILED: AtomicU64 = AtomicU64::new(0);
    static NEXT: Mutex<Option<Instant>> = Mutex::new(None);
    FAILED.fetch_add(1, Ordering::Relaxed);
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if next.is_none_or(|next| now >= next) {
        *next = Some(now + Duration::from_secs(1));
        let failed = FAILED.swap(0, Ordering::Relaxed);
        tracing::warn!(%error, failed, "no upstream can be connected to: this host lacks something");
    }
}
