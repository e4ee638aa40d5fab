//! Timers, intervals and limits.

use std::time::Duration;

#[runtime::test]
async fn an_interval_of_the_longest_duration_ticks_once() {
    let mut interval = runtime::interval(Duration::MAX);
    interval.tick().await;
    let second = runtime::timeout(Duration::from_millis(2), interval.tick()).await;
    assert!(second.is_err());
}
