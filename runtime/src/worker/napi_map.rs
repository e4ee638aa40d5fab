//! Which worker serves the connections of which NAPI.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use policies::{Interface, host};

use super::worker_handle::WorkerHandle;

/// Filled at start from the interface's queues, and extended when an unknown id appears. Ids are never
/// removed: connections of old ids live on.
#[derive(Debug, Default)]
pub(crate) struct NapiMap {
    owners: RwLock<HashMap<u32, usize>>,
    /// Distributes ids whose queue is unknown round robin.
    next: AtomicU32,
    /// The queues that this process polls; all of them unless set.
    own_queues: OnceLock<Vec<u32>>,
}

impl NapiMap {
    /// Restricts this process to some of the interface's queues. Called at most once, before the first
    /// worker starts.
    pub(crate) fn restrict_to(&self, queues: Vec<u32>) {
        let _ = self.own_queues.set(queues);
    }

    /// The NAPIs of this process's queues, in queue order.
    pub(crate) fn own_ids(&self, interface: &Interface) -> Vec<u32> {
        let queues = interface.queues.iter();
        let own = queues.filter(|queue| self.own_queues.get().is_none_or(|own| own.contains(&queue.index)));
        own.filter_map(|queue| Some(queue.napi.as_ref()?.id)).collect()
    }

    /// Assigns NAPIs to the workers round robin, in queue order.
    pub(crate) fn assign(&self, napi_ids: &[u32], workers: &[Arc<WorkerHandle>]) {
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        for (position, &id) in napi_ids.iter().enumerate() {
            let owner = position % workers.len();
            owners.insert(id, owner);
            // A worker polls one NAPI, its first. Sockets of its other NAPIs are served without polling.
            let _ = workers[owner].napi.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The worker that serves the connections of a NAPI. For id 0, the worker with the fewest connections.
    pub(crate) fn owner(&self, napi: u32, interface: Option<&str>, workers: &[Arc<WorkerHandle>]) -> usize {
        if napi == 0 {
            return with_fewest_connections(workers);
        }
        if let Some(&owner) = self.owners.read().unwrap_or_else(PoisonError::into_inner).get(&napi) {
            return owner;
        }
        self.assign_unknown(napi, interface, workers)
    }

    /// Assigns an id that did not exist at start: another interface's, or a new id of a queue whose link
    /// was reopened (drivers without persistent NAPI configuration).
    fn assign_unknown(&self, napi: u32, interface: Option<&str>, workers: &[Arc<WorkerHandle>]) -> usize {
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

fn with_fewest_connections(workers: &[Arc<WorkerHandle>]) -> usize {
    workers
        .iter()
        .min_by_key(|worker| worker.connections.load(Ordering::Relaxed))
        .map_or(0, |worker| worker.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(count: usize) -> Vec<Arc<WorkerHandle>> {
        (0..count).map(|index| Arc::new(WorkerHandle::new(index).unwrap())).collect()
    }

    #[test]
    fn queues_go_to_workers_in_order_and_wrap_around() {
        let (map, workers) = (NapiMap::default(), workers(2));
        map.assign(&[10, 11, 12], &workers);
        assert_eq!([10, 11, 12].map(|id| map.owner(id, None, &workers)), [0, 1, 0]);
        assert_eq!(workers[0].napi.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn id_zero_goes_to_the_worker_with_the_fewest_connections() {
        let (map, workers) = (NapiMap::default(), workers(2));
        workers[0].connections.store(3, Ordering::Relaxed);
        assert_eq!(map.owner(0, None, &workers), 1);
    }

    #[test]
    fn an_unknown_id_keeps_its_worker() {
        let (map, workers) = (NapiMap::default(), workers(2));
        map.assign(&[10, 11], &workers);
        let owner = map.owner(99, None, &workers);
        assert_eq!(map.owner(99, None, &workers), owner);
        assert_eq!(map.owner(11, None, &workers), 1);
    }
}
