//! Disconnects clients that are idle for too long, or don't authenticate in time.
//!
//! A server may be stopped for any time (a debugger, a hypervisor, SIGSTOP), at any instruction. The limits count that time,
//! but what a client has sent meanwhile must count, too, although the server receives it later. Two things see to that:
//!
//! - The time of a client's progress is read after it was made. A time that was read before, by the store's clock or at the
//!   start of the loop's turn, may be from before a stop, although the client has sent its request during the stop.
//! - A client that is beyond its limit is disconnected only if the next checks find the same. Each of them comes after a
//!   wait of the worker, which collects what had arrived before.
//!
//! A suspended machine is another matter: nothing can arrive meanwhile, so the limits don't count that time. They are
//! measured by the clock of the runtime's timers, `CLOCK_MONOTONIC`, which stands still then.

use std::io;
use std::time::Duration;

use super::list::ConnectionInfo;
use crate::memcached::context::ServerContext;

/// A client must authenticate within this time, whatever it sends meanwhile.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the limits are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How many more checks must find a client beyond its limit. One wait returns a limited batch of
/// events. After a stop, one second of waits is enough to receive from thousands of connections.
const CONFIRMING_CHECKS: u32 = 4;

/// Only for connections with time limits: it reads the kernel's clock, which the limits need (see above).
pub fn record_progress(context: &ServerContext, connection: &ConnectionInfo) {
    if context.config.has_time_limits() {
        connection.record_progress(context.uptime());
    }
}

/// Serves a connection until that ends, or the client is beyond a limit.
pub async fn with_time_limits(
    serving: impl Future<Output = io::Result<()>>,
    context: &ServerContext,
    connection: &ConnectionInfo,
) -> io::Result<()> {
    let mut serving = std::pin::pin!(serving);
    let mut limits = TimeLimits::start(context.config.idle_timeout, context.uptime());
    loop {
        match runtime::timeout(CHECK_INTERVAL, serving.as_mut()).await {
            Ok(result) => return result,
            Err(_) => {
                if limits.check(context.uptime(), connection) {
                    context.counters.worker(runtime::current_worker()).idle_kicks.add(1);
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the client was idle or did not authenticate in time",
                    ));
                }
            }
        }
    }
}

/// The limits of one connection. All times are uptimes of the server.
struct TimeLimits {
    idle_timeout: Option<Duration>,
    start: Duration,
    /// Checks in a row that have found the client beyond a limit.
    overdue: u32,
}

impl TimeLimits {
    fn start(idle_timeout: Option<Duration>, now: Duration) -> Self {
        Self { idle_timeout, start: now, overdue: 0 }
    }

    /// Returns whether the client is to be disconnected.
    fn check(&mut self, now: Duration, connection: &ConnectionInfo) -> bool {
        let beyond = |since: Duration, limit: Duration| now.saturating_sub(since) >= limit;
        let is_late = !connection.is_authenticated() && beyond(self.start, AUTHENTICATION_TIMEOUT);
        let is_idle = self.idle_timeout.is_some_and(|limit| beyond(connection.last_progress(), limit));
        self.overdue = if is_late || is_idle { self.overdue + 1 } else { 0 };
        self.overdue > CONFIRMING_CHECKS
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};
    use std::time::Instant;

    use futures_util::{AsyncRead, AsyncWrite};

    use super::super::serve::serve;
    use super::*;
    use crate::memcached::config::Config;

    const IDLE_TIMEOUT: Duration = Duration::from_secs(8);
    /// The longest time between a limit and the disconnection: the check that finds the client beyond its limit, and those
    /// that confirm it.
    const LAG: Duration = CHECK_INTERVAL.saturating_mul(1 + CONFIRMING_CHECKS);

    /// A client whose requests arrive at some times, and whose replies are dropped.
    struct Client {
        arrivals: Vec<(Instant, &'static [u8])>,
        timer: Pin<Box<runtime::Sleep>>,
    }

    impl AsyncRead for Client {
        fn poll_read(
            mut self: Pin<&mut Self>,
            task: &mut Context<'_>,
            buffer: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            // Without a further arrival it waits for ever.
            let Some(&(time, request)) = self.arrivals.first() else { return Poll::Pending };
            self.timer.as_mut().get_mut().reset(time);
            std::task::ready!(Future::poll(self.timer.as_mut(), task));
            self.arrivals.remove(0);
            buffer[..request.len()].copy_from_slice(request);
            Poll::Ready(Ok(request.len()))
        }
    }

