//! Which interrupt is whose: `/proc/interrupts` and `/proc/irq`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::Cpus;

/// One line of `/proc/interrupts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IrqLine {
    /// How often it fired, a CPU.
    pub(crate) counts: Vec<u64>,
    /// The action's name, for example `eth0-rx-0` or `virtio3-input.0`.
    pub(crate) name: String,
}

/// The numbered interrupts of the machine.
pub(crate) fn lines() -> io::Result<BTreeMap<u32, IrqLine>> {
    Ok(parse(&fs::read_to_string("/proc/interrupts")?))
}

fn parse(text: &str) -> BTreeMap<u32, IrqLine> {
    let mut lines = text.lines();
    let cpus = lines.next().map_or(0, |header| header.split_whitespace().count());
    lines
        .filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let number = number.trim().parse().ok()?;
            let mut words = rest.split_whitespace();
            let counts = words.by_ref().take(cpus).map(|word| word.parse().unwrap_or(0)).collect();
            let name = words.last().unwrap_or_default().to_owned();
            Some((number, IrqLine { counts, name }))
        })
        .collect()
}

/// What a queue does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Rx,
    Tx,
}

/// The interrupts of a device's queues, in queue order, found by name: for drivers that don't report a
/// NAPI's interrupt (virtio_net).
pub(crate) fn irqs_by_name(interface: &str, direction: Direction) -> Vec<u32> {
    let device = PathBuf::from("/sys/class/net").join(interface).join("device");
    // A virtio device's vectors belong to its PCI parent.
    let folders = [device.join("msi_irqs"), device.join("../msi_irqs")];
    let Some(entries) = folders.iter().find_map(|folder| fs::read_dir(folder).ok()) else {
        return Vec::new();
    };
    let Ok(lines) = lines() else { return Vec::new() };
    let mut found: Vec<(u32, u32)> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|irq| Some((queue_in_name(&lines.get(&irq)?.name, direction)?, irq)))
        .collect();
    found.sort_unstable();
    // A queue number that comes twice means that the names don't say what this guesses.
    if found.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Vec::new();
    }
    found.into_iter().map(|(_, irq)| irq).collect()
}

/// Received by queue 0: `virtio3-input.0`; by 2: `eth0-rx-2` and `eth0-TxRx-2`; by 1: `ens5-Tx-Rx-1`;
/// by none: `virtio3-rx` and `virtio3-output.0`.
fn queue_in_name(name: &str, direction: Direction) -> Option<u32> {
    let lower = name.to_ascii_lowercase();
    let digits = lower.rsplit(['-', '.']).next()?;
    let queue = digits.parse().ok()?;
    let stem = &lower[..lower.len() - digits.len() - 1];
    let words: &[&str] = match direction {
        Direction::Rx => &["input", "rx"],
        Direction::Tx => &["output", "tx", "txrx", "tx-rx"],
    };
    words.iter().any(|word| stem.ends_with(word)).then_some(queue)
}

/// Where the affinity of an interrupt is set.
pub(crate) fn affinity_path(irq: u32) -> PathBuf {
    format!("/proc/irq/{irq}/smp_affinity_list").into()
}

/// The CPUs that an interrupt may go to.
pub(crate) fn affinity(irq: u32) -> io::Result<Cpus> {
    fs::read_to_string(affinity_path(irq))?
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The CPUs that an interrupt really goes to: of those that it may, mostly one.
pub(crate) fn effective_affinity(irq: u32) -> io::Result<Cpus> {
    fs::read_to_string(format!("/proc/irq/{irq}/effective_affinity_list"))?
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Whether the kernel keeps the interrupt's affinity to itself (`IRQD_AFFINITY_MANAGED`): then the file
/// is there and nobody may write it (`kernel/irq/proc.c`, `register_irq_proc`).
pub(crate) fn is_managed(irq: u32) -> bool {
    fs::metadata(affinity_path(irq)).is_ok_and(|data| data.permissions().mode() & 0o222 == 0)
}

/// Sets the CPUs that an interrupt may go to. Managed interrupts answer `EPERM` or `EIO`.
pub(crate) fn set_affinity(irq: u32, cpus: &Cpus) -> io::Result<()> {
    fs::write(affinity_path(irq), cpus.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_parse_with_counts_a_cpu_and_the_last_word_as_name() {
        let text = "           CPU0       CPU1       \n 38:          0        345 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0\nNMI:          0          0   Non-maskable interrupts\n";
        let lines = parse(text);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[&38], IrqLine { counts: vec![0, 345], name: "virtio2-input.0".into() });
    }

    #[test]
    fn queue_numbers_are_found_in_driver_names() {
        let cases = [
            ("virtio3-input.1", Some(1), None),
            ("virtio3-output.1", None, Some(1)),
            ("virtio3-config", None, None),
            ("eth0-rx-2", Some(2), None),
            ("eth0-tx-2", None, Some(2)),
            ("ens5-Tx-Rx-7", Some(7), Some(7)),
            ("i40e-eth0-TxRx-3", Some(3), Some(3)),
            ("virtio3-rx", None, None),
        ];
        for (name, received, sent) in cases {
            assert_eq!(queue_in_name(name, Direction::Rx), received, "{name}");
            assert_eq!(queue_in_name(name, Direction::Tx), sent, "{name}");
        }
    }
}
