//! Which worker serves the connections of which NAPI.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use policies::Interface;

use super::worker_handle::WorkerHandle;
use crate::thread_settings::with_settings_from_before;

/// A receive queue of the runtime's interface, and the worker that serves its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedQueue {
    /// The queue's number on the interface.
    pub queue: u32,
    /// The NAPI that polls the queue (`SO_INCOMING_NAPI_ID` of its connections).
    pub napi: u32,
    /// The index of the worker that polls it, from 0.
    pub worker: usize,
}

/// Filled at start from the interface's queues, and read again when an unknown id appears. Ids are
/// never removed: connections of old ids live on.
#[derive(Debug, Default)]
pub(crate) struct NapiMap {
    /// The worker of each NAPI; `None` for those that are no queue of the interface.
    owners: RwLock<HashMap<u32, Option<usize>>>,
    /// The queues of the interface that this process polls, with their NAPIs when they were read
    /// last.
    queues: RwLock<Vec<OwnedQueue>>,
    /// Whether the interface's packets have the number of their queue as it is, and not one more.
    plain_numbers: AtomicBool,
    /// The queues that this process polls; all of them unless set.
    own_queues: OnceLock<Vec<u32>>,
    /// The number of queues if there are more workers than queues, else 0. With `n` queues the
    /// connections of queue `q` are shared by the workers `q`, `q + n`, `q + 2n` and so on.
    sharing: AtomicUsize,
    /// How many unknown ids have come that a thread is to look for.
    unknown: AtomicU32,
}

impl NapiMap {
    /// Restricts this process to some of the interface's queues. Called at most once, before the
    /// first worker starts.
    pub(crate) fn restrict_to(&self, queues: Vec<u32>) {
        let _ = self.own_queues.set(queues);
    }

    /// This process's queues whose NAPI is known, in order: each with its NAPI.
    pub(crate) fn own_queues(&self, interface: &Interface) -> Vec<(u32, u32)> {
        // A veth pair passes the sender's choice on; hardware and tun record theirs
        // (`skb_record_rx_queue`).
        self.plain_numbers.store(interface.driver.as_deref() == Some("veth"), Ordering::Relaxed);
        let queues = interface.queues.iter();
        let own = queues.filter(|queue| self.own_queues.get().is_none_or(|own| own.contains(&queue.index)));
        own.filter_map(|queue| Some((queue.index, queue.napi.as_ref()?.id))).collect()
    }

    /// Assigns queues and their NAPIs to the workers round robin, in queue order.
    pub(crate) fn assign(&self, queues: &[(u32, u32)], workers: &[Arc<WorkerHandle>]) {
        let assigned = queues.iter().enumerate().map(|(position, &(queue, napi))| OwnedQueue {
            queue,
            napi,
            worker: position % workers.len(),
        });
        let assigned: Vec<OwnedQueue> = assigned.collect();
        let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
        for owned in &assigned {
            owners.insert(owned.napi, Some(owned.worker));
            // A worker polls one NAPI, its first. Sockets of its other NAPIs are served without
            // polling. An id that is gone is replaced.
            let polled = &workers[owned.worker].napi;
            let current = polled.load(Ordering::Relaxed);
            if !queues.iter().any(|&(_, napi)| napi == current) {
                polled.store(owned.napi, Ordering::Relaxed);
            }
        }
        drop(owners);
        let sharing = if assigned.len() < workers.len() { assigned.len() } else { 0 };
        self.sharing.store(sharing, Ordering::Relaxed);
        *self.queues.write().unwrap_or_else(PoisonError::into_inner) = assigned;
    }

    pub(crate) fn first_queue_number(&self) -> u32 {
        u32::from(!self.plain_numbers.load(Ordering::Relaxed))
    }

    /// The queues with a known NAPI, and their workers.
    pub(crate) fn queues(&self) -> Vec<OwnedQueue> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The queues of a worker beside the one that it polls, whose NAPI is `polled`.
    pub(crate) fn unpolled_queues(&self, worker: usize, polled: u32) -> Vec<u32> {
        let queues = self.queues().into_iter();
        queues.filter(|own| own.worker == worker && own.napi != polled).map(|own| own.queue).collect()
    }

