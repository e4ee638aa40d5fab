//! Disconnects clients that are idle for too long, or don't authenticate in time.
//!
//! A server may be stopped for any time (a debugger, a hypervisor, SIGSTOP). The limits count that
//! time, but also what a client has sent meanwhile, although the server receives it later:
//!
//! - The time of a client's progress is read after it was made. One that was read before may be
//!   from before a stop.
//! - A client that is beyond its limit is disconnected only if the next checks find the same. Each
//!   comes after a wait of the worker, which collects what had arrived.
//!
//! A connection wakes up for the next limit that it could exceed: ten thousand quiet clients cost
//! nothing. What a client sends moves its limit, not the timer, which finds that out when it fires.
//! While the machine is suspended nothing can arrive. So the clock is that of the runtime's timers,
//! `CLOCK_MONOTONIC`, which stands still then.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use crate::memcached::context::ServerContext;
use crate::memcached::stats::connections::ConnectionInfo;

/// A client must authenticate within this time, whatever it sends meanwhile.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long after a check that has found a client beyond its limit the next one comes.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How many more checks must find a client beyond its limit. One wait returns a limited batch of
/// events. After a stop, one second of waits is enough to receive from thousands of connections.
const CONFIRMING_CHECKS: u32 = 4;

/// Reads the kernel's clock, so only with time limits.
pub fn record_progress(context: &ServerContext, connection: &ConnectionInfo) {
    if context.config.has_time_limits() {
        // 584 years fit.
        connection.last_progress.store(context.uptime().as_nanos() as u64);
    }
}

