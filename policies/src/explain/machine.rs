//! What the machine adds to a wake-up, and what udev sets besides a policy.

use std::fs;
use std::path::{Path, PathBuf};

use super::{FindingList, Severity};
use crate::host::{HostFacts, IdleCores, Interface};

/// From this time on, waking a core from its deepest state counts beside a poll interval.
const LONG_WAKE_UP_MICROS: u128 = 20;

/// Keys of a `.link` file (systemd.link(5)) that set what policies set, by how they begin.
const KEYS: [&str; 9] = [
    "IRQAffinity",
    "RxChannels",
    "TxChannels",
    "CombinedChannels",
    "RxBufferSize",
    "RxCoalesce",
    "TxCoalesce",
    "UseAdaptiveRxCoalesce",
    "ReceivePacketSteeringCPUMask",
];

impl FindingList {
    /// How deep idle cores sleep, and how fast they run: what a packet waits for that wakes one.
    pub(super) fn check_idle_cores(&mut self, host: &HostFacts) {
        let Some(core) = host.allowed.iter().next() else { return };
        self.judge_idle_cores(&IdleCores::read(core));
    }

    fn judge_idle_cores(&mut self, idle: &IdleCores) {
        let micros = idle.deepest.as_ref().map_or(0, |(_, latency)| latency.as_micros());
        if micros >= LONG_WAKE_UP_MICROS {
            self.add_problem(
                Severity::Degrades,
                format!("Idle cores {idle}: a packet that finds its core asleep waits for so long."),
                "forbid states that wake slowly, which costs power: cpupower idle-set -D 10",
            );
        } else {
            self.add_ok(format!("Idle cores {idle}."));
        }
        if let Some(governor) = idle.frequency_governor.as_deref().filter(|it| *it != "performance") {
            self.add_problem(
                Severity::Degrades,
                format!(
                    "The frequency governor {governor} may slow a core down that sleeps between packets."
                ),
                "cpupower frequency-set -g performance",
            );
        }
    }

    /// The `.link` file that udev has applied to the interface, if it sets what a policy sets.
    pub(super) fn check_link_file(&mut self, interface: &Interface) {
        let Ok(record) = fs::read_to_string(format!("/run/udev/data/n{}", interface.index)) else { return };
        for (file, keys) in link_files(&record).iter().filter_map(|file| Some((file, keys_of(file)?))) {
            self.add_problem(
                Severity::Degrades,
                format!(
                    "udev sets {keys} of {} by {} whenever the device appears, after a policy too.",
                    interface.name,
                    file.display()
                ),
                "remove these lines, or run `policies apply` after udev",
            );
        }
    }
}

/// The `.link` file of a device and what was dropped into it, by udev's record of the device.
fn link_files(record: &str) -> Vec<PathBuf> {
    let values =
        |key: &str| record.lines().find_map(|line| line.strip_prefix("E:")?.strip_prefix(key)).unwrap_or("");
    let drop_ins = values("ID_NET_LINK_FILE_DROPINS=").split(':');
    [values("ID_NET_LINK_FILE=")]
        .into_iter()
        .chain(drop_ins)
        .filter(|it| !it.is_empty())
        .map(PathBuf::from)
        .collect()
}

/// The keys of such a file that set what policies set: `RxChannels= and IRQAffinityPolicy=`.
fn keys_of(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let keys = text.lines().filter_map(|line| Some(line.split_once('=')?.0.trim()));
    let keys: Vec<String> = keys
        .filter(|key| KEYS.iter().any(|known| key.starts_with(known)))
        .map(|key| format!("{key}="))
        .collect();
    (!keys.is_empty()).then(|| keys.join(" and "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_link_file_that_sets_channels_or_affinities_is_found_by_its_keys() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("10-eth0.link");
        let added = folder.path().join("own.conf");
        let record = format!(
            "I:1\nE:ID_NET_LINK_FILE={}\nE:ID_NET_LINK_FILE_DROPINS={}\n",
            file.display(),
            added.display()
        );
        assert_eq!(link_files(&record), [file.clone(), added.clone()]);
        assert!(link_files("I:1\n").is_empty());
        fs::write(&file, "[Match]\nOriginalName=*\n[Link]\nNamePolicy=keep\n# RxChannels=2\n").unwrap();
        fs::write(&added, "[Link]\nIRQAffinityPolicy=spread\nRxChannels = 4\n  CombinedChannels=2\n")
            .unwrap();
        assert_eq!(keys_of(&file), None);
        assert_eq!(keys_of(&added).unwrap(), "IRQAffinityPolicy= and RxChannels= and CombinedChannels=");
        assert_eq!(keys_of(&folder.path().join("none")), None);
    }

    #[test]
    fn a_deep_idle_state_and_a_saving_governor_degrade_and_shallow_ones_do_not() {
        let judge = |latency, governor: &str| {
            let mut list = FindingList(Vec::new());
            let deepest = Some(("C6".to_owned(), Duration::from_micros(latency)));
            let frequency_governor = Some(governor.to_owned());
            list.judge_idle_cores(&IdleCores { deepest, frequency_governor, ..IdleCores::default() });
            list.0.iter().map(|it| it.severity).collect::<Vec<_>>()
        };
        assert_eq!(judge(133, "powersave"), [Severity::Degrades; 2]);
        assert_eq!(judge(2, "performance"), [Severity::Ok]);
    }
}
