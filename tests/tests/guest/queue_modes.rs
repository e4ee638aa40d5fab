//! Which of the kernel's three loops (interrupt, timer, busy poll) drives a queue in each of its
//! modes, on devices that interrupt: counted by tracepoints. `policies/queue_modes.rs` does so on a
//! veth, which has a thread in place of interrupts. And how often a queue interrupts that the
//! controller leaves to interrupts.

use serial_test::serial;

use super::boot;
use super::event_histograms::{Bucket, Histogram, SOFTIRQ, trace};
use super::load::{load, serve_on, stop};
use super::machine::{Machine, Nic};

/// Requests per second, so few that the worker sleeps before each of them, also under emulation.
const SPARSE: u64 = 100;
const SATURATION: u64 = 0;
/// Longer than an emulated worker takes for a request, in µs: the wait suspends the queue only if
/// it comes within this time after a packet.
const TIMER: u32 = 1_000;
/// One worker on the core that the queue's interrupt comes to. The epoll driver's waits are the
/// same in every mode.
const DRIVER: &str = "--driver epoll";

/// How often each of two servers is measured at a sparse load: whether the interrupts of a request
/// and of its reply are one depends on when the host runs the guest.
const ROUNDS: usize = 3;

/// What happened on a queue during a load.
#[derive(Debug, Clone, Copy, Default)]
struct Loops {
    /// Interrupts of the queue (`irq_handler_entry`).
    interrupts: u64,
    /// Those of them that came while the worker's thread had the core.
    of_the_worker: u64,
    /// Polls of the interface's NAPIs by softirqs, after an interrupt or the timer, and the packets
    /// that they took.
    softirq_polls: u64,
    softirq_packets: u64,
    busy_polls: u64,
    busy_packets: u64,
    /// How often the NAPI's timer has expired (`napi_watchdog`).
    timer: u64,
}

impl Loops {
    fn packets(&self) -> u64 {
        self.softirq_packets + self.busy_packets
    }

    fn busy_share(&self) -> f64 {
        self.busy_packets as f64 / self.packets().max(1) as f64
    }

    /// Interrupts of a busy worker, per packet.
    fn worker_share(&self) -> f64 {
        self.of_the_worker as f64 / self.packets().max(1) as f64
    }

    fn interrupts_per_packet(&self) -> f64 {
        self.interrupts as f64 / self.packets().max(1) as f64
    }
}

/// Counts what happens on a device's queue during two seconds of load.
fn count(guest: &mut Machine, nic: usize, name: &str, rate: u64) -> Loops {
    let interface = guest.interfaces[nic].clone();
    let settings = guest.settings(&interface);
    let queues = settings["queues"].as_array().unwrap();
    let irqs: Vec<u64> = queues.iter().filter_map(|queue| queue["irq"].as_u64()).collect();
    assert!(!irqs.is_empty(), "{settings}");
    // The first worker is the main thread.
    let worker: u64 = guest.run("pidof memcached").trim().parse().unwrap();
    let histogram = |event, keys: &str| Histogram { event, keys: keys.to_owned() };
    let histograms = [
        histogram("irq/irq_handler_entry", "irq,common_pid"),
        histogram("napi/napi_poll", &format!("common_flags:vals=work if dev_name == \"{interface}\"")),
        histogram("timer/hrtimer_expire_entry", "function if function.function == napi_watchdog"),
    ];
    let mut requests = 0.0;
    let [handled, polls, timers] = trace(guest, histograms, |guest| requests = load(guest, nic, rate).rate);
    let sum = |buckets: &mut dyn Iterator<Item = &Bucket>| buckets.map(Bucket::count).sum::<u64>();
    let of_queue = |bucket: &&Bucket| irqs.contains(&bucket.number("irq").unwrap());
    let mut loops = Loops {
        interrupts: sum(&mut handled.iter().filter(of_queue)),
        of_the_worker: sum(&mut handled
            .iter()
            .filter(of_queue)
            .filter(|it| it.number("common_pid") == Some(worker))),
        timer: sum(&mut timers.iter()),
        ..Loops::default()
    };
    for poll in &polls {
        let (count, packets) = (poll.count(), poll.number("work").unwrap());
        if poll.number("common_flags").unwrap() & SOFTIRQ != 0 {
            loops.softirq_polls += count;
            loops.softirq_packets += packets;
        } else {
            loops.busy_polls += count;
            loops.busy_packets += packets;
        }
    }
    println!(
        "{name}, {requests:.0} requests/s: {loops:?}, {:.2} interrupts a packet, {:.2} by busy polls",
        loops.interrupts_per_packet(),
        loops.busy_share()
    );
    loops
}

