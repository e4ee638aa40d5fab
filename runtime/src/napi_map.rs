//! Which worker owns which NAPI.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use policies::{Interface, host};

use crate::shared::WorkerShared;

/// Filled at start from the interface's queues; grows when an unseen id appears; is never wiped, as
/// connections of old ids live on.
#[derive(Debug, Default)]
pub(crate) struct NapiMap {
    owners: RwLock<HashMap<u32, usize>>,
    /// Spreads ids over workers where nothing says which queue they are of.
    next: AtomicU32,
    /// The queues that are this process's; all where it is not set.
    held: OnceLock<Vec<u32>>,
}

impl NapiMap {
    /// Leaves the other queues to other processes.
    pub(crate) fn hold(&self, queues: Vec<u32>) {
        // Once, before the first worker starts.
        let _ = self.held.set(queues);
    }

    /// The NAPIs of this process's queues, in their order.
    pub(crate) fn own_ids(&self, interface: &Interface) -> Vec<u32> {
        let queues = interface.queues.iter();
        let own = queues.filter(|queue| self.held.get().is_none_or(|held| held.contains(&queue.index)));
        own.filter_map(|queue| Some(queue.napi.as_ref()?.id)).collect()
    }

    /// Gives the interface's NAPIs to the workers, in queue order.
    pub(crate) fn fill(&self, napi_ids: &[u32], workers: &[Arc<WorkerShared>]) {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        for (position, &id) in napi_ids.iter().enumerate() {
            let owner = position % workers.len();
            owners.insert(id, owner);
            // At most one NAPI a worker: the first. Sockets of the others are served without polling.
            let _ = workers[owner].napi.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The worker that a connection of this NAPI belongs to; id 0 goes to the least loaded.
    pub(crate) fn owner(&self, napi: u32, interface: Option<&str>, workers: &[Arc<WorkerShared>]) -> usize {
        if napi == 0 {
            return least_loaded(workers);
        }
        if let Some(&owner) = self.owners.read().unwrap_or_else(PoisonError::into_inner).get(&napi) {
            return owner;
        }
        self.learn(napi, interface, workers)
    }

    /// An id that was not there at start: another interface, or a link that was reopened, which gives
    /// its queues new ids on drivers without persistent NAPI configuration.
    fn learn(&self, napi: u32, interface: Option<&str>, workers: &[Arc<WorkerShared>]) -> usize {
        let ids =
            interface.and_then(|name| host::interface(name).ok()).map(|interface| self.own_ids(&interface));
        let position = ids.as_ref().and_then(|ids| ids.iter().position(|&id| id == napi));
        let owner = match position {
            Some(position) => {
                let owner = position % workers.len();
                let current = workers[owner].napi.load(Ordering::Relaxed);
                if !ids.is_some_and(|ids| ids.contains(&current)) {
                    workers[owner].napi.store(napi, Ordering::Relaxed);
                }
                owner
            }
            None => self.next.fetch_add(1, Ordering::Relaxed) as usize % workers.len(),
        };
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        *owners.entry(napi).or_insert(owner)
    }
}

fn least_loaded(workers: &[Arc<WorkerShared>]) -> usize {
    workers.iter().min_by_key(|worker| worker.load.load(Ordering::Relaxed)).map_or(0, |worker| worker.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(count: usize) -> Vec<Arc<WorkerShared>> {
        (0..count).map(|index| Arc::new(WorkerShared::new(index).unwrap())).collect()
    }

    #[test]
    fn queues_go_to_workers_in_order_and_wrap_around() {
        let (map, workers) = (NapiMap::default(), workers(2));
        map.fill(&[10, 11, 12], &workers);
        assert_eq!([10, 11, 12].map(|id| map.owner(id, None, &workers)), [0, 1, 0]);
        assert_eq!(workers[0].napi.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn id_zero_goes_to_the_least_loaded_worker() {
        let (map, workers) = (NapiMap::default(), workers(2));
        workers[0].load.store(3, Ordering::Relaxed);
        assert_eq!(map.owner(0, None, &workers), 1);
    }

    #[test]
    fn an_unseen_id_keeps_the_worker_that_it_was_given() {
        let (map, workers) = (NapiMap::default(), workers(2));
        map.fill(&[10, 11], &workers);
        let owner = map.owner(99, None, &workers);
        assert_eq!(map.owner(99, None, &workers), owner);
        assert_eq!(map.owner(11, None, &workers), 1);
    }
}