    /// The worker that serves a connection of a NAPI: the one that owns its queue. If several workers
    /// share the queue, the one of them with the fewest connections; if no worker owns it, and for id
    /// 0, the one of all workers with the fewest. Of workers with equally many it is `here`.
    ///
    /// An id that did not exist at start belongs to another interface, or to a queue whose link was
    /// reopened (drivers without persistent NAPI configuration). The first connection with such an
    /// id starts a thread that calls `read`, which takes milliseconds. If the id is a queue's, later
    /// connections go to its worker.
    pub(crate) fn owner(
        self: &Arc<Self>,
        napi: u32,
        here: usize,
        workers: &[Arc<WorkerHandle>],
        read: Option<impl Fn(&Self) -> Option<Vec<(u32, u32)>> + Send + 'static>,
    ) -> usize {
        let known = self.owners.read().unwrap_or_else(PoisonError::into_inner).get(&napi).copied();
        if let (None, Some(read)) = (known, read.filter(|_| napi != 0)) {
            self.owners.write().unwrap_or_else(PoisonError::into_inner).entry(napi).or_insert(None);
            if self.unknown.fetch_add(1, Ordering::AcqRel) == 0 {
                self.start_refresh(workers, read);
            }
        }
        let Some(owner) = known.flatten() else { return with_fewest_connections(here, workers.iter()) };
        let sharing = self.sharing.load(Ordering::Relaxed);
        let sharers = workers.iter().skip(owner).step_by(sharing.max(1));
        if sharing == 0 { owner } else { with_fewest_connections(here, sharers) }
    }

    fn start_refresh(
        self: &Arc<Self>,
        workers: &[Arc<WorkerHandle>],
        read: impl Fn(&Self) -> Option<Vec<(u32, u32)>> + Send + 'static,
    ) {
        let (map, workers) = (Arc::clone(self), workers.to_vec());
        let thread = std::thread::Builder::new().name("lull-napi".to_owned());
        let refresh = move || {
            loop {
                let unknown = map.unknown.load(Ordering::Acquire);
                if let Some(queues) = read(&map) {
                    map.assign(&queues, &workers);
                }
                // Another id may have come since.
                if map.unknown.compare_exchange(unknown, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    break;
                }
            }
        };
        let started = with_settings_from_before(|| thread.spawn(refresh));
        if let Err(error) = started {
            tracing::warn!(%error, "cannot look for the queue of a new NAPI");
            self.unknown.store(0, Ordering::Release);
        }
    }
}

