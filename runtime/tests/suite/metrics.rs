//! The runtime's metrics: that they count what happens, and that the page for Prometheus has them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use runtime::io::{AsyncFd, Direction, SourceKind};
use runtime::metrics::{Histogram, Snapshot};
use runtime::{Builder, DriverKind, Runtime};

use crate::drivers::drivers;

const DELAY: Duration = Duration::from_millis(30);

fn with_histograms(driver: DriverKind) -> Runtime {
    Builder::new()
        .ignore_environment()
        .workers(2)
        .driver(driver)
        .enable_metrics_poll_time_histogram()
        .enable_metrics_schedule_latency_histogram()
        .stall_threshold(DELAY / 2)
        .build()
        .unwrap()
}

/// The value of a sample, which is its name with its labels as the page has them.
fn value(page: &str, sample: &str) -> f64 {
    let found = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("there is no {sample}:\n{page}")).parse().unwrap()
}

#[test]
fn the_pages_names_follow_the_conventions_and_each_sample_comes_once() {
    for driver in drivers() {
        let runtime = with_histograms(driver);
        runtime.block_on(async { runtime::spawn_on(1, || async {}).await.unwrap() });
        let page = runtime.handle().snapshot().prometheus();
        let mut helps = page.lines().filter_map(|line| line.strip_prefix("# HELP "));
        assert!(helps.all(|help| help.ends_with('.')), "{page}");
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let types: BTreeMap<&str, &str> = types.collect();
        for (name, kind) in &types {
            assert!(name.starts_with("lull_"), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
            assert!(!name.contains("nanos") && !name.contains("micros") && !name.contains("milli"), "{name}");
        }
        let histograms = types.iter().filter(|(_, kind)| **kind == "histogram").map(|(name, _)| *name);
        let expected =
            ["lull_worker_poll_seconds", "lull_worker_schedule_latency_seconds", "lull_worker_turn_seconds"];
        assert!(histograms.eq(expected), "on {driver}");
        let mut seen = BTreeSet::new();
        for (sample, _) in
            page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '))
        {
            assert!(seen.insert(sample), "{sample} comes twice");
        }
        for worker in [0, 1] {
            let labels =
                format!("policy=\"vanilla\",running=\"vanilla\",driver=\"{driver}\",napi=\"\",core=\"\"");
            assert_eq!(value(&page, &format!("lull_worker_info{{worker=\"{worker}\",{labels}}}")), 1.0);
        }
        assert_eq!(value(&page, "lull_worker_steps_down{worker=\"1\"}"), 0.0);
        assert!(!page.contains("lull_received_packets_total"), "there is no interface");
    }
}

/// How many times are in the bucket of this time, or in those of longer ones.
fn at_least(histogram: &Histogram, time: Duration) -> u64 {
    histogram
        .buckets()
        .filter(|(bound, _)| bound.is_none_or(|bound| bound >= time))
        .map(|(_, count)| count)
        .sum()
}

#[test]
fn counters_move_with_what_the_worker_does() {
    for driver in drivers() {
        let runtime = with_histograms(driver);
        let before = runtime.handle().snapshot().prometheus();
        runtime.block_on(async {
            let work = runtime::spawn_on(1, || async {
                for _ in 0..100 {
                    runtime::yield_now().await;
                }
                let (ours, _theirs) = UnixStream::pair().unwrap();
                ours.set_nonblocking(true).unwrap();
                let ours = AsyncFd::new(ours, SourceKind::Other).unwrap();
                for _ in 0..1000 {
                    ours.io(Direction::Write, |_| io::Result::Ok(())).await.unwrap();
                }
                // A poll that keeps its worker, and a task that waits meanwhile.
                let late = runtime::spawn(async {});
                std::thread::sleep(DELAY);
                late.await.unwrap();
            });
            work.await.unwrap();
            runtime::spawn_blocking(|| ()).await.unwrap();
            // It counts as finished after its result is there.
            while runtime::Handle::current().blocking_metrics().finished == 0 {
                runtime::yield_now().await;
            }
            // The joiner is woken within the poll, which is counted at its end.
            runtime::spawn_on(1, || async {}).await.unwrap();
        });
        let after = runtime.handle().snapshot().prometheus();
        let moved = |sample: &str| value(&after, sample) - value(&before, sample);
        let of_worker = |metric: &str| moved(&format!("lull_worker_{metric}_total{{worker=\"1\"}}"));
        assert!(of_worker("polls") >= 110.0, "on {driver}");
        assert!(of_worker("turns") >= 2.0, "on {driver}");
        assert!(of_worker("waits") >= 1.0, "on {driver}");
        assert_eq!(of_worker("forced_yields"), 7.0, "on {driver}");
        assert!(of_worker("stalls") >= 1.0, "on {driver}");
        let running = moved("lull_worker_time_seconds_total{worker=\"1\",activity=\"running\"}");
        assert!(running >= DELAY.as_secs_f64(), "on {driver}");
        assert_eq!(moved("lull_blocking_finished_total"), 1.0, "on {driver}");

        let metrics = runtime.metrics()[1];
        let (polls, latency) = (metrics.poll_times.unwrap(), metrics.schedule_latency.unwrap());
        assert!(polls.count() >= 110 && latency.count() >= 110, "on {driver}: {metrics:?}");
        for histogram in [metrics.turn_times, polls, latency] {
            assert!(at_least(&histogram, DELAY) >= 1, "on {driver}: {metrics:?}");
            assert!(histogram.sum() >= DELAY, "on {driver}: {metrics:?}");
        }
        assert!(latency.count() <= metrics.polls, "on {driver}: {metrics:?}");
    }
}

#[test]
fn schedule_latency_contains_the_time_in_another_workers_inbox() {
    for driver in drivers() {
        let runtime = with_histograms(driver);
        runtime.block_on(async {
            let (started, starts) = mpsc::channel();
            let (release, released) = mpsc::channel();
            let busy = runtime::spawn_on(1, move || async move {
                started.send(()).unwrap();
                released.recv().unwrap();
            });
            starts.recv().unwrap();
            let late = || at_least(&runtime::metrics()[1].schedule_latency.unwrap(), DELAY);
            let before = late();
            let waiting = runtime::spawn_on(1, || async {});
            std::thread::sleep(DELAY);
            release.send(()).unwrap();
            busy.await.unwrap();
            waiting.await.unwrap();
            assert!(late() > before, "on {driver}");
        });
    }
}

#[runtime::test]
async fn histograms_that_read_the_clock_are_off_by_default() {
    runtime::yield_now().await;
    let snapshot = Snapshot::take();
    let metrics = snapshot.workers[0].metrics;
    assert!(metrics.poll_times.is_none() && metrics.schedule_latency.is_none());
    let page = snapshot.prometheus();
    assert!(!page.contains("lull_worker_poll_seconds") && !page.contains("schedule_latency"), "{page}");
    assert!(page.contains("lull_worker_turn_seconds_count{worker=\"0\"}"), "{page}");
}

/// Waits until worker 1 has as many tasks. One that has woken its joiner on worker 0 is alive until
/// its poll ends.
async fn worker_1_has_tasks(count: u64, driver: DriverKind) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while runtime::metrics()[1].alive_tasks != count {
        assert!(Instant::now() < deadline, "on {driver}: {}, not {count}", runtime::metrics()[1].alive_tasks);
        runtime::yield_now().await;
    }
}

