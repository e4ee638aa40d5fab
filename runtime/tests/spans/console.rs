//! tokio-console shows Lull's tasks: what `console-subscriber` sends to it is read here by the
//! console's own client.
//!
//! `.ci/sanitizer` sets the flag; without it, `console-subscriber` is not compiled.
#![cfg(console_without_tokio_unstable)]

use std::collections::HashMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use console_api::Field;
use console_api::field::{Name, Value};
use console_api::instrument::instrument_client::InstrumentClient;
use console_api::instrument::{InstrumentRequest, Update};
use console_api::tasks::{Stats, Task};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

#[derive(Default)]
struct Console {
    tasks: HashMap<u64, Task>,
    stats: HashMap<u64, Stats>,
}

impl Console {
    fn take(&mut self, update: Update) {
        let Some(update) = update.task_update else { return };
        assert_eq!(update.dropped_events, 0);
        for task in update.new_tasks {
            self.tasks.insert(task.id.unwrap().id, task);
        }
        self.stats.extend(update.stats_update);
    }

    fn named(&self, name: &str) -> Option<(&Task, &Stats)> {
        let (id, task) =
            self.tasks.iter().find(|(_, task)| field(task, "task.name").as_deref() == Some(name))?;
        Some((task, self.stats.get(id)?))
    }
}

fn field(task: &Task, name: &str) -> Option<String> {
    let named = |found: &Field| matches!(&found.name, Some(Name::StrName(found)) if found == name);
    Some(match task.fields.iter().find(|field| named(field))?.value.as_ref()? {
        Value::StrVal(value) | Value::DebugVal(value) => value.clone(),
        Value::U64Val(value) => value.to_string(),
        other => format!("{other:?}"),
    })
}

/// What the console knows once it has seen these tasks end.
async fn watch(port: u16, names: &[&str]) -> Console {
    let begun = Instant::now();
    let mut client = loop {
        // The server may not listen yet.
        match InstrumentClient::connect(format!("http://127.0.0.1:{port}")).await {
            Ok(client) => break client,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(60), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let mut updates = client.watch_updates(InstrumentRequest {}).await.unwrap().into_inner();
    let mut console = Console::default();
    let ended =
        |console: &Console, name| console.named(name).is_some_and(|(_, stats)| stats.dropped_at.is_some());
    while !names.iter().all(|name| ended(&console, name)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", console.tasks);
        console.take(updates.message().await.unwrap().unwrap());
    }
    console
}

#[test]
fn the_console_sees_names_places_busy_time_and_wakes() {
    // Freed at once, for the server of the console.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let layer = console_subscriber::ConsoleLayer::builder()
        .server_addr(([127, 0, 0, 1], port))
        .publish_interval(Duration::from_millis(50));
    tracing_subscriber::registry().with(layer.spawn()).init();

    let lull = std::thread::spawn(|| {
        let runtime = runtime::Builder::new().ignore_environment().workers(2).build().unwrap();
        runtime.block_on(async {
            let waits = runtime::task::Builder::new().name("waits").spawn_on(1, || async {
                for _ in 0..3 {
                    runtime::sleep(Duration::from_millis(5)).await;
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            let aborted = runtime::task::Builder::new().name("aborted").spawn(std::future::pending::<()>());
            waits.await.unwrap();
            aborted.abort();
            assert!(aborted.await.unwrap_err().is_cancelled());
        });
    });
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let console = tokio.block_on(watch(port, &["waits", "aborted"]));
    lull.join().unwrap();

    let (task, stats) = console.named("waits").unwrap();
    assert_eq!(field(task, "kind").unwrap(), "task");
    assert_eq!(field(task, "worker").unwrap(), "1");
    assert!(field(task, "task.id").is_some());
    assert!(task.location.as_ref().unwrap().file().ends_with("tests/spans/console.rs"));
    let polls = stats.poll_stats.as_ref().unwrap();
    assert_eq!(polls.polls, 4);
    let busy = Duration::try_from(polls.busy_time.unwrap()).unwrap();
    assert!(busy >= Duration::from_millis(30), "{busy:?}");
    assert_eq!((stats.wakes, stats.self_wakes), (3, 0));
    assert_eq!(stats.waker_clones, stats.waker_drops);
    let (_, stats) = console.named("aborted").unwrap();
    assert_eq!((stats.poll_stats.as_ref().unwrap().polls, stats.wakes), (1, 0));
}