    /// Serves a client whose requests arrive at some times after the start. Returns when it was disconnected.
    async fn disconnected_after(config: Config, arrivals: &[(Duration, &'static [u8])]) -> Duration {
        let context = Arc::new(ServerContext::new(&config, 1).unwrap());
        let authenticated = !config.requires_authentication();
        let connection = ConnectionInfo::new("".into(), "".into(), authenticated);
        connection.begin(0, context.uptime());
        let start = runtime::time::now();
        let arrivals = arrivals.iter().map(|(after, request)| (start + *after, *request)).collect();
        let reader = futures_util::io::BufReader::new(Client {
            arrivals,
            timer: Box::pin(runtime::time::sleep_until(start)),
        });
        let writer: Pin<Box<dyn AsyncWrite>> = Box::pin(futures_util::io::sink());
        let error = serve(reader, writer, &context, &connection).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        runtime::time::now() - start
    }

    fn idle_config() -> Config {
        Config { memory: 8 << 20, idle_timeout: Some(IDLE_TIMEOUT), ..Config::default() }
    }

    /// Lets the server run for `before`, stops it for `stop`, and returns what it comes to.
    async fn with_a_stop<T: 'static>(
        serving: impl Future<Output = T> + 'static,
        before: Duration,
        stop: Duration,
    ) -> T {
        let serving = runtime::spawn(serving);
        runtime::sleep(before).await;
        // All timers that are due by then fire in the same turn.
        runtime::time::advance(stop).await;
        serving.await.unwrap()
    }

    #[runtime::test]
    async fn an_idle_client_is_disconnected_after_its_limit_and_an_active_one_stays() {
        runtime::time::pause();
        let idle = disconnected_after(idle_config(), &[]).await;
        assert!(idle >= IDLE_TIMEOUT && idle <= IDLE_TIMEOUT + LAG, "{idle:?}");
        let requests = [5, 12, 19].map(|second| (Duration::from_secs(second), &b"mn\r\n"[..]));
        let active = disconnected_after(idle_config(), &requests).await;
        let last = Duration::from_secs(19);
        assert!(active >= last + IDLE_TIMEOUT && active <= last + IDLE_TIMEOUT + LAG, "{active:?}");
    }

    #[runtime::test]
    async fn a_stop_counts_for_idle_clients() {
        runtime::time::pause();
        let (before, stop) = (Duration::from_secs(1), Duration::from_secs(20));
        // Also if it has sent something just before.
        let serving = async move { disconnected_after(idle_config(), &[(before, &b"mn\r\n"[..])]).await };
        let idle = with_a_stop(serving, before + Duration::from_millis(1), stop).await;
        assert!(idle >= before + stop && idle <= before + stop + LAG, "{idle:?}");
    }

    /// The wait that was stopped need not have collected what came during the stop: later waits do.
    #[runtime::test]
    async fn what_arrives_during_a_stop_counts_when_it_is_received() {
        let (before, stop) = (Duration::from_secs(1), Duration::from_secs(20));
        for received_late in [0, 1, 300, 900].map(Duration::from_millis) {
            runtime::time::pause();
            let received = before + stop + received_late;
            let serving =
                async move { disconnected_after(idle_config(), &[(received, &b"mn\r\n"[..])]).await };
            let active = with_a_stop(serving, before, stop).await;
            assert!(active >= received + IDLE_TIMEOUT, "received after {received_late:?}: {active:?}");
            assert!(active <= received + IDLE_TIMEOUT + LAG, "received after {received_late:?}: {active:?}");
            runtime::time::resume();
        }
    }

    #[runtime::test]
    async fn a_login_that_arrives_during_a_stop_counts_and_other_requests_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let users = folder.path().join("users");
        std::fs::write(&users, "ann:secret\n").unwrap();
        let config = Config { users_file: Some(users), ..idle_config() };
        let (before, stop) = (Duration::from_secs(1), Duration::from_secs(20));
        let received = before + stop + Duration::from_millis(300);
        for (request, limit) in [
            (&b"set x 0 0 10\r\nann secret\r\n"[..], received + IDLE_TIMEOUT),
            (b"get somekey\r\n", before + stop),
        ] {
            runtime::time::pause();
            // The first request is refused, because the client has not authenticated.
            let requests = [(Duration::from_millis(500), &b"get somekey\r\n"[..]), (received, request)];
            let config = config.clone();
            let serving = async move { disconnected_after(config, &requests).await };
            let after = with_a_stop(serving, before, stop).await;
            assert!(after >= limit && after <= limit + LAG, "{after:?}, not {limit:?}");
            runtime::time::resume();
        }
    }
}
