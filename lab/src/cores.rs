//! Which core runs what, how far apart two cores are, and how idle ones are kept awake.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use loadgen::medians::median;
use policies::{Cpus, Topology, host, nearest_cores};
use serde::Serialize;

use crate::Error;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CoreAssignment {
    /// The core of each of the server's workers, and of its queue's interrupt.
    pub servers: Vec<u32>,
    /// The core of each fleet.
    pub clients: Vec<u32>,
    /// The core of the network work under packing.
    pub packing: u32,
}

/// From so many cores on there are two workers by default: each has a core for itself, and one for
/// its load.
const CORES_FOR_TWO: usize = 4;

impl CoreAssignment {
    /// For one worker, among the cores that this process may run on.
    pub fn choose() -> io::Result<Self> {
        Self::for_workers(Some(1))
    }

    /// For so many workers; `None`: for two on a machine with four cores or more, else for one.
    /// Hardware threads of one core are not two cores, and are taken last.
    pub fn for_workers(workers: Option<usize>) -> io::Result<Self> {
        let whole = Topology::read().whole_cores(&Cpus::allowed()?);
        let workers = workers.unwrap_or(if whole >= CORES_FOR_TWO { 2 } else { 1 });
        let loopback = host::interface("lo").map_err(io::Error::other)?;
        let cores = nearest_cores(&loopback, whole.max(2))?;
        Ok(Self::among(&cores, workers).ok_or(io::ErrorKind::NotFound)?)
    }

    /// Takes the first cores. Without two for each worker all workers share the first core, and one
    /// fleet has the second. With fewer cores yet, roles share the last one.
    fn among(cores: &[u32], workers: usize) -> Option<Self> {
        let first = *cores.first()?;
        let (servers, clients, rest) = if cores.len() >= 2 * workers {
            let (servers, others) = cores.split_at(workers);
            let (clients, rest) = others.split_at(workers);
            (servers.to_vec(), clients.to_vec(), rest)
        } else {
            let client = cores.get(1).copied().unwrap_or(first);
            (vec![first; workers], vec![client], cores.get(2..).unwrap_or_default())
        };
        let packing = rest.first().or(clients.last()).copied()?;
        Some(Self { servers, clients, packing })
    }

    /// The first worker's core.
    pub fn server(&self) -> u32 {
        self.servers[0]
    }

    /// The first fleet's core.
    pub fn client(&self) -> u32 {
        self.clients[0]
    }

    /// Whether packing's network work has no core for itself, or one for several workers. Not on a
    /// card, on which this machine has no fleet, and the runtime chooses.
    pub fn packing_is_shared(&self) -> bool {
        let is_taken = self.servers.contains(&self.packing) || self.clients.contains(&self.packing);
        !self.clients.is_empty() && (is_taken || self.servers.len() > 1)
    }

    /// The cores of workers and fleets, each once.
    pub fn used(&self) -> Vec<u32> {
        let cores: BTreeSet<u32> = self.servers.iter().chain(&self.clients).copied().collect();
        cores.into_iter().collect()
    }
}

/// Forbids deep idle states while it lives: a latency of 0 µs, requested from the kernel's power
/// management (`/dev/cpu_dma_latency`, PM QoS). Idle cores poll for work then.
///
/// A core that sleeps takes some 1 to 100 µs to wake up, and on a virtual machine an exit to the
/// hypervisor. The kernel drops the request when the file is closed, also after a crash.
#[derive(Debug)]
pub struct AwakeCores(#[expect(dead_code, reason = "holds the request")] File);

impl AwakeCores {
    pub fn request() -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency")?;
        file.write_all(&0i32.to_ne_bytes())?;
        Ok(Self(file))
    }
}

/// Round trips between two readings of the clock: few enough that a preemption spoils few of the
/// batches, and enough that reading the clock costs nothing.
const BATCH: u32 = 64;
/// Batches that a measurement needs: on a busy machine a few might all have been preempted. They
/// take 0.6 ms at most if nothing is in the way.
const MIN_BATCHES: usize = 20;
/// Spins between two looks at the clock, in case the other thread is not running.
const SPINS_PER_DEADLINE_CHECK: u32 = 1 << 14;
/// How much longer than asked for a measurement may take when the cores are busy with something
/// else.
const PATIENCE: Duration = Duration::from_millis(500);
/// Tells the answering thread to end. Turns, which are odd, and their answers never get there.
const STOP: u32 = u32::MAX;

/// The line that goes back and forth, alone on its cache line and on the one that the prefetcher
/// fetches with it.
#[repr(align(128))]
struct BouncedLine(AtomicU32);

