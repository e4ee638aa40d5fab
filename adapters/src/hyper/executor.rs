//! Spawns hyper's futures.

/// Spawns hyper's futures on the calling worker. They need not be `Send`.
///
/// Outside of a runtime it panics.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Executor;

impl Executor {
    /// The executor of whichever worker calls it.
    pub fn new() -> Self {
        Self
    }
}

impl<F> ::hyper::rt::Executor<F> for Executor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        drop(runtime::spawn(future));
    }
}
