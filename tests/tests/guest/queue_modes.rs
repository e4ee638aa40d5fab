//! An adapted queue on devices that interrupt.

use serial_test::serial;

use super::boot;
use super::load::{Counted, load, serve_on, stop};
use super::machine::Nic;

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
        assert!(ratio < 1.3, "{nic:?}: {ratio:.2} times the interrupts a packet: {vanilla:?} {adaptive:?}");
        assert!(adaptive.polled < 0.05 * adaptive.packets, "{nic:?}: {adaptive:?}");
    }
}