/// The median time in nanoseconds in which a cache line goes from `core_a` to `core_b` and back,
/// measured for `duration`; 10 ms are enough. Both cores are busy meanwhile. Takes up to half a
/// second longer if something else occupies one of the cores.
///
/// A hypervisor may move a virtual machine's cores between parts of the chip that share a
/// last-level cache and parts that don't. A thread that only computes does not notice, and steal
/// stays at 0, but everything that crosses cores becomes several times slower or faster.
pub fn round_trip(core_a: u32, core_b: u32, duration: Duration) -> io::Result<f64> {
    if core_a == core_b {
        let error = format!("core {core_a} has no distance from itself: a distance needs two cores");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    let line = BouncedLine(AtomicU32::new(0));
    let deadline = Instant::now() + duration + PATIENCE;
    // Threads of their own, because the caller keeps its affinity.
    let batches = thread::scope(|scope| {
        let echo = scope.spawn(|| echo(core_b, &line.0, deadline));
        let measuring = scope.spawn(|| measure(core_a, &line.0, duration, deadline));
        let batches = joined(measuring);
        // Without an echo the measuring thread gives up at the deadline.
        joined(echo)?;
        batches
    })?;
    if batches.len() < MIN_BATCHES {
        let error = format!(
            "cores {core_a} and {core_b} were not free at the same time for long enough to measure their distance"
        );
        return Err(io::Error::new(io::ErrorKind::TimedOut, error));
    }
    Ok(median(&batches))
}

/// Runs `action` on a new thread on a core: the caller keeps its affinity.
pub(crate) fn run_on<T: Send>(
    core: u32,
    action: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let pinned = || {
        pin_to(core)?;
        action()
    };
    thread::scope(|scope| joined(scope.spawn(pinned)))
}

/// What a measuring thread returns.
pub(crate) fn joined<T, E: From<io::Error>>(thread: ScopedJoinHandle<'_, Result<T, E>>) -> Result<T, E> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a measuring thread panicked").into()))
}

fn pin_to(core: u32) -> io::Result<()> {
    Cpus::one(core).pin(None).map_err(|error| {
        let error = format!("can't run a thread on core {core}: {error}");
        io::Error::new(io::ErrorKind::InvalidInput, error)
    })
}

/// Sends the line to the other core and awaits it back. Returns the nanoseconds of a round trip in
/// each batch.
fn measure(core: u32, line: &AtomicU32, duration: Duration, deadline: Instant) -> io::Result<Vec<f64>> {
    pin_to(core)?;
    let (mut batches, mut turn) = (Vec::new(), 1);
    // The first round trip takes until the other thread runs on its core.
    if bounce(line, turn, deadline) {
        let begun = Instant::now();
        'measuring: while begun.elapsed() < duration || batches.len() < MIN_BATCHES {
            let batch = Instant::now();
            for _ in 0..BATCH {
                turn = (turn + 2) & (u32::MAX >> 1);
                if !bounce(line, turn, deadline) {
                    break 'measuring;
                }
            }
            batches.push(batch.elapsed().as_nanos() as f64 / f64::from(BATCH));
        }
    }
    line.store(STOP, Ordering::Release);
    Ok(batches)
}

fn bounce(line: &AtomicU32, turn: u32, deadline: Instant) -> bool {
    line.store(turn, Ordering::Release);
    wait_for_change(line, turn, deadline).is_some()
}

/// Answers each odd turn with the next number, until the line says [`STOP`].
fn echo(core: u32, line: &AtomicU32, deadline: Instant) -> io::Result<()> {
    pin_to(core)?;
    let mut last = 0;
    while let Some(turn) = wait_for_change(line, last, deadline).filter(|turn| *turn != STOP) {
        last = turn + 1;
        line.store(last, Ordering::Release);
    }
    Ok(())
}

/// Spins until the line has another value than `known`; `None` after the deadline. Both threads
/// look at the deadline, so that neither waits for one that the scheduler keeps off its core.
fn wait_for_change(line: &AtomicU32, known: u32, deadline: Instant) -> Option<u32> {
    loop {
        // No spin hint: under some hypervisors a `pause` in a loop leaves the guest.
        for _ in 0..SPINS_PER_DEADLINE_CHECK {
            let value = line.load(Ordering::Acquire);
            if value != known {
                return Some(value);
            }
        }
        if Instant::now() > deadline {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_two_cores_where_there_are_so_many() {
        let of = |cores: u32, workers| {
            let cores: Vec<u32> = (0..cores).collect();
            let CoreAssignment { servers, clients, packing } =
                CoreAssignment::among(&cores, workers).unwrap();
            (servers, clients, packing)
        };
        assert_eq!(of(2, 1), (vec![0], vec![1], 1));
        assert_eq!(of(3, 1), (vec![0], vec![1], 2));
        assert_eq!(of(4, 2), (vec![0, 1], vec![2, 3], 3));
        assert_eq!(of(64, 3), (vec![0, 1, 2], vec![3, 4, 5], 6));
        assert_eq!(of(2, 2), (vec![0, 0], vec![1], 1));
        assert_eq!(of(3, 2), (vec![0, 0], vec![1], 2));
        assert_eq!(of(1, 1), (vec![0], vec![0], 0));
        assert_eq!(CoreAssignment::among(&[], 1), None);
    }

    #[test]
    #[ignore = "timing"]
    fn two_cores_have_a_distance_of_nanoseconds() {
        let cores: Vec<u32> = Cpus::allowed().unwrap().iter().collect();
        let [first, second, ..] = cores[..] else { return };
        let distance = round_trip(first, second, Duration::from_millis(10)).unwrap();
        assert!((5.0..20_000.0).contains(&distance), "{distance}");
    }

    #[test]
    fn one_core_has_no_distance_from_itself() {
        let error = round_trip(0, 0, Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("needs two cores"), "{error}");
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error_and_no_hang() {
        for (a, b) in [(0, 1000), (1000, 0), (0, 100_000), (100_000, 0)] {
            let begun = Instant::now();
            let error = round_trip(a, b, Duration::from_millis(10)).unwrap_err();
            let missing = a.max(b);
            assert!(error.to_string().contains(&format!("on core {missing}")), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        }
    }

    #[test]
    fn a_thread_that_gets_no_answer_gives_up_at_the_deadline() {
        let line = AtomicU32::new(0);
        let deadline = Instant::now() + Duration::from_millis(20);
        let batches = measure(0, &line, Duration::from_millis(1), deadline).unwrap();
        assert!(batches.is_empty());
        assert_eq!(line.load(Ordering::Relaxed), STOP);
        let deadline = Instant::now() + Duration::from_millis(20);
        line.store(0, Ordering::Relaxed);
        echo(0, &line, deadline).unwrap();
    }
}
