//! How a worker waits when it has nothing to run.

/// What a worker does when it has nothing to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// Sleep in the kernel until an event, a timer or a wake-up. A worker that was woken soon after
    /// it had gone to sleep, by another thread, first spins for the next such wake-up.
    #[default]
    Block,
    /// Poll without sleeping. Takes the whole core.
    Spin,
    /// After a short sleep (at most 100 µs) that no timer has ended, poll for up to 20 µs before
    /// the next one. After a spin in vain a growing number of short sleeps, up to 256, passes
    /// without a spin.
    ///
    /// Under a policy that polls a queue this is `Block`, as the worker's report says: the kernel
    /// polls in the wait.
    Adaptive,
}

policies::names!(WaitStrategy, "wait strategy": Block = "block", Spin = "spin", Adaptive = "adaptive");
