//! What libraries keep on a worker.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

/// What a library keeps on each worker, see [`worker_state`](crate::io::worker_state).
pub trait WorkerState: Any {
    /// Called when [`Runtime::block_on`](crate::Runtime::block_on) is about to return on this worker: until the next one
    /// nobody polls its tasks. What the worker owes to other threads goes out here. It must not block.
    fn pause(&self) {}
}

#[derive(Default)]
pub(crate) struct WorkerStates(RefCell<Vec<Rc<dyn WorkerState>>>);

impl WorkerStates {
    pub(crate) fn get<T: WorkerState + Default>(&self) -> Rc<T> {
        let found = self.0.borrow().iter().find_map(|state| {
            let state: Rc<dyn Any> = Rc::<dyn WorkerState>::clone(state);
            state.downcast::<T>().ok()
        });
        found.unwrap_or_else(|| {
            let made = Rc::<T>::default();
            self.0.borrow_mut().push(Rc::<T>::clone(&made));
            made
        })
    }

    pub(crate) fn pause(&self) {
        let states = self.0.borrow().clone();
        states.iter().for_each(|state| state.pause());
    }
}
