//! Instructions of a request, counted as `lab instructions` does: a change that makes requests
//! dearer fails here, however noisy the machine.

use lab::instructions::{self, Counting};

use super::machine::prepared;

/// The kernel of the figures below. With another one, only user code is compared.
const KERNEL: &str = "7.3.4+deb13-amd64";
/// Two runs are the same, but any change shifts when packets meet timers, by less than 1 %.
const STEADY: f64 = 0.02;
/// Here by 2 %: how many packets a poll finds is decided by a timer.
const POLLING: f64 = 0.04;

/// Driver, policy, instructions of user code and of the kernel a request, and by what share they
/// may differ. The other policies are for `lab instructions`: packing's differ from vanilla's in the
/// kernel, and suppression, which spins, has those of the time.
///
/// After a change that is meant to have others, paste what the test prints.
const FIGURES: &[(&str, &str, f64, f64, f64)] = &[
    ("epoll", "vanilla", 4_155.0, 28_480.0, STEADY),
    ("epoll", "kernel-polling", 4_300.0, 28_418.0, POLLING),
    ("uring", "vanilla", 5_013.0, 28_462.0, STEADY),
    ("uring", "kernel-polling", 5_090.0, 28_382.0, POLLING),
];

#[test]
fn a_get_takes_as_many_instructions_as_it_did() {
    let Some(folder) = prepared() else { return };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect();
    let counting = Counting {
        devices: words("virtio-net-pci"),
        drivers: words("epoll uring"),
        policies: words("vanilla kernel-polling"),
        loads: words("6000:0.3"),
    };
    let same_kernel = std::fs::read_to_string(folder.join("fetched")).unwrap().trim() == KERNEL;
    let rows = instructions::count(&folder, &counting, |_| ()).unwrap();
    let mut off = Vec::new();
    for &(driver, policy, user, kernel, tolerance) in FIGURES {
        let row = rows.iter().find(|row| row.driver == driver && row.policy == policy).unwrap();
        println!("(\"{driver}\", \"{policy}\", {:.1}, {:.1}, …),", row.user, row.kernel);
        // Both are read off the kernel's own bookkeeping, which a new kernel may keep elsewhere.
        let share = row.softirq / row.kernel;
        assert!((0.1..0.9).contains(&share) && row.irq > 0.0, "count.c does not find softirqs: {row:?}");
        assert!(row.misses[..3].iter().all(|&misses| misses > 0.0), "no caches: {row:?}");
        let (counted, expected) =
            if same_kernel { (row.user + row.kernel, user + kernel) } else { (row.user, user) };
        for (what, counted, expected) in [("user", row.user, user), ("all", counted, expected)] {
            let change = counted / expected - 1.0;
            if change.abs() > tolerance {
                off.push(format!("{driver}, {policy}: {what} {:+.1} %", change * 100.0));
            }
        }
    }
    assert!(off.is_empty(), "instructions a request have changed: {off:#?}");
}
