//! `Handle::block_on`: a thread outside of the runtime polls a future, and spins and sleeps between polls as `WaitStrategy` says.

use std::cell::OnceCell;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::pin;
use std::sync::{Arc, Once, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use policies::law::MachineCosts;
use rustix::thread::set_current_timer_slack;

use super::spin_limit::SpinLimit;
use super::thread_parker::ThreadParker;
use crate::config::wait_strategy::WaitStrategy;
use crate::counters::waiting::{WaitingCosts, WaitingCounters};
use crate::thread_settings::with_settings_from_before;
use crate::timers::clock::monotonic_nanos;

/// What a sleep costs here. Measured once in a process, when a thread first waits.
static COSTS: OnceLock<MachineCosts> = OnceLock::new();

thread_local! {
    /// What the thread has learned from its waits.
    static LEARNED: OnceCell<Learned> = const { OnceCell::new() };
}

struct Learned {
    limit: SpinLimit,
    counters: WaitingCounters,
}

impl Learned {
    fn new(costs: MachineCosts) -> Self {
        Self { limit: SpinLimit::new(costs), counters: WaitingCounters::default() }
    }
}

/// Polls a future on the calling thread until it is ready. `counted` gets what each adaptive wait has cost.
pub(crate) fn block_on<F: Future>(future: F, strategy: WaitStrategy, counted: &WaitingCounters) -> F::Output {
    let parker = Arc::new(ThreadParker::default());
    let waker = Waker::from(Arc::clone(&parker));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        if strategy == WaitStrategy::Adaptive {
            wait_adaptively(&parker, counted);
        } else {
            wait(&parker, strategy.spin_for());
        }
    }
}

fn wait_adaptively(parker: &ThreadParker, counted: &WaitingCounters) {
    let Some(costs) = machine_costs() else {
        parker.sleep();
        return;
    };
    // Fails if a destructor of another thread-local calls `block_on` while the thread exits.
    let waited = LEARNED.try_with(|learned| {
        let learned = learned.get_or_init(|| Learned::new(costs));
        let begun = monotonic_nanos();
        let blocked = wait(parker, Some(learned.limit.limit()));
        let elapsed = Duration::from_nanos(monotonic_nanos().saturating_sub(begun));
        let before = learned.counters.read();
        learned.limit.record(elapsed, blocked, &learned.counters);
        add(counted, &before, &learned.counters.read());
    });
    if waited.is_err() {
        parker.sleep();
    }
}

/// Spins for up to `limit` (`None`: forever), then sleeps. Returns whether it slept.
fn wait(parker: &ThreadParker, limit: Option<Duration>) -> bool {
    if limit == Some(Duration::ZERO) {
        parker.sleep();
        return true;
    }
    let end = limit.map(|limit| monotonic_nanos().saturating_add(limit.as_nanos() as u64));
    while !parker.take() {
        if end.is_some_and(|end| monotonic_nanos() >= end) {
            parker.sleep();
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// What a sleep costs on this machine; `None` until it is measured.
fn machine_costs() -> Option<MachineCosts> {
    static MEASURING: Once = Once::new();
    // The measurement takes some milliseconds, for which the caller should not wait, and changes the timer slack of its thread.
    MEASURING.call_once(|| {
        let measure = || {
            let _ = set_current_timer_slack(NonZeroU64::new(1));
            let _ = COSTS.set(MachineCosts::measure());
        };
        // Without a thread nothing is known, and waits sleep at once.
        let costs = thread::Builder::new().name("lull-costs".to_owned());
        // Not on the core that the caller may be pinned to.
        let _ = with_settings_from_before(|| costs.spawn(measure));
    });
    COSTS.get().copied()
}

/// Adds what one wait has changed in a thread's counters. Other threads add to the same.
fn add(counted: &WaitingCounters, before: &WaitingCosts, after: &WaitingCosts) {
    counted.waits.add_shared(after.waits - before.waits);
    counted.blocks.add_shared(after.blocks - before.blocks);
    counted.spin_limit_ns.set(after.spin_limit_ns);
    counted.block_ns.set(after.block_ns);
    counted.cost_ns.add_shared(after.cost_ns - before.cost_ns);
    counted.blocking_cost_ns.add_shared(after.blocking_cost_ns - before.blocking_cost_ns);
    counted.best_fixed_cost_ns.add_shared(after.best_fixed_cost_ns.saturating_sub(before.best_fixed_cost_ns));
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    /// Ready in the poll after another thread has set the flag and woken it.
    fn woken_after(delay: Duration) -> impl Future<Output = u32> {
        let set = Arc::new(AtomicBool::new(false));
        let (mut begun, mut polls) = (false, 0);
        poll_fn(move |context| {
            polls += 1;
            if set.load(Ordering::SeqCst) {
                return Poll::Ready(polls);
            }
            if !std::mem::replace(&mut begun, true) {
                let (set, waker) = (Arc::clone(&set), context.waker().clone());
                thread::spawn(move || {
                    thread::sleep(delay);
                    set.store(true, Ordering::SeqCst);
                    waker.wake();
                });
            }
            Poll::Pending
        })
    }

    #[test]
    fn a_future_is_polled_again_only_when_it_was_woken() {
        let counters = WaitingCounters::default();
        for strategy in [
            WaitStrategy::Block,
            WaitStrategy::Spin,
            WaitStrategy::SpinThenBlock(Duration::from_micros(50)),
            WaitStrategy::Adaptive,
        ] {
            for delay in [0, 2] {
                let polls = block_on(woken_after(Duration::from_millis(delay)), strategy, &counters);
                assert_eq!(polls, 2, "{strategy}");
            }
        }
    }

    #[test]
    fn a_wake_during_the_poll_is_kept_for_the_wait() {
        let polls = AtomicU32::new(0);
        let future = poll_fn(|context| {
            context.waker().wake_by_ref();
            if polls.fetch_add(1, Ordering::Relaxed) < 1_000 { Poll::Pending } else { Poll::Ready(7) }
        });
        assert_eq!(block_on(future, WaitStrategy::Block, &WaitingCounters::default()), 7);
    }

    #[test]
    fn a_wait_within_a_poll_takes_no_wake_of_the_outer_future() {
        let counters = WaitingCounters::default();
        let mut nested = false;
        let outer = poll_fn(|context| {
            if std::mem::replace(&mut nested, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            block_on(woken_after(Duration::from_millis(1)), WaitStrategy::Block, &counters);
            Poll::Pending
        });
        block_on(outer, WaitStrategy::Block, &counters);
    }

    #[test]
    fn waits_of_several_threads_are_added_up() {
        let counters = WaitingCounters::default();
        let yield_to_other = || woken_after(Duration::ZERO);
        while machine_costs().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        block_on(yield_to_other(), WaitStrategy::Adaptive, &counters);
                    }
                });
            }
        });
        let counted = counters.read();
        assert_eq!(counted.waits, 100);
        assert!(counted.blocks <= 100 && counted.block_ns > 0 && counted.cost_ns > 0, "{counted:?}");
        assert!(counted.cost_ns <= 2 * counted.best_fixed_cost_ns + 2 * 20 * counted.block_ns, "{counted:?}");
    }
}
