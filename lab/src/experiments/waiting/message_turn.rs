//! One turn: two threads exchange messages at all gaps, under one strategy.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;

use policies::Cpus;
use runtime::{Builder, Handle, Runtime, WaitStrategy};
use serde::Serialize;

use super::config::WaitingConfig;
use super::exchange::{Direction, Exchange};
use super::gap::Gap;
use super::messages::{answer, ask};
use crate::Error;
use crate::engine::{CoreAssignment, Turn};

/// Who exchanges messages. The one that asks computes in the gaps; the one that answers waits for as long as they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Pair {
    /// A worker asks, another one answers.
    Workers,
    /// A worker asks, a thread answers, which waits in `Handle::block_on`.
    WorkerAsksThread,
    /// A thread asks and waits for the answer in `Handle::block_on`; a worker answers.
    ThreadAsksWorker,
}

impl Pair {
    /// All pairs, in the order of the report.
    pub const ALL: [Self; 3] = [Self::Workers, Self::WorkerAsksThread, Self::ThreadAsksWorker];

    /// Who asks, and who answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Workers => "worker to worker",
            Self::WorkerAsksThread => "worker to thread",
            Self::ThreadAsksWorker => "thread to worker",
        }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Measures messages at one gap.
pub(super) fn measure(
    pair: Pair,
    gap: Gap,
    strategy: WaitStrategy,
    cores: CoreAssignment,
    config: &WaitingConfig,
) -> Result<Turn, Error> {
    // New threads, which are pinned and have learned nothing. The caller keeps its affinity.
    let measured = thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            Cpus::one(cores.client).pin(None)?;
            Cpus::one(cores.server).pin(None)?;
            measure_here(pair, gap, strategy, cores, config)
        });
        measuring.join()
    });
    let (cost, asked, answered) = measured.unwrap_or_else(|_| Err(panicked().into()))?;
    if asked != answered {
        let error = format!("{pair}: {asked} messages were sent, and {answered} answered");
        return Err(io::Error::other(error).into());
    }
    Ok(cost)
}

fn panicked() -> io::Error {
    io::Error::other("a measuring thread panicked")
}

/// Returns what the messages cost, their number, and the number of answers.
fn measure_here(
    pair: Pair,
    gap: Gap,
    strategy: WaitStrategy,
    cores: CoreAssignment,
    config: &WaitingConfig,
) -> Result<(Turn, u64, u64), Error> {
    let exchange = Arc::new(Exchange::default());
    let mut runtime = build(pair, strategy, cores, config)?;
    let handle = runtime.handle();
    if pair == Pair::Workers {
        let answering = Arc::clone(&exchange);
        let answering = handle.spawn_on(1, move || async move { answer(&answering, on_worker).await });
        let (cost, asked) = runtime.block_on(ask(&exchange, gap, config, on_worker));
        let answered = runtime.block_on(answering).map_err(io::Error::other)?;
        return Ok((cost, asked, answered));
    }
    thread::scope(|scope| {
        let exchange = &exchange;
        if pair == Pair::WorkerAsksThread {
            let answering = scope.spawn(|| {
                on_thread(cores.client, || handle.block_on(answer(exchange, waiting_thread(&handle))))
            });
            let (cost, asked) = runtime.block_on(ask(exchange, gap, config, on_worker));
            let answered = answering.join().unwrap_or_else(|_| Err(panicked()))?;
            return Ok((cost, asked, answered));
        }
        let asking = scope.spawn(|| {
            on_thread(cores.client, || handle.block_on(ask(exchange, gap, config, waiting_thread(&handle))))
        });
        let answered = runtime.block_on(answer(exchange, on_worker));
        let (cost, asked) = asking.join().unwrap_or_else(|_| Err(panicked()))?;
        Ok((cost, asked, answered))
    })
}

fn build(
    pair: Pair,
    strategy: WaitStrategy,
    cores: CoreAssignment,
    config: &WaitingConfig,
) -> Result<Runtime, Error> {
    let builder =
        Builder::new().ignore_environment().driver(config.driver).wait(strategy).thread_wait(strategy);
    let pinned: Cpus = match pair {
        // Worker 0 is on the lower one.
        Pair::Workers => [cores.server, cores.client].into_iter().collect(),
        _ => Cpus::one(cores.server),
    };
    let workers = if pair == Pair::Workers { 2 } else { 1 };
    Ok(builder.workers(workers).cores(pinned).build()?)
}

async fn on_worker(direction: &Direction, number: u64) -> u64 {
    direction.receive(number).await
}

/// Waits as a thread does that is no worker: by a `block_on` for each message.
fn waiting_thread(handle: &Handle) -> impl AsyncFn(&Direction, u64) -> u64 {
    async |direction: &Direction, number| handle.block_on(direction.receive(number))
}

/// Runs on a core. Without the core it runs all the same, because the other side waits for it, and returns the error.
fn on_thread<T>(core: u32, run: impl FnOnce() -> T) -> io::Result<T> {
    let pinned = Cpus::one(core).pin(None);
    let result = run();
    pinned.map(|()| result)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::Figure;

    #[test]
    fn every_pair_answers_all_messages_at_all_gaps() {
        let cores = CoreAssignment::choose().unwrap();
        let config = WaitingConfig {
            message_warm_up: 0.005,
            message_duration: 0.02,
            ..WaitingConfig::new(true, None)
        };
        for pair in Pair::ALL {
            for strategy in [WaitStrategy::Block, WaitStrategy::Adaptive] {
                for gap in [Gap::Fixed(Duration::from_micros(20)), Gap::Mixed] {
                    let turn = measure(pair, gap, strategy, cores, &config).unwrap();
                    for figure in [Figure::RoundTrip, Figure::P99, Figure::CpuPerRequest] {
                        assert!(turn.get(figure) > 0.0, "{pair}, {gap}, {strategy}: {turn:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error_and_no_hang() {
        let cores = CoreAssignment { server: 100_000, ..CoreAssignment::choose().unwrap() };
        let config = WaitingConfig::new(true, None);
        assert!(measure(Pair::Workers, Gap::Mixed, WaitStrategy::Block, cores, &config).is_err());
    }
}
