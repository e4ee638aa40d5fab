//! Prints each task when it ends: its name, where it was spawned, and how long it ran and waited.
//!
//! ```sh
//! cargo run -p lull-runtime --features task-spans --example task_spans
//! ```

use std::thread::sleep as block;
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> Result<(), runtime::BuildError> {
    // Spans have the level TRACE. Operations on wakers are events with another target, which is
    // left out here.
    let tasks = Targets::new()
        .with_target("tokio::task", LevelFilter::TRACE)
        .with_target("tokio::task::waker", LevelFilter::OFF);
    // A span that closes prints a line with `time.busy`, while it was entered, and `time.idle`.
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_span_events(FmtSpan::CLOSE);
    tracing_subscriber::registry().with(tasks).with(lines).init();

    let runtime = runtime::Builder::new().workers(2).build()?;
    runtime.block_on(async {
        let waits = runtime::task::Builder::new().name("waits").spawn(async {
            runtime::sleep(Duration::from_millis(30)).await;
        });
        let computes = runtime::task::Builder::new().name("computes").spawn_on(1, || async {
            block(Duration::from_millis(10));
        });
        let closure = runtime::spawn_blocking(|| block(Duration::from_millis(5)));
        waits.await.expect("it neither panics nor is aborted");
        computes.await.expect("it neither panics nor is aborted");
        closure.await.expect("it does not panic");
    });
    Ok(())
}
