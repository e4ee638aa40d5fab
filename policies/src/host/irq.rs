//! Interrupts of queues, their counts and affinity, from `/proc/interrupts` and `/proc/irq`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::cpus::Cpus;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IrqLine {
    pub(crate) counts: Vec<u64>,
    /// The names of its actions, for example `eth0-rx-0` or `virtio3-input.0`: several if devices
    /// share the line.
    pub(crate) actions: Vec<String>,
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
            let rest: Vec<&str> = words.collect();
            Some((number, IrqLine { counts, actions: actions(&rest) }))
        })
        .collect()
}

/// The names at the end of a line: `PCI-MSIX-0000:00:03.0 1-edge eth0-rx-0`, or
/// `IO-APIC 10-fasteoi virtio0, eth1`.
fn actions(words: &[&str]) -> Vec<String> {
    let first = words.len().saturating_sub(1);
    let first = (0..first).rev().take_while(|&word| words[word].ends_with(',')).last().unwrap_or(first);
    words[first..].iter().map(|word| word.trim_end_matches(',').to_owned()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Rx,
    Tx,
}

pub(crate) fn affinity_path(irq: u32) -> PathBuf {
    format!("/proc/irq/{irq}/smp_affinity_list").into()
}

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

/// Whether the kernel manages the interrupt's affinity (`IRQD_AFFINITY_MANAGED`): the file then
/// exists without write permission (`kernel/irq/proc.c`, `register_irq_proc`).
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
        assert_eq!(lines[&38], IrqLine { counts: vec![0, 345], actions: vec!["virtio2-input.0".into()] });
    }

    #[test]
    fn a_line_that_devices_share_has_the_names_of_all() {
        let text = "     CPU0\n 10:  5   IO-APIC   10-fasteoi   virtio0, eth1\n 11:  0  IO-APIC  11-edge\n";
        let lines = parse(text);
        assert_eq!(lines[&10].actions, ["virtio0", "eth1"]);
        // No driver has requested this line, so its last word is the trigger and not an action.
        assert_eq!(lines[&11].actions, ["11-edge"]);
    }
}
