//! How a worker waits when it has nothing to run.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What a worker does when it has nothing to run.
///
/// Which is cheapest depends on how long the wait will be. Spinning for about as long as a block costs and
/// then blocking costs at most twice as much as the best choice (Damianakis, Chen and Felten,
/// *Reducing Waiting Costs in User-Level Communication*, 1997).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// Sleep in the kernel until an event, a timer or a wake-up.
    #[default]
    Block,
    /// Poll without sleeping. Takes the whole core.
    Spin,
    /// Poll for this long, then sleep.
    SpinThenBlock(Duration),
    /// Spin, then sleep. The spin limit is the one that would have been cheapest over recent waits: from zero, where waits are
    /// long, to the cost of one sleep, which is measured when a worker starts. For any sequence of waits the total cost is at most
    /// twice that of the best fixed limit, plus about 20 sleeps in every 4096 waits, in which it
    /// learns.
    /// [`Metrics::waiting`](crate::Metrics::waiting) shows both costs.
    ///
    /// Under a policy that polls a queue this is `Block`: the kernel polls in the wait.
    Adaptive,
}

impl WaitStrategy {
    /// The default limit of `spin-then-block`: 50 µs, several times what a block and its wake-up cost (some 3 to 10 µs), for
    /// events that come soon but not at once. [`WaitStrategy::Adaptive`] measures both instead.
    pub const SPIN_LIMIT: Duration = Duration::from_micros(50);

    /// How long to spin; `None`: forever. What `Adaptive` has learned is not in here.
    pub(crate) fn spin_for(self) -> Option<Duration> {
        match self {
            WaitStrategy::Block | WaitStrategy::Adaptive => Some(Duration::ZERO),
            WaitStrategy::Spin => None,
            WaitStrategy::SpinThenBlock(limit) => Some(limit),
        }
    }
}

impl fmt::Display for WaitStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitStrategy::Block => f.pad("block"),
            WaitStrategy::Spin => f.pad("spin"),
            WaitStrategy::Adaptive => f.pad("adaptive"),
            WaitStrategy::SpinThenBlock(limit) => write!(f, "spin-then-block:{}us", limit.as_micros()),
        }
    }
}

/// A string that is not a wait strategy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown wait strategy {given:?}; write block, spin, adaptive, spin-then-block, or with a limit spin-then-block:50us"
)]
pub struct UnknownWaitStrategy {
    given: String,
}

impl FromStr for WaitStrategy {
    type Err = UnknownWaitStrategy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownWaitStrategy { given: text.to_owned() };
        match text {
            "block" => Ok(WaitStrategy::Block),
            "spin" => Ok(WaitStrategy::Spin),
            "adaptive" => Ok(WaitStrategy::Adaptive),
            "spin-then-block" => Ok(WaitStrategy::SpinThenBlock(Self::SPIN_LIMIT)),
            _ => {
                let limit = text.strip_prefix("spin-then-block:").and_then(|limit| limit.strip_suffix("us"));
                let micros = limit.and_then(|limit| limit.parse().ok()).ok_or_else(unknown)?;
                Ok(WaitStrategy::SpinThenBlock(Duration::from_micros(micros)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_parses_back_from_its_name() {
        let limit = WaitStrategy::SpinThenBlock(Duration::from_micros(7));
        for strategy in [WaitStrategy::Block, WaitStrategy::Spin, WaitStrategy::Adaptive, limit] {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
    }

    #[test]
    fn the_error_for_an_unknown_strategy_lists_the_known_ones() {
        for text in ["", "sleep", "spin-then-block:5", "spin-then-block:-1us"] {
            let error = text.parse::<WaitStrategy>().unwrap_err().to_string();
            assert!(error.contains("spin-then-block:50us"), "{error}");
        }
    }
}
