//! Interrupts of queues, their counts and affinity, from `/proc/interrupts` and `/proc/irq`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::cpus::Cpus;

/// One line of `/proc/interrupts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IrqLine {
    /// The number of interrupts on each CPU.
    pub(crate) counts: Vec<u64>,
    /// The name of the interrupt's action, for example `eth0-rx-0` or `virtio3-input.0`.
    pub(crate) name: String,
}

/// The machine's numbered interrupts (`NMI` and the like are left out).
pub(crate) fn all() -> io::Result<BTreeMap<u32, IrqLine>> {
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

/// Receive or transmit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Rx,
    Tx,
}

/// The interrupts of a device's queues, in queue order, found by action name. For drivers that don't
/// report the interrupt of a NAPI (virtio_net).
pub(crate) fn irqs_by_name(interface: &str, direction: Direction) -> Vec<u32> {
    let device = PathBuf::from("/sys/class/net").join(interface).join("device");
    // A virtio device's vectors belong to its PCI parent.
    let folders = [device.join("msi_irqs"), device.join("../msi_irqs")];
    let Some(entries) = folders.iter().find_map(|folder| fs::read_dir(folder).ok()) else {
        return Vec::new();
    };
    let Ok(lines) = all() else { return Vec::new() };
    let mut found: Vec<(u32, u32)> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|irq| Some((queue_in_name(&lines.get(&irq)?.name, direction)?, irq)))
        .collect();
    found.sort_unstable();
    // A duplicate queue number means that the driver's names don't follow the expected pattern.
    if found.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Vec::new();
    }
    found.into_iter().map(|(_, irq)| irq).collect()
}

/// The queue number in an action name. Receive queue 0: `virtio3-input.0`; 2: `eth0-rx-2` and
/// `eth0-TxRx-2`; 1: `ens5-Tx-Rx-1`; none: `virtio3-rx` and `virtio3-output.0`.
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

pub(crate) fn affinity_path(irq: u32) -> PathBuf {
    format!("/proc/irq/{irq}/smp_affinity_list").into()
}

/// The CPUs that an interrupt may go to.
pub(crate) fn affinity(irq: u32) -> io::Result<Cpus> {
    fs::read_to_string(affinity_path(irq))?
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The CPUs that an interrupt goes to: usually one of those that its affinity allows.
pub(crate) fn effective_affinity(irq: u32) -> io::Result<Cpus> {
    fs::read_to_string(format!("/proc/irq/{irq}/effective_affinity_list"))?
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Whether the kernel manages the interrupt's affinity (`IRQD_AFFINITY_MANAGED`): the file then exists
/// without write permission (`kernel/irq/proc.c`, `register_irq_proc`).
pub(crate) fn is_managed(irq: u32) -> bool {
    fs::metadata(affinity_path(irq)).is_ok_and(|data| data.permissions().mode() & 0o222 == 0)
}

/// Sets the CPUs that an interrupt may go to. Fails with `EPERM` or `EIO` for a managed interrupt.
pub(crate) fn set_affinity(irq: u32, cpus: &Cpus) -> io::Result<()> {
    fs::write(affinity_path(irq), cpus.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_parse_into_counts_by_cpu_and_the_last_word_as_name() {
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
