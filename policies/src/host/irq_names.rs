//! Which interrupt is a queue's, by the names that drivers give their interrupts.

use super::facts::InterruptFacts;
use super::irq::Direction;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Vector { number: u32, rx: bool, tx: bool },
    Shared,
}

/// The words that drivers have before the number, and the directions that the interrupt is for.
const WORDS: [(&str, bool, bool); 12] = [
    ("tx-rx", true, true),
    ("txrx", true, true),
    ("rxtx", true, true),
    // mlx5: `mlx5_comp0@pci:0000:08:00.0`
    ("comp", true, true),
    // mana: `mana_q0@pci:7870:00:00.0`
    ("_q", true, true),
    // mana of newer kernels, where number 0 is not a queue's.
    ("_msi", true, true),
    ("fp", true, true),
    ("input", true, false),
    ("rx", true, false),
    ("output", false, true),
    ("tx", false, true),
    // mlx5 with a single vector.
    ("combined", true, true),
];

/// The interrupts of `count` queues in their order; `None` for a queue whose interrupt the names
/// don't tell. `names`: the interface's and its device's.
///
/// vmxnet3 and idpf number vectors, not queues, so that receive vectors may begin above 0: then
/// their order counts.
pub(super) fn by_name(
    interrupts: &[InterruptFacts],
    names: &[&str],
    direction: Direction,
    count: usize,
) -> Vec<Option<u32>> {
    let uses = |irq: &InterruptFacts| irq.actions.iter().find_map(|action| use_of(action, names));
    let mut vectors: Vec<(u32, u32)> = interrupts
        .iter()
        .filter_map(|irq| match uses(irq)? {
            Use::Vector { number, rx, tx } => {
                let is_of = if direction == Direction::Rx { rx } else { tx };
                is_of.then_some((number, irq.number))
            }
            Use::Shared => None,
        })
        .collect();
    vectors.sort_unstable();
    if vectors.is_empty() {
        // One that all share, unless others of the device are of a form that is not known here.
        let mut shared = interrupts.iter().filter(|irq| uses(irq) == Some(Use::Shared));
        let only = shared.next().filter(|_| shared.next().is_none()).map(|irq| irq.number);
        let unknown = interrupts.iter().any(|irq| uses(irq).is_none() && has_number(irq));
        return vec![only.filter(|_| !unknown); count];
    }
    let repeated = vectors.windows(2).any(|pair| pair[0].0 == pair[1].0);
    let numbered = vectors.iter().take(count).enumerate().all(|(at, (number, _))| at == *number as usize);
    if repeated || vectors.len() < count || !(numbered || vectors.len() == count) {
        return vec![None; count];
    }
    vectors.into_iter().take(count).map(|(_, irq)| Some(irq)).collect()
}

/// Whether a name ends in a number, as that of a queue's interrupt does.
fn has_number(irq: &InterruptFacts) -> bool {
    irq.actions.iter().any(|action| without_device(action).ends_with(|last: char| last.is_ascii_digit()))
}

/// Newer drivers add the device: `gve-ntfy-blk0@pci:0000:00:04.0`.
fn without_device(action: &str) -> &str {
    action.split('@').next().unwrap_or_default()
}

