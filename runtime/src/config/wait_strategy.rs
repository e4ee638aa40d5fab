//! How a worker waits when it has nothing to run.

use std::fmt;
use std::str::FromStr;

/// What a worker does when it has nothing to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// Sleep in the kernel until an event, a timer or a wake-up. A worker that was woken soon after it had gone to sleep, by
    /// another thread, first spins for the next such wake-up.
    #[default]
    Block,
    /// Poll without sleeping. Takes the whole core.
    Spin,
    /// After a short sleep (at most 100 µs) that no timer has ended, poll for up to 20 µs before the next one. After a spin in
    /// vain a growing number of short sleeps, up to 256, passes without a spin.
    ///
    /// Under a policy that polls a queue this is `Block`, as the worker's report says: the kernel polls in the wait.
    Adaptive,
}

impl fmt::Display for WaitStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitStrategy::Block => f.pad("block"),
            WaitStrategy::Spin => f.pad("spin"),
            WaitStrategy::Adaptive => f.pad("adaptive"),
        }
    }
}

/// A string that is not a wait strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown wait strategy {given:?}; write block, spin or adaptive")]
pub struct UnknownWaitStrategy {
    given: String,
}

impl FromStr for WaitStrategy {
    type Err = UnknownWaitStrategy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "block" => Ok(WaitStrategy::Block),
            "spin" => Ok(WaitStrategy::Spin),
            "adaptive" => Ok(WaitStrategy::Adaptive),
            _ => Err(UnknownWaitStrategy { given: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_parses_back_from_its_name() {
        for strategy in [WaitStrategy::Block, WaitStrategy::Spin, WaitStrategy::Adaptive] {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
    }

    #[test]
    fn the_error_for_an_unknown_strategy_lists_the_known_ones() {
        for text in ["", "sleep", "spin-then-block"] {
            let error = text.parse::<WaitStrategy>().unwrap_err().to_string();
            assert!(error.contains("block, spin or adaptive"), "{error}");
        }
    }
}