fn with_fewest_connections<'a>(here: usize, workers: impl Iterator<Item = &'a Arc<WorkerHandle>>) -> usize {
    workers
        .min_by_key(|worker| (worker.connections.load(Ordering::Relaxed), worker.index != here))
        .map_or(here, |worker| worker.index)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::counters::WorkerCounters;

    fn workers(count: usize) -> Vec<Arc<WorkerHandle>> {
        let worker = |index| Arc::new(WorkerHandle::new(index, WorkerCounters::default()).unwrap());
        (0..count).map(worker).collect()
    }

    type Queues = Vec<(u32, u32)>;

    fn owner(map: &Arc<NapiMap>, napi: u32, workers: &[Arc<WorkerHandle>]) -> usize {
        map.owner(napi, 0, workers, None::<fn(&NapiMap) -> Option<Queues>>)
    }

    #[test]
    fn queues_go_to_workers_in_order_and_wrap_around() {
        let (map, workers) = (Arc::new(NapiMap::default()), workers(2));
        map.assign(&[(0, 10), (2, 11), (4, 12)], &workers);
        assert_eq!([10, 11, 12].map(|id| owner(&map, id, &workers)), [0, 1, 0]);
        assert_eq!(workers[0].napi.load(Ordering::Relaxed), 10);
        assert_eq!(map.queues()[1], OwnedQueue { queue: 2, napi: 11, worker: 1 });
        assert_eq!(
            [(0, 10), (1, 11)].map(|(worker, napi)| map.unpolled_queues(worker, napi)),
            [vec![4], vec![]]
        );
    }

    #[test]
    fn a_connection_whose_queue_no_worker_owns_goes_to_the_one_with_the_fewest() {
        let (map, workers) = (Arc::new(NapiMap::default()), workers(3));
        map.assign(&[(0, 10), (1, 11), (2, 12)], &workers);
        for napi in [0, 99] {
            let mut served = [0; 3];
            for _ in 0..30 {
                let worker = owner(&map, napi, &workers);
                workers[worker].connections.fetch_add(1, Ordering::Relaxed);
                served[worker] += 1;
            }
            assert_eq!(served, [10; 3], "NAPI {napi}");
        }
        assert_eq!(map.owner(0, 1, &workers, None::<fn(&NapiMap) -> Option<Queues>>), 1, "of equals: here");
        workers[0].connections.fetch_add(1, Ordering::Relaxed);
        assert_eq!(owner(&map, 10, &workers), 0, "however many it has");
    }

    #[test]
    fn workers_without_a_queue_share_the_connections_of_the_others() {
        let (map, workers) = (Arc::new(NapiMap::default()), workers(5));
        map.assign(&[(0, 10), (1, 11)], &workers);
        for _ in 0..6 {
            for napi in [10, 11] {
                let worker = owner(&map, napi, &workers);
                assert_eq!(worker % 2, usize::from(napi == 11), "a worker serves one queue");
                workers[worker].connections.fetch_add(1, Ordering::Relaxed);
            }
        }
        let served = workers.iter().map(|worker| worker.connections.load(Ordering::Relaxed));
        assert_eq!(served.collect::<Vec<_>>(), [2, 3, 2, 3, 2]);
    }

    #[test]
    fn the_interface_is_read_once_for_an_id_that_it_does_not_have() {
        let (map, workers) = (Arc::new(NapiMap::default()), workers(1));
        let (send, reads) = mpsc::channel();
        for _ in 0..3 {
            let send = send.clone();
            map.owner(21, 0, &workers, Some(move |_: &NapiMap| send.send(()).ok().and(None)));
        }
        drop(send);
        assert_eq!(reads.iter().count(), 1);
    }

    #[test]
    fn the_interface_is_not_read_with_a_workers_settings() {
        use rustix::thread::{current_timer_slack, set_current_timer_slack};
        let (map, workers) = (Arc::new(NapiMap::default()), workers(1));
        let before = current_timer_slack().unwrap();
        let _kept = crate::thread_settings::KeptSettings::new();
        set_current_timer_slack(std::num::NonZeroU64::new(1)).unwrap();
        let (send, slack) = mpsc::channel();
        let read = move |_: &NapiMap| {
            send.send(current_timer_slack().unwrap()).unwrap();
            None
        };
        map.owner(21, 0, &workers, Some(read));
        assert_eq!(slack.recv().unwrap(), before);
        assert_eq!(current_timer_slack().unwrap(), 1, "the worker keeps its own");
    }

    #[test]
    fn a_queues_new_id_gets_its_worker_without_a_wait_for_the_interface() {
        let (map, workers) = (Arc::new(NapiMap::default()), workers(2));
        map.assign(&[(0, 10), (1, 11)], &workers);
        let (read, may_read) = mpsc::channel::<()>();
        let may_read = Mutex::new(may_read);
        // Blocks until the test lets it read: an answer before that does not depend on it.
        let blocked = move |_: &NapiMap| {
            may_read.lock().unwrap().recv().ok()?;
            Some(vec![(0, 20), (1, 21)])
        };
        map.owner(21, 0, &workers, Some(blocked));
        read.send(()).unwrap();
        let give_up = Instant::now() + Duration::from_secs(60);
        while owner(&map, 20, &workers) != 0 || owner(&map, 21, &workers) != 1 {
            assert!(Instant::now() < give_up, "the new ids were not assigned");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(workers[1].napi.load(Ordering::Relaxed), 21);
    }
}
