//! What a timer costs: Lull's, and tokio's on its thread.
//! `cargo run --release -p lull-adapters --example timer_cost`

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 7;
/// Timers of one round that are dropped before they are due, as those of limits are.
const DROPPED: u32 = 100_000;
/// Timers of one round that are waited for, one after the other.
const AWAITED: u32 = 500;
const LIMIT: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(1);

#[runtime::main(workers = 1)]
async fn main() -> std::io::Result<()> {
    adapters::tokio_context::enter()?;
    let mut costs: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        costs[0].push(cost(DROPPED, async || _ = runtime::timeout(LIMIT, runtime::yield_now()).await).await);
        costs[1]
            .push(cost(DROPPED, async || _ = tokio::time::timeout(LIMIT, runtime::yield_now()).await).await);
        costs[2].push(cost(AWAITED, async || runtime::sleep(SHORT).await).await);
        costs[3].push(cost(AWAITED, async || tokio::time::sleep(SHORT).await).await);
    }
    let [dropped, tokios_dropped, awaited, tokios_awaited] = costs.map(median);
    println!("CPU time in µs        Lull   tokio's thread");
    println!("dropped before due  {dropped:6.2}  {tokios_dropped:15.2}");
    println!("waited for          {awaited:6.2}  {tokios_awaited:15.2}");
    Ok(())
}

/// Microseconds of CPU time that the process has used for each of `count`.
async fn cost(count: u32, timer: impl AsyncFn()) -> f64 {
    let used = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
    let before = used();
    for _ in 0..count {
        timer().await;
    }
    (used() - before).as_secs_f64() * 1e6 / f64::from(count)
}

fn median(mut costs: Vec<f64>) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}
