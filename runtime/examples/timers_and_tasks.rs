//! Tasks, sleeps, an interval, a timeout and an abort on one worker.
//!
//! ```sh
//! cargo run -p lull-runtime --example timers_and_tasks
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

#[runtime::main(workers = 1)]
async fn main() {
    let start = Instant::now();

    // Tasks stay on their worker, so they may share what is not `Send`.
    let ticks = Rc::new(Cell::new(0));
    let counted = Rc::clone(&ticks);
    let ticking = runtime::spawn(async move {
        let mut interval = runtime::interval(Duration::from_millis(10));
        loop {
            interval.tick().await;
            counted.set(counted.get() + 1);
        }
    });

    // Ten sleeps at the same time take as long as one.
    let sleeping: Vec<_> = (0..10)
        .map(|number| {
            runtime::spawn(async move {
                runtime::sleep(Duration::from_millis(50)).await;
                number
            })
        })
        .collect();
    let mut sum = 0;
    for task in sleeping {
        sum += task.await.expect("the task neither panics nor is aborted");
    }
    println!("ten sleeps of 50 ms: sum {sum} after {} ms", start.elapsed().as_millis());

    // A future that is not ready in time is dropped.
    let late = runtime::timeout(Duration::from_millis(20), runtime::sleep(Duration::from_secs(60))).await;
    println!("a sleep of a minute: {}", late.expect_err("20 ms are over first"));

    ticking.abort();
    let error = ticking.await.expect_err("the task never ends by itself");
    println!("the interval of 10 ms ticked {} times; then {error}", ticks.get());
}
