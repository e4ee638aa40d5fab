//! The modes of a queue on devices that interrupt: how many packets an interrupt brings in each.

use serial_test::serial;

use super::boot;
use super::load::{Counted, load, serve_on, stop};
use super::machine::Nic;

/// A way to drive a queue: its name, and the server's flags.
struct Driven {
    name: &'static str,
    policy: &'static str,
    flags: &'static str,
}

/// Each mode with values that no law changes.
const MODES: [Driven; 4] = [
    Driven { name: "plain", policy: "vanilla", flags: "" },
    // With a spin the values are those that suit a budget of 0 without a law: one deferral, 20 µs.
    Driven { name: "interrupt-first", policy: "kernel-polling", flags: "--wait spin-then-block:1us" },
    Driven { name: "grace 50 µs", policy: "kernel-polling", flags: "--gro-flush-timeout 50" },
    Driven { name: "grace 200 µs", policy: "kernel-polling", flags: "--gro-flush-timeout 200" },
];
/// Sparse enough that the worker sleeps before each request, also under emulation.
const SPARSE: u64 = 100;

/// The epoll driver's waits are the same in every mode.
const DRIVER: &str = "--driver epoll";

fn print(nic: Nic, name: &str, counted: &Counted) {
    println!(
        "{:7} {name:16} {:8.0} {:8.0} {:8.0} {:8.2} {:6.1} %",
        format!("{nic:?}"),
        counted.rate,
        counted.packets,
        counted.rx_interrupts,
        counted.packets_per_rx_interrupt(),
        counted.polled / counted.packets * 100.0
    );
}

#[test]
#[serial]
fn each_mode_brings_more_packets_an_interrupt_than_the_one_before() {
    let nics = [Nic::E1000e, Nic::Virtio];
    let Some(mut guest) = boot(&nics, 1) else { return };
    println!("nic     mode             requests/s packets  rx irqs  /rx irq  polled");
    for (index, nic) in nics.into_iter().enumerate() {
        let interface = guest.interfaces[index].clone();
        let before = guest.settings(&interface);
        let mut per_interrupt = Vec::new();
        for mode in &MODES {
            serve_on(&mut guest, index, mode.policy, 0, &format!("{DRIVER} {}", mode.flags));
            // The first packets wait for the interrupt anyway.
            load(&mut guest, index, 500);
            let counted = load(&mut guest, index, 0);
            print(nic, mode.name, &counted);
            stop(&mut guest);
            assert_eq!(guest.settings(&interface), before, "after {} on {nic:?}", mode.name);
            per_interrupt.push(counted.packets_per_rx_interrupt());
        }
        let [plain, interrupt_first, grace_50, grace_200] = per_interrupt[..] else { unreachable!() };
        let said = format!("{nic:?}: {per_interrupt:.2?} packets an interrupt");
        assert!(interrupt_first > 1.2 * plain, "{said}");
        assert!(grace_50 > 2.5 * plain && grace_200 > 4.0 * plain, "{said}");
        assert!(grace_200 > interrupt_first, "{said}");
    }
}

#[test]
#[serial]
fn a_sparse_queue_without_a_budget_interrupts_like_vanilla() {
    let nics = [Nic::E1000e, Nic::Virtio];
    let Some(mut guest) = boot(&nics, 1) else { return };
    println!("nic     policy           requests/s packets  rx irqs  /rx irq  polled");
    for (index, nic) in nics.into_iter().enumerate() {
        let [vanilla, adaptive] = ["vanilla", "kernel-polling"].map(|policy| {
            serve_on(&mut guest, index, policy, 0, DRIVER);
            let counted = load(&mut guest, index, SPARSE);
            print(nic, policy, &counted);
            stop(&mut guest);
            counted
        });
        let ratio = vanilla.packets_per_rx_interrupt() / adaptive.packets_per_rx_interrupt();
        assert!(ratio < 1.15, "{nic:?}: {ratio:.2} times the interrupts a packet: {vanilla:?} {adaptive:?}");
        assert!(adaptive.polled < 0.05 * adaptive.packets, "{nic:?}: {adaptive:?}");
    }
}
