//! The spans of tasks, as a subscriber sees them: what they say, when they are entered, and when
//! they close.

#[path = "../suite/drivers.rs"]
mod drivers;

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once};
use std::task::{Poll, Waker};
use std::time::Duration;

use runtime::task::Builder as TaskBuilder;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static SPANS: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

#[derive(Clone, Default)]
struct Seen {
    target: String,
    fields: HashMap<String, String>,
    entered: u32,
    exited: u32,
    handles: u32,
    /// What was done with its task's wakers, and how often.
    wakers: HashMap<String, u32>,
}

impl Seen {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn is_closed(&self) -> bool {
        self.handles == 0
    }

    fn waker(&self, operation: &str) -> u32 {
        self.wakers.get(operation).copied().unwrap_or_default()
    }
}

struct Fields<'a>(&'a mut HashMap<String, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// Numbers are not used again.
struct Observer;

impl Observer {
    fn with(id: &Id, change: impl FnOnce(&mut Seen)) {
        change(&mut spans()[id.into_u64() as usize - 1]);
    }
}

impl Subscriber for Observer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio::task")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        assert_eq!(attributes.metadata().name(), "runtime.spawn");
        assert!(attributes.is_root());
        let target = attributes.metadata().target().to_owned();
        let mut seen = Seen { target, handles: 1, ..Seen::default() };
        attributes.record(&mut Fields(&mut seen.fields));
        let mut spans = spans();
        spans.push(seen);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        assert_eq!(event.metadata().target(), "tokio::task::waker");
        let mut fields = HashMap::new();
        event.record(&mut Fields(&mut fields));
        let id = Id::from_u64(fields["task.id"].parse().unwrap());
        Self::with(&id, |seen| *seen.wakers.entry(fields["op"].clone()).or_default() += 1);
    }

    fn enter(&self, id: &Id) {
        Self::with(id, |seen| {
            assert!(!seen.is_closed());
            seen.entered += 1;
        });
    }

    fn exit(&self, id: &Id) {
        Self::with(id, |seen| seen.exited += 1);
    }

    fn clone_span(&self, id: &Id) -> Id {
        Self::with(id, |seen| seen.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        Self::with(&id, |seen| seen.handles -= 1);
        false
    }
}

fn spans() -> MutexGuard<'static, Vec<Seen>> {
    SPANS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn observe() {
    static SET: Once = Once::new();
    SET.call_once(|| tracing::subscriber::set_global_default(Observer).unwrap());
}

fn of(id: runtime::task::Id) -> Seen {
    let id = id.to_string();
    let spans = spans();
    let mut found = spans.iter().filter(|seen| seen.field("task.id") == id);
    let only = found.next().unwrap().clone();
    assert!(found.next().is_none(), "one span for each task");
    only
}

/// Not the name of another test's task.
fn unique(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{name} {}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn on_each_driver(test: impl AsyncFn()) {
    observe();
    drivers::on_each_driver(2, test);
}

#[test]
fn each_task_has_a_span_that_its_polls_enter_and_its_end_closes() {
    on_each_driver(async || {
        let name = unique("three polls");
        let polls = async {
            runtime::yield_now().await;
            runtime::sleep(Duration::from_millis(1)).await;
        };
        let line = line!() + 1;
        let task = TaskBuilder::new().name(&name).spawn(polls);
        let id = task.id();
        task.await.unwrap();
        let seen = of(id);
        assert_eq!((seen.target.as_str(), seen.field("kind")), ("tokio::task", "task"));
        assert_eq!((seen.field("task.name"), seen.field("worker")), (name.as_str(), "0"));
        assert_eq!((seen.field("loc.file"), seen.field("loc.line")), (file!(), line.to_string().as_str()));
        assert!(!seen.field("loc.col").is_empty() && !seen.field("size.bytes").is_empty());
        assert_eq!((seen.entered, seen.exited), (3, 3));
        assert!(seen.is_closed());
    });
}

#[test]
fn the_span_of_a_task_on_another_worker_names_that_worker() {
    on_each_driver(async || {
        let task = runtime::spawn_on(1, || async { runtime::yield_now().await });
        let id = task.id();
        task.await.unwrap();
        let seen = of(id);
        assert_eq!((seen.field("worker"), seen.entered, seen.exited), ("1", 2, 2));
        assert!(seen.is_closed() && seen.field("task.name").is_empty());
    });
}

#[test]
fn aborted_and_panicked_tasks_close_their_spans() {
    on_each_driver(async || {
        let before_its_poll = runtime::spawn(pending::<()>());
        let id = before_its_poll.id();
        before_its_poll.abort();
        assert!(before_its_poll.await.unwrap_err().is_cancelled());
        assert_eq!((of(id).entered, of(id).is_closed()), (0, true));

        let mut set = runtime::task::JoinSet::new();
        let waiting = set.spawn_on(1, pending::<()>).id();
        let panics = set.spawn(async { panic!("on purpose") }).id();
        assert!(set.join_next().await.unwrap().unwrap_err().is_panic());
        assert_eq!((of(panics).entered, of(panics).exited, of(panics).is_closed()), (1, 1, true));
        while of(waiting).exited == 0 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        assert!(!of(waiting).is_closed());
        set.abort_all();
        assert!(set.join_next().await.unwrap().unwrap_err().is_cancelled());
        assert_eq!((of(waiting).entered, of(waiting).exited, of(waiting).is_closed()), (1, 1, true));
    });
}

#[test]
fn a_blocking_closure_has_the_span_and_the_task_that_waits_for_it_has_none() {
    on_each_driver(async || {
        let task = runtime::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1)));
        let id = task.id();
        task.await.unwrap();
        let seen = of(id);
        assert_eq!((seen.target.as_str(), seen.field("kind")), ("tokio::task::blocking", "blocking"));
        assert_eq!(seen.field("loc.file"), file!());
        assert_eq!((seen.entered, seen.exited, seen.is_closed()), (1, 1, true));
        assert!(seen.wakers.is_empty());
    });
}

#[test]
fn the_future_of_block_on_has_a_span_until_it_is_ready() {
    observe();
    let runtime = runtime::Builder::new().ignore_environment().workers(1).build().unwrap();
    let id = runtime.block_on(async {
        runtime::yield_now().await;
        runtime::task::id()
    });
    let seen = of(id);
    assert_eq!((seen.field("kind"), seen.field("worker")), ("block_on", "0"));
    assert_eq!((seen.entered, seen.exited, seen.is_closed()), (2, 2, true));
    assert_eq!(seen.waker("waker.clone"), seen.waker("waker.drop"));
}

#[test]
fn wakes_from_any_thread_are_recorded_and_clones_wake_the_same_task() {
    on_each_driver(async || {
        let mut kept: Option<Waker> = None;
        let task = runtime::spawn(std::future::poll_fn(move |context| {
            let Some(waker) = kept.take() else {
                let waker = context.waker().clone();
                assert!(waker.will_wake(context.waker()) && waker.clone().will_wake(&waker));
                kept = Some(waker.clone());
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(1));
                    waker.wake();
                });
                return Poll::Pending;
            };
            assert!(waker.will_wake(context.waker()));
            Poll::Ready(())
        }));
        let id = task.id();
        task.await.unwrap();
        let seen = of(id);
        assert_eq!((seen.entered, seen.exited), (2, 2));
        assert_eq!((seen.waker("waker.clone"), seen.waker("waker.drop")), (3, 2));
        assert_eq!((seen.waker("waker.wake"), seen.waker("waker.wake_by_ref")), (1, 0));
    });
}