fn use_of(action: &str, names: &[&str]) -> Option<Use> {
    let name = without_device(action);
    if names.iter().any(|own| name == *own || name.strip_prefix(own) == Some("-virtqueues")) {
        return Some(Use::Shared);
    }
    let lower = name.to_ascii_lowercase();
    let stem = lower.trim_end_matches(|last: char| last.is_ascii_digit());
    let number = lower[stem.len()..].parse().ok()?;
    let stem = stem.trim_end_matches(['-', '.']);
    let (_, rx, tx) = WORDS.into_iter().find(|(word, ..)| stem.ends_with(word))?;
    Some(Use::Vector { number, rx, tx })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupts(names: &[&str]) -> Vec<InterruptFacts> {
        let named = |(at, name): (usize, &&str)| InterruptFacts {
            number: 30 + at as u32,
            actions: vec![(*name).to_owned()],
            ..InterruptFacts::default()
        };
        names.iter().enumerate().map(named).collect()
    }

    fn rx(names: &[&str], count: usize) -> Vec<Option<u32>> {
        by_name(&interrupts(names), &["eth0", "virtio0"], Direction::Rx, count)
    }

    fn tx(names: &[&str], count: usize) -> Vec<Option<u32>> {
        by_name(&interrupts(names), &["eth0", "virtio0"], Direction::Tx, count)
    }

    #[test]
    fn every_drivers_names_give_each_queue_its_interrupt() {
        let both = [Some(31), Some(32)];
        for names in [
            ["eth0", "eth0-TxRx-0", "eth0-TxRx-1"],
            ["ena-mgmnt@pci:0000:00:05.0", "eth0-Tx-Rx-0", "eth0-Tx-Rx-1"],
            ["i40e-0000:3b:00.0:misc", "i40e-eth0-TxRx-0", "i40e-eth0-TxRx-1"],
            ["mana_hwc@pci:7870:00:00.0", "mana_q0@pci:7870:00:00.0", "mana_q1@pci:7870:00:00.0"],
            ["mana_hwc@pci:7870:00:00.0", "mana_msi1@pci:7870:00:00.0", "mana_msi2@pci:7870:00:00.0"],
            ["mlx5_async0@pci:0000:08:00.0", "mlx5_comp0@pci:0000:08:00.0", "mlx5_comp1@pci:0000:08:00.0"],
            ["eth0-event-2", "eth0-rxtx-0", "eth0-rxtx-1"],
            ["bnx2x", "eth0-fp-0", "eth0-fp-1"],
        ] {
            assert_eq!((rx(&names, 2), tx(&names, 2)), (both.to_vec(), both.to_vec()), "{names:?}");
        }
        let virtio = ["virtio0-config", "virtio0-input.0", "virtio0-output.0"];
        assert_eq!((rx(&virtio, 1), tx(&virtio, 1)), (vec![Some(31)], vec![Some(32)]));
        // vmxnet3 without shared vectors: the number is the vector's.
        let vmxnet3 = ["eth0-tx-0", "eth0-rx-1", "eth0-rx-2", "eth0-event-3"];
        assert_eq!((rx(&vmxnet3, 2), tx(&vmxnet3, 1)), (both.to_vec(), vec![Some(30)]));
    }

    #[test]
    fn a_vector_of_all_queues_is_each_queues() {
        // virtio-mmio, virtio-pci with two vectors, a device without MSI-X.
        for names in [vec!["virtio0"], vec!["virtio0-config", "virtio0-virtqueues"], vec!["eth0"]] {
            let expected = names.len() as u32 + 29;
            assert_eq!(rx(&names, 3), [Some(expected); 3], "{names:?}");
        }
    }

    #[test]
    fn names_that_do_not_tell_the_queue_give_none() {
        let unknown = vec![None, None];
        // gve numbers blocks, those of transmit queues first.
        assert_eq!(rx(&["gve-ntfy-blk0@pci:0", "gve-ntfy-blk1@pci:0", "gve-mgmnt@pci:0"], 2), unknown);
        assert_eq!(rx(&["eth0", "blk-0", "blk-1"], 2), unknown, "the shared one is another vector");
        assert_eq!(rx(&["eth0-rx-0", "eth0-rx-0"], 2), unknown, "a number twice");
        assert_eq!(rx(&["eth0-rx-0"], 2), unknown, "too few");
        assert_eq!(rx(&["eth0-rx-1", "eth0-rx-2", "eth0-rx-3"], 2), unknown, "too many");
        assert_eq!(rx(&["virtio0-config", "virtio3-rx"], 2), unknown);
    }

    #[test]
    fn more_vectors_than_queues_are_numbered_from_the_first_queue() {
        let names = ["mlx5_comp0@pci:0", "mlx5_comp1@pci:0", "mlx5_comp2@pci:0"];
        assert_eq!(rx(&names, 2), [Some(30), Some(31)]);
    }
}