#[test]
fn tasks_are_alive_until_they_return_panic_or_are_aborted() {
    for driver in drivers() {
        let runtime = with_histograms(driver);
        runtime.block_on(async {
            assert_eq!(runtime::metrics()[0].alive_tasks, 0, "the future of block_on is no task");
            let local = runtime::spawn(async { runtime::metrics()[0].alive_tasks });
            assert_eq!(runtime::metrics()[0].alive_tasks, 1, "on {driver}");
            assert_eq!(local.await.unwrap(), 1, "a task that is polled is alive, on {driver}");
            assert_eq!(runtime::metrics()[0].alive_tasks, 0, "on {driver}");

            let ends = Arc::new(AtomicBool::new(false));
            let waits = |panics: bool| {
                let ends = Arc::clone(&ends);
                move || async move {
                    while !ends.load(Ordering::Relaxed) {
                        runtime::yield_now().await;
                    }
                    assert!(!panics, "on purpose");
                }
            };
            let returns = runtime::spawn_on(1, waits(false));
            let panics = runtime::spawn_on(1, waits(true));
            let aborted = runtime::spawn_on(1, std::future::pending::<()>);
            worker_1_has_tasks(3, driver).await;
            aborted.abort();
            assert!(aborted.await.unwrap_err().is_cancelled());
            worker_1_has_tasks(2, driver).await;
            // Aborted before it is polled.
            let unpolled = runtime::spawn_on(1, std::future::pending::<()>);
            unpolled.abort();
            assert!(unpolled.await.unwrap_err().is_cancelled());
            worker_1_has_tasks(2, driver).await;
            ends.store(true, Ordering::Relaxed);
            returns.await.unwrap();
            assert!(panics.await.unwrap_err().is_panic());
            worker_1_has_tasks(0, driver).await;
        });
    }
}

#[test]
fn tasks_are_alive_after_block_on_and_not_after_the_runtime() {
    for driver in drivers() {
        let runtime = with_histograms(driver);
        let handle = runtime.handle();
        runtime.block_on(async {
            for worker in [0, 1] {
                drop(runtime::spawn_on(worker, std::future::pending::<()>));
            }
            runtime::yield_now().await;
            worker_1_has_tasks(1, driver).await;
        });
        let alive = || handle.snapshot().workers.iter().map(|it| it.metrics.alive_tasks).collect::<Vec<_>>();
        assert_eq!(alive(), [1, 1], "on {driver}");
        let page = handle.snapshot().prometheus();
        assert_eq!(value(&page, "lull_worker_alive_tasks{worker=\"1\"}"), 1.0, "on {driver}");
        drop(runtime);
        assert_eq!(alive(), [0, 0], "on {driver}");
    }
}