/// Serves a connection until that ends, or the client is beyond a limit.
pub async fn with_time_limits(
    serving: impl Future<Output = io::Result<()>>,
    context: &ServerContext,
    connection: &ConnectionInfo,
) -> io::Result<()> {
    let mut serving = std::pin::pin!(serving);
    let start = context.uptime();
    let mut authenticated = connection.authenticated.load();
    // Checks in a row that have found the client beyond a limit.
    let mut overdue = 0;
    loop {
        let login = (!connection.authenticated.load()).then_some(start + AUTHENTICATION_TIMEOUT);
        let last_progress = Duration::from_nanos(connection.last_progress.load());
        let idle = context.config.idle_timeout.map(|limit| last_progress + limit);
        // The next limit is reached then, unless the client does something before.
        let Some(deadline) = login.into_iter().chain(idle).min() else { return serving.await };
        let left = deadline.saturating_sub(context.uptime());
        overdue = if left.is_zero() { overdue + 1 } else { 0 };
        if overdue > CONFIRMING_CHECKS {
            context.counters.worker(runtime::current_worker()).idle_kicks.add(1);
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client was idle or did not authenticate in time",
            ));
        }
        // Ends also when the client logs in, or fails to do so again: then the limits are others.
        let serving_or_login = poll_fn(|task| match serving.as_mut().poll(task) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if authenticated != connection.authenticated.load() => {
                authenticated = !authenticated;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        });
        let wait = if overdue > 0 { CHECK_INTERVAL } else { left };
        if let Ok(Some(result)) = runtime::timeout(wait, serving_or_login).await {
            return result;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::Context;
    use std::time::Instant;

    use futures_util::{AsyncRead, AsyncWrite};

    use super::super::serve::serve;
    use super::*;
    use crate::memcached::config::{Config, Protocol};

    const IDLE_TIMEOUT: Duration = Duration::from_secs(8);
    /// The longest time between a limit and the disconnection: the checks that confirm that the
    /// client is beyond its limit, and what a timer may be late.
    const LAG: Duration =
        CHECK_INTERVAL.saturating_mul(CONFIRMING_CHECKS).saturating_add(Duration::from_millis(50));

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

    /// Serves a client whose requests arrive at some times after the start.
    async fn serve_client(
        context: &ServerContext,
        connection: &ConnectionInfo,
        arrivals: &[(Duration, &'static [u8])],
    ) -> io::Result<()> {
        let start = runtime::time::now();
        let arrivals = arrivals.iter().map(|(after, request)| (start + *after, *request)).collect();
        let client = Client { arrivals, timer: Box::pin(runtime::time::sleep_until(start)) };
        let reader = futures_util::io::BufReader::with_capacity(100, client);
        let writer: Pin<Box<dyn AsyncWrite>> = Box::pin(futures_util::io::sink());
        serve(reader, writer, context, connection).await
    }

    /// Serves a client whose requests arrive at some times after the start. Returns when it was
    /// disconnected.
    async fn disconnected_after(config: Config, arrivals: &[(Duration, &'static [u8])]) -> Duration {
        let context = Arc::new(ServerContext::open(&config, 1).unwrap());
        let authenticated = (!config.requires_authentication()).into();
        let connection = ConnectionInfo { authenticated, ..ConnectionInfo::default() };
        record_progress(&context, &connection);
        let start = runtime::time::now();
        let error = serve_client(&context, &connection, arrivals).await.unwrap_err();
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

    #[runtime::test]
    async fn a_second_login_that_fails_ends_the_first_and_keeps_nobody_from_running() {
        let folder = tempfile::tempdir().unwrap();
        let users = folder.path().join("users");
        std::fs::write(&users, "ann:secret\n").unwrap();
        let config =
            Config { protocol: Protocol::Binary, sasl: true, users_file: Some(users), ..idle_config() };
        let config = Config { idle_timeout: Some(Duration::from_secs(3600)), ..config };
        // Magic, opcode, length of the key, and that of the body; no extras.
        let login = |password: &str| -> &'static [u8] {
            let body = format!("PLAIN\0ann\0{password}");
            let header = [0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, body.len() as u8];
            Vec::leak([&header[..], &[0; 12], body.as_bytes()].concat())
        };
        let second = Duration::from_secs(20);
        let arrivals = [(Duration::from_secs(1), login("secret")), (second, login("wrong"))];
        runtime::time::pause();
        let after = disconnected_after(config, &arrivals).await;
        assert!(after >= second && after <= second + LAG, "{after:?}");
        runtime::time::resume();
    }

    /// Polls of all tasks within a minute of 10,000 clients that log in and then do nothing. Those
    /// of the test are among them.
    async fn polls_for_quiet_clients(config: Config) -> u64 {
        const SECONDS: u64 = 60;
        const LOGIN: &[(Duration, &[u8])] = &[(Duration::ZERO, b"set x 0 0 10\r\nann secret\r\n")];
        runtime::time::pause();
        let context = Arc::new(ServerContext::open(&config, 1).unwrap());
        let infos: Vec<Arc<ConnectionInfo>> = (0..10_000).map(|_| Arc::default()).collect();
        let clients: Vec<_> = infos
            .iter()
            .map(|info| {
                let (context, info) = (Arc::clone(&context), Arc::clone(info));
                record_progress(&context, &info);
                runtime::spawn(async move { serve_client(&context, &info, LOGIN).await })
            })
            .collect();
        runtime::time::advance(Duration::from_millis(1)).await;
        while !infos.iter().all(|info| info.authenticated.load()) {
            runtime::yield_now().await;
        }
        let before = runtime::metrics()[0].polls;
        for _ in 0..SECONDS {
            runtime::time::advance(Duration::from_secs(1)).await;
        }
        let polls = runtime::metrics()[0].polls - before;
        runtime::time::resume();
        assert!(clients.iter().all(|client| !client.is_finished()));
        assert_eq!(context.counters.totals().auth_cmds, 10_000);
        polls
    }

    #[runtime::test]
    async fn ten_thousand_quiet_clients_wake_nobody_once_they_have_logged_in() {
        let folder = tempfile::tempdir().unwrap();
        let users = folder.path().join("users");
        std::fs::write(&users, "ann:secret\n").unwrap();
        let config = Config { users_file: Some(users), memory: 8 << 20, ..Config::default() };
        for idle_timeout in [None, Some(Duration::from_secs(3600))] {
            let polls = polls_for_quiet_clients(Config { idle_timeout, ..config.clone() }).await;
            assert!(polls < 1000, "{polls} polls with an idle timeout of {idle_timeout:?}");
        }
    }
}
