//! Packets an interrupt under each mode of a queue, on devices that interrupt.

use serial_test::serial;

use super::boot;
use super::load::{Counted, load, serve_on, stop, worker_lines};
use super::machine::{Machine, Nic};

/// Requests per second, so few that the worker sleeps before each of them, also under emulation.
const SPARSE: u64 = 100;

/// The epoll driver's waits are the same in every mode.
const DRIVER: &str = "--driver epoll";

/// Set in the environment, it makes a test measure all rows of the table that the results have, not
/// only those that it compares.
const WHOLE_TABLE: &str = "LULL_GUEST_TABLE";

/// The latency budgets and fixed grace times, µs.
const DELAYS: [u32; 3] = [20, 50, 100];

/// How a server's queue is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drive {
    Vanilla,
    Suppression,
    /// Kernel polling by the controller, with a latency budget in µs.
    Budget(u32),
    /// Interrupt-first mode at every load, with a timer of 20 µs.
    InterruptFirst,
    /// Grace mode at every load, with 100 deferrals and a grace time in µs.
    Grace(u32),
}

impl Drive {
    fn compared() -> Vec<Self> {
        vec![Self::Vanilla, Self::Budget(50), Self::InterruptFirst, Self::Grace(100)]
    }

    fn all() -> Vec<Self> {
        let budgets = [0].into_iter().chain(DELAYS).map(Self::Budget);
        let fixed = [Self::InterruptFirst].into_iter().chain(DELAYS.map(Self::Grace));
        [Self::Vanilla, Self::Suppression].into_iter().chain(budgets).chain(fixed).collect()
    }

    fn name(self) -> String {
        match self {
            Self::Vanilla => "vanilla".to_owned(),
            Self::Suppression => "suppression".to_owned(),
            Self::Budget(budget) => format!("kernel-polling, budget {budget} µs"),
            Self::InterruptFirst => "fixed: interrupt-first".to_owned(),
            Self::Grace(time) => format!("fixed: grace {time} µs"),
        }
    }

    fn start(self, guest: &mut Machine, nic: usize) {
        let (policy, more) = match self {
            Self::Vanilla => ("vanilla", String::new()),
            Self::Suppression => ("suppression", String::new()),
            Self::Budget(budget) => ("kernel-polling", format!("--latency-budget {budget}")),
            Self::InterruptFirst => ("kernel-polling", "--gro-flush-timeout 20".to_owned()),
            Self::Grace(time) => ("kernel-polling", format!("--gro-flush-timeout {time}")),
        };
        serve_on(guest, nic, policy, 0, &format!("{DRIVER} {more}"));
        if self == Self::InterruptFirst {
            set_deferrals(guest, nic, 1);
        }
    }

    fn stop(self, guest: &mut Machine, nic: usize) {
        stop(guest);
        if self == Self::InterruptFirst {
            set_deferrals(guest, nic, 0);
        }
    }
}

/// Sets `defer-hard-irqs` of the device, and with it that of every queue.
pub(super) fn set_deferrals(guest: &mut Machine, nic: usize, deferrals: u32) {
    let interface = guest.interfaces[nic].clone();
    guest.run(&format!("echo {deferrals} >/sys/class/net/{interface}/napi_defer_hard_irqs"));
}

/// The mode of the queue after a load, as the controller has set it.
fn mode(guest: &mut Machine, nic: usize) -> String {
    let lines = worker_lines(guest, nic);
    let by_controller = lines[0].word("latency_budget_us").is_some();
    let time = |name| lines[0].word(name).unwrap_or("?");
    match lines[0].word("mode").filter(|_| by_controller) {
        Some("grace") => format!("grace {} µs", time("grace_time_us")),
        Some("timed") => format!("timed {} µs", time("poll_interval_us")),
        mode => mode.unwrap_or("-").to_owned(),
    }
}

fn print_header(guest: &mut Machine) {
    println!("Linux {}", guest.run("uname -r").trim());
    println!(
        "nic     load       queue                         requests/s  packets  rx irqs  /rx irq  polled  mode"
    );
}

fn print(nic: Nic, load: &str, drive: Drive, counted: &Counted, mode: &str) {
    println!(
        "{:7} {load:9}  {:29} {:10.0} {:8.0} {:8.0} {:8.2} {:6.1} %  {mode}",
        format!("{nic:?}"),
        drive.name(),
        counted.rate,
        counted.packets,
        counted.rx_interrupts,
        counted.packets_per_rx_interrupt(),
        counted.polled / counted.packets * 100.0
    );
}

/// How often each of two servers is measured at a sparse load: whether the interrupts of a request
/// and of its reply are one depends on when the host runs the guest.
const ROUNDS: usize = 3;

#[test]
#[serial]
fn a_sparse_queue_without_a_budget_interrupts_like_vanilla() {
    let nics = [Nic::E1000e, Nic::Virtio];
    let Some(mut guest) = boot(&nics, 1) else { return };
    print_header(&mut guest);
    for (index, nic) in nics.into_iter().enumerate() {
        let drives = [Drive::Vanilla, Drive::Budget(0)];
        let (mut packets, mut interrupts, mut polled) = ([0.0; 2], [0.0; 2], 0.0);
        for _ in 0..ROUNDS {
            for (server, drive) in drives.into_iter().enumerate() {
                drive.start(&mut guest, index);
                let counted = load(&mut guest, index, SPARSE);
                print(nic, "sparse", drive, &counted, &mode(&mut guest, index));
                drive.stop(&mut guest, index);
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

#[test]
#[serial]
fn a_grace_time_keeps_interrupts_away_that_interrupt_first_mode_lets_through() {
    let nics = [Nic::E1000e, Nic::Virtio];
    let Some(mut guest) = boot(&nics, 1) else { return };
    print_header(&mut guest);
    let whole_table = std::env::var_os(WHOLE_TABLE).is_some();
    let drives = if whole_table { Drive::all() } else { Drive::compared() };
    for (index, nic) in nics.into_iter().enumerate() {
        let interface = guest.interfaces[index].clone();
        let before = guest.settings(&interface);
        let mut per_interrupt: Vec<(Drive, f64)> = Vec::new();
        let mut half = None;
        for drive in drives.clone() {
            drive.start(&mut guest, index);
            // Half of what vanilla can do.
            let half = *half.get_or_insert_with(|| (load(&mut guest, index, 0).rate / 2.0) as u64);
            let sparse = whole_table.then_some(("sparse", SPARSE));
            for (name, rate) in sparse.into_iter().chain([("half load", half)]) {
                let counted = load(&mut guest, index, rate);
                print(nic, name, drive, &counted, &mode(&mut guest, index));
                if rate == half {
                    per_interrupt.push((drive, counted.packets_per_rx_interrupt()));
                }
            }
            drive.stop(&mut guest, index);
            assert_eq!(guest.settings(&interface), before, "after {} on {nic:?}", drive.name());
        }
        // A guest that lacks a core polls late, so neighbouring grace times may change places.
        let [vanilla, first, longest] = [Drive::Vanilla, Drive::InterruptFirst, Drive::Grace(100)]
            .map(|drive| per_interrupt.iter().find(|(other, _)| *other == drive).unwrap().1);
        assert!(longest > 1.5 * first && longest > 4.0 * vanilla, "{nic:?}: {per_interrupt:?}");
    }
}