#[test]
#[serial]
fn interrupts_drive_a_queue_under_vanilla_and_no_interrupt_reaches_a_busy_worker_in_grace_mode() {
    let nics = [Nic::E1000e, Nic::Virtio];
    let Some(mut guest) = boot(&nics, 1) else { return };
    for (index, nic) in nics.into_iter().enumerate() {
        let guest = &mut guest;
        let polling = format!("{DRIVER} --gro-flush-timeout {TIMER}");
        let both_loads = |guest: &mut Machine, mode: &str| {
            [("sparse", SPARSE), ("saturated", SATURATION)]
                .map(|(load, rate)| count(guest, index, &format!("{nic:?}, {mode}, {load}"), rate))
        };
        serve_on(guest, index, "vanilla", 0, DRIVER);
        let plain = both_loads(guest, "interrupts");
        stop(guest);
        serve_on(guest, index, "kernel-polling", 0, &polling);
        let grace = both_loads(guest, "grace");
        stop(guest);

        for loops in &plain {
            assert_eq!((loops.busy_polls, loops.timer), (0, 0), "{nic:?}, plain: {loops:?}");
            // Each interrupt lets a softirq poll, but for one that comes while that is so already.
            assert!(loops.interrupts * 10 <= loops.softirq_polls * 11, "{nic:?}, plain: {loops:?}");
        }
        let [plain, plain_saturated] = plain;
        assert!(plain.interrupts_per_packet() > 0.2, "{nic:?}, plain: {plain:?}");
        let share = plain_saturated.of_the_worker as f64 / plain_saturated.interrupts as f64;
        assert!(share > 0.3, "{nic:?}, plain, saturated: {plain_saturated:?}");

        let [grace, grace_saturated] = grace;
        assert!(grace.interrupts_per_packet() < 0.15, "{nic:?}, grace: {grace:?}");
        assert!(grace.timer > 5 * grace.interrupts, "{nic:?}, grace: {grace:?}");
        for (grace, plain) in [(grace, plain), (grace_saturated, plain_saturated)] {
            // virtio's device may raise an interrupt that is just being masked
            // (`virtqueue_disable_cb` is a hint).
            let most = if nic == Nic::Virtio { 0.25 * plain.worker_share() } else { 0.001 };
            let share = grace.worker_share();
            assert!(
                share <= most,
                "{nic:?}, grace: {share} of the packets interrupted the worker: {grace:?}"
            );
        }
        // On virtio, whose emulated driver is slower, it depends on the host which of timer and
        // worker comes first.
        if nic == Nic::E1000e {
            assert!(grace_saturated.busy_share() > 0.15, "grace, saturated: {grace_saturated:?}");
        }
    }
}

#[test]
#[serial]
fn a_sparse_queue_interrupts_like_vanilla() {
    let nics = [Nic::E1000e, Nic::Virtio];
    let Some(mut guest) = boot(&nics, 1) else { return };
    for (index, nic) in nics.into_iter().enumerate() {
        let (mut packets, mut interrupts, mut polled) = ([0.0; 2], [0.0; 2], 0.0);
        for _ in 0..ROUNDS {
            for (server, policy) in ["vanilla", "kernel-polling"].into_iter().enumerate() {
                serve_on(&mut guest, index, policy, 0, DRIVER);
                let counted = load(&mut guest, index, SPARSE);
                stop(&mut guest);
                packets[server] += counted.packets;
                interrupts[server] += counted.rx_interrupts;
                polled += counted.polled;
            }
        }
        let [vanilla, plain] = [0, 1].map(|server| interrupts[server] / packets[server]);
        let ratio = plain / vanilla;
        println!("{nic:?}: {plain:.3} interrupts a packet, vanilla {vanilla:.3}: {ratio:.2} times");
        assert!(ratio < 1.3, "{nic:?}: {interrupts:?} of {packets:?}");
        assert!(polled < 0.05 * packets[1], "{nic:?}: {polled} of {packets:?}");
    }
}
