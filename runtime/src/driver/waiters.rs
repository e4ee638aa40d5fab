//! The tasks that wait for one thing: readiness of a descriptor, or a connection to accept.

use std::cell::RefCell;
use std::task::{Context, Waker};

use slab::Slab;

/// Any number of waiting futures, each with a place until it is dropped. Without any it takes no
/// memory of its own.
#[derive(Default)]
pub(crate) struct Waiters(RefCell<Option<Box<Slab<Option<Waker>>>>>);

impl Waiters {
    /// A future's place, which it takes when it first waits.
    pub(crate) fn enter(&self) -> Waiting<'_> {
        Waiting { waiters: self, key: None }
    }

    /// Takes the wakers of all futures that wait. They are woken outside: a waker may be foreign
    /// code.
    pub(crate) fn take(&self) -> Vec<Waker> {
        let mut waiters = self.0.borrow_mut();
        let waiting = waiters.iter_mut().flat_map(|waiters| waiters.iter_mut());
        waiting.filter_map(|(_, waker)| waker.take()).collect()
    }
}

opaque_debug!(Waiters, "Waiters", |it| "count" = it.0.borrow().as_ref().map_or(0, |waiters| waiters.len()));

/// The place of one future among the waiters.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    key: Option<usize>,
}

impl Waiting<'_> {
    /// Stores the waker of the future's task.
    pub(crate) fn wait(&mut self, context: &Context<'_>) {
        let waker = context.waker().clone();
        let mut borrowed = self.waiters.0.borrow_mut();
        let waiters = borrowed.get_or_insert_default();
        let replaced = match self.key.and_then(|key| waiters.get_mut(key)) {
            Some(slot) => slot.replace(waker),
            None => {
                self.key = Some(waiters.insert(Some(waker)));
                None
            }
        };
        // As in `drop`.
        drop(borrowed);
        drop(replaced);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut waiters = self.waiters.0.borrow_mut();
        let waker = waiters.as_mut().and_then(|waiters| waiters.try_remove(key));
        if waiters.as_ref().is_some_and(|waiters| waiters.is_empty()) {
            *waiters = None;
        }
        // Outside of the borrow: dropping the waker may run foreign code.
        drop(waiters);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_future_that_waits_is_woken_and_a_dropped_one_is_forgotten() {
        let waiters = Waiters::default();
        let context = Context::from_waker(Waker::noop());
        let (mut first, mut second, mut third) = (waiters.enter(), waiters.enter(), waiters.enter());
        first.wait(&context);
        first.wait(&context);
        second.wait(&context);
        third.wait(&context);
        drop(second);
        assert_eq!(waiters.take().len(), 2);
        assert!(waiters.take().is_empty());
        third.wait(&context);
        assert_eq!(waiters.take().len(), 1);
        drop((first, third));
        assert!(waiters.0.borrow().is_none());
    }
}
