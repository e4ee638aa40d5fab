//! The runtime's metrics: that they count what happens, and that their page is one that Prometheus
//! reads.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use runtime::io::{AsyncFd, Direction, SourceKind};
use runtime::metrics::{Histogram, Snapshot};
use runtime::{Builder, DriverKind, Runtime};

use crate::drivers::drivers;

const DELAY: Duration = Duration::from_millis(30);

fn builder(driver: DriverKind) -> Builder {
    Builder::new().ignore_environment().workers(2).driver(driver)
}

fn with_histograms(driver: DriverKind) -> Runtime {
    builder(driver)
        .enable_metrics_poll_time_histogram()
        .enable_metrics_schedule_latency_histogram()
        .stall_threshold(DELAY / 2)
        .build()
        .unwrap()
}

#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Parses a page line by line, and checks what the format demands.
fn parse(page: &str) -> BTreeMap<String, Family> {
    assert!(page.ends_with('\n'));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            let new = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(name.to_owned(), new).is_none(), "{name} comes twice");
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(name, current, "the type of another metric");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            families.get_mut(name).unwrap().kind = kind.to_owned();
        } else {
            let sample = parse_sample(line);
            assert!(seen.insert((sample.name.clone(), sample.labels.clone())), "twice: {line}");
            let family = families.get_mut(&current).expect(line);
            let suffix =
                sample.name.strip_prefix(&current).unwrap_or_else(|| panic!("not of {current}: {line}"));
            let allowed: &[&str] =
                if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(allowed.contains(&suffix), "{line}");
            family.samples.push(sample);
        }
    }
    families
}

fn parse_sample(line: &str) -> Sample {
    let name_length = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(name_length);
    assert!(name.chars().all(|it| it.is_ascii_alphanumeric() || it == '_'), "{line}");
    let mut labels = BTreeMap::new();
    while let Some(label) = rest.strip_prefix(['{', ',']) {
        let (name, quoted) = label.split_once("=\"").expect(line);
        assert!(name.chars().all(|it| it.is_ascii_lowercase() || it == '_'), "{line}");
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next().expect(line) {
                (_, '\\') => value.push(match characters.next().expect(line).1 {
                    'n' => '\n',
                    escaped @ ('\\' | '"') => escaped,
                    _ => panic!("no escape sequence: {line}"),
                }),
                (at, '"') => break at,
                (_, other) => value.push(other),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{line}");
        rest = &quoted[end + 1..];
        if let Some(after) = rest.strip_prefix('}') {
            rest = after;
            break;
        }
    }
    let value = rest.strip_prefix(' ').expect(line).parse().expect(line);
    Sample { name: name.to_owned(), labels, value }
}

fn value(families: &BTreeMap<String, Family>, family: &str, labels: &[(&str, &str)]) -> f64 {
    let samples = &families.get(family).unwrap_or_else(|| panic!("there is no {family}")).samples;
    let mut matching = samples.iter().filter(|sample| {
        labels.iter().all(|&(name, value)| sample.labels.get(name).is_some_and(|other| other == value))
    });
    let found = matching.next().unwrap_or_else(|| panic!("{family} has no {labels:?}")).value;
    assert!(matching.next().is_none(), "{family} has several {labels:?}");
    found
}

fn take_page(runtime: &Runtime) -> BTreeMap<String, Family> {
    parse(&runtime.handle().snapshot().prometheus())
}

#[test]
fn the_page_parses_and_its_names_follow_the_conventions() {
    for driver in drivers() {
        let mut runtime = with_histograms(driver);
        runtime.block_on(async { runtime::spawn_on(1, || async {}).await.unwrap() });
        let families = take_page(&runtime);
        for (name, family) in &families {
            assert!(name.starts_with("lull_") && family.help.ends_with('.'), "{name}: {family:?}");
            assert_eq!(name.ends_with("_total"), family.kind == "counter", "{name}");
            assert!(!name.contains("nanos") && !name.contains("micros") && !name.contains("milli"), "{name}");
            assert!(!family.samples.is_empty(), "{name}");
        }
        let driver = driver.to_string();
        for worker in ["0", "1"] {
            let labels = [
                ("worker", worker),
                ("policy", "vanilla"),
                ("running", "vanilla"),
                ("driver", driver.as_str()),
            ];
            assert_eq!(value(&families, "lull_worker_info", &labels), 1.0);
        }
        assert_eq!(value(&families, "lull_worker_steps_down", &[("worker", "1")]), 0.0);
        assert!(!families.contains_key("lull_received_packets_total"), "there is no interface");
    }
}

#[test]
fn buckets_are_cumulative_and_the_last_is_the_count() {
    for driver in drivers() {
        let mut runtime = with_histograms(driver);
        runtime.block_on(async {
            for worker in [0, 1] {
                runtime::spawn_on(worker, || async { std::thread::sleep(DELAY) }).await.unwrap();
            }
            // The joiner is woken within the poll, which is counted at its end.
            runtime::spawn_on(1, || async {}).await.unwrap();
        });
        let families = take_page(&runtime);
        let histograms = families.iter().filter(|(_, family)| family.kind == "histogram");
        let names: Vec<&str> = histograms.clone().map(|(name, _)| name.as_str()).collect();
        let expected =
            ["lull_worker_poll_seconds", "lull_worker_schedule_latency_seconds", "lull_worker_turn_seconds"];
        assert_eq!(names, expected, "on {driver}");
        for (name, family) in histograms {
            for worker in ["0", "1"] {
                let of_worker = |suffix: &str| {
                    let name = format!("{name}{suffix}");
                    let samples = family.samples.iter();
                    let matching = samples.filter(move |it| it.name == name && it.labels["worker"] == worker);
                    matching.collect::<Vec<_>>()
                };
                let buckets = of_worker("_bucket");
                let bounds: Vec<f64> = buckets.iter().map(|it| it.labels["le"].parse().unwrap()).collect();
                assert!(bounds.is_sorted_by(|bound, next| bound < next), "{name}: {bounds:?}");
                assert!(buckets.is_sorted_by_key(|bucket| bucket.value), "{name}: {buckets:?}");
                assert_eq!(buckets.last().unwrap().labels["le"], "+Inf");
                let (count, sum) = (of_worker("_count")[0].value, of_worker("_sum")[0].value);
                assert!(count >= 1.0 && buckets.last().unwrap().value == count, "{name} on {driver}");
                assert!(sum > 0.0, "{name} on {driver}: {sum} s in {count}");
            }
        }
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
        let mut runtime = with_histograms(driver);
        let before = take_page(&runtime);
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
        let after = take_page(&runtime);
        let worker = [("worker", "1")];
        let moved =
            |family, labels: &[(&str, &str)]| value(&after, family, labels) - value(&before, family, labels);
        assert!(moved("lull_worker_polls_total", &worker) >= 110.0, "on {driver}");
        assert!(moved("lull_worker_turns_total", &worker) >= 2.0, "on {driver}");
        assert!(moved("lull_worker_waits_total", &worker) >= 1.0, "on {driver}");
        assert_eq!(moved("lull_worker_forced_yields_total", &worker), 7.0, "on {driver}");
        assert!(moved("lull_worker_stalls_total", &worker) >= 1.0, "on {driver}");
        let running = [("worker", "1"), ("activity", "running")];
        assert!(moved("lull_worker_time_seconds_total", &running) >= DELAY.as_secs_f64(), "on {driver}");
        assert_eq!(moved("lull_blocking_finished_total", &[]), 1.0, "on {driver}");

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
        let mut runtime = with_histograms(driver);
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
