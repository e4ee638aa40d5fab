//! A server that requests go to, and how it does.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::Uri;
use hyper::header::HeaderValue;

/// How long an upstream is avoided after an error; doubled by each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// So many health checks in a row have to fail before an upstream gets no requests.
const FAILED_CHECKS: u32 = 2;

/// A server. All workers share it.
#[derive(Debug)]
pub(super) struct Upstream {
    /// The URL, as configured.
    pub(super) address: String,
    /// What is connected to.
    pub(super) uri: Uri,
    /// The `Host` of requests.
    pub(super) host: HeaderValue,
    health: Health,
    workers: Mutex<Vec<Arc<Counters>>>,
}

/// The state of an upstream, for a status page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamStatus {
    /// The URL, as configured.
    pub address: String,
    /// Whether requests go to it: its health check succeeds, and it isn't avoided because of
    /// errors.
    pub healthy: bool,
    /// Requests that were sent to it, repeated ones and failed connects included.
    pub requests: u64,
    /// Those without a whole response.
    pub failures: u64,
    /// Open connections of all workers, idle ones included.
    pub open: usize,
    /// Those of them that wait for a request.
    pub idle: usize,
}

impl Upstream {
    pub(super) fn new(address: String, uri: Uri, host: HeaderValue) -> Self {
        Self { address, uri, host, health: Health::new(), workers: Mutex::default() }
    }

    /// The counters of another worker.
    pub(super) fn add_worker(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counters));
        counters
    }

    pub(super) fn status(&self) -> UpstreamStatus {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |count: fn(&Counters) -> u64| workers.iter().map(|counters| count(counters)).sum::<u64>();
        let sum_sizes =
            |count: fn(&Counters) -> usize| workers.iter().map(|counters| count(counters)).sum::<usize>();
        UpstreamStatus {
            address: self.address.clone(),
            healthy: !self.is_down() && self.is_due(),
            requests: sum(|counters| counters.requests.load(Ordering::Relaxed)),
            failures: sum(|counters| counters.failures.load(Ordering::Relaxed)),
            open: sum_sizes(|counters| counters.open.load(Ordering::Relaxed)),
            idle: sum_sizes(|counters| counters.idle.load(Ordering::Relaxed)),
        }
    }

    /// Whether its health check fails.
    pub(super) fn is_down(&self) -> bool {
        self.health.down.load(Ordering::Relaxed)
    }

    /// Whether it isn't avoided because of errors.
    pub(super) fn is_due(&self) -> bool {
        let until = self.due();
        until == 0 || self.health.milliseconds() >= until
    }

    /// Until when it is avoided; 0 if it isn't.
    pub(super) fn due(&self) -> u64 {
        self.health.avoided_until.load(Ordering::Relaxed)
    }

    /// A request or a connect has failed.
    pub(super) fn record_failure(&self, error: &dyn Display) {
        let health = &self.health;
        let until = health.avoided_until.load(Ordering::Relaxed);
        let now = health.milliseconds();
        // Requests that were in progress when it began to fail make the pause no longer.
        if now < until {
            return;
        }
        let errors = health.errors.load(Ordering::Relaxed);
        let pause = FIRST_PAUSE.saturating_mul(1 << errors.min(16)).min(LONGEST_PAUSE);
        let next = now.saturating_add(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)).max(1);
        let avoided =
            health.avoided_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed);
        if avoided.is_err() {
            return;
        }
        health.errors.store(errors.saturating_add(1), Ordering::Relaxed);
        if errors == 0 {
            tracing::warn!(upstream = self.address, %error, "an upstream fails and is avoided");
        } else {
            tracing::debug!(upstream = self.address, %error, ?pause, "an upstream still fails");
        }
    }

    /// A response has come.
    pub(super) fn record_success(&self) {
        let health = &self.health;
        if health.errors.load(Ordering::Relaxed) != 0 && health.errors.swap(0, Ordering::Relaxed) != 0 {
            health.avoided_until.store(0, Ordering::Relaxed);
            tracing::warn!(upstream = self.address, "an upstream answers again");
        }
    }

    /// What its health check found: an error, if it is not healthy.
    pub(super) fn record_check(&self, found: Result<(), impl Display>) {
        let failed = match &found {
            Ok(()) => 0,
            Err(_) => self.health.failed_checks.load(Ordering::Relaxed).saturating_add(1),
        };
        self.health.failed_checks.store(failed, Ordering::Relaxed);
        if (1..FAILED_CHECKS).contains(&failed) {
            return;
        }
        let was_down = self.health.down.swap(found.is_err(), Ordering::Relaxed);
        match found {
            Ok(()) if was_down => tracing::warn!(upstream = self.address, "an upstream is healthy again"),
            Err(error) if !was_down => {
                let error = error.to_string();
                tracing::warn!(upstream = self.address, error, "the health check of an upstream fails");
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
struct Health {
    begun: Instant,
    down: AtomicBool,
    /// In a row.
    failed_checks: AtomicU32,
    /// Errors without a response in between.
    errors: AtomicU32,
    /// In milliseconds since `begun`; 0 if it is not avoided.
    avoided_until: AtomicU64,
}

impl Health {
    fn new() -> Self {
        Self {
            begun: runtime::time::now(),
            down: AtomicBool::new(false),
            failed_checks: AtomicU32::new(0),
            errors: AtomicU32::new(0),
            avoided_until: AtomicU64::new(0),
        }
    }

    fn milliseconds(&self) -> u64 {
        let passed = runtime::time::now().saturating_duration_since(self.begun);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Numbers of one worker for one upstream. Only that worker changes them; so no cache line moves
/// between workers.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Counters {
    requests: AtomicU64,
    failures: AtomicU64,
    open: AtomicUsize,
    idle: AtomicUsize,
}

impl Counters {
    /// Connections of this worker that are open or being opened.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn count_request(&self) {
        self.requests.store(self.requests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn count_failure(&self) {
        self.failures.store(self.failures.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn set_idle(&self, count: usize) {
        self.idle.store(count, Ordering::Relaxed);
    }
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection(Arc<Counters>);

impl OpenConnection {
    pub(super) fn new(counters: &Arc<Counters>) -> Self {
        counters.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counters))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream() -> Upstream {
        Upstream::new("http://a".into(), Uri::from_static("http://a"), HeaderValue::from_static("a"))
    }

    #[runtime::test(driver = "epoll")]
    async fn an_upstream_is_avoided_twice_as_long_after_each_error_until_it_answers() {
        runtime::time::pause();
        let upstream = upstream();
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            upstream.record_failure(&"refused");
            // Errors of requests in progress change nothing.
            upstream.record_failure(&"refused");
            runtime::time::advance(Duration::from_millis(pause * 1000 - 10)).await;
            assert!(!upstream.is_due(), "{pause} s");
            runtime::time::advance(Duration::from_millis(20)).await;
            assert!(upstream.is_due(), "{pause} s");
        }
        upstream.record_failure(&"refused");
        upstream.record_success();
        assert!(upstream.is_due());
        upstream.record_failure(&"refused");
        runtime::time::advance(Duration::from_millis(1010)).await;
        assert!(upstream.is_due());
    }

    #[test]
    fn two_failed_health_checks_make_the_status_unhealthy() {
        let upstream = upstream();
        upstream.record_check(Err("500"));
        assert!(!upstream.is_down(), "one may be by chance");
        upstream.record_check(Err("500"));
        assert!(upstream.is_down() && !upstream.status().healthy);
        upstream.record_check(Ok::<_, &str>(()));
        assert!(upstream.status().healthy);
    }
}
