//! Policies on devices that interrupt: in a guest, under software emulation.

mod machine;

use machine::{Machine, Nic, Shape, prepared};

fn two_cpus(nics: &[Nic]) -> Option<Machine> {
    tests::root()?;
    let folder = prepared()?;
    let shape = Shape { nics: nics.to_vec(), numa_nodes: 1 };
    Some(Machine::boot(&folder, &shape).unwrap())
}

const POLICIES: [&str; 4] = ["vanilla", "packing", "suppression", "kernel-polling"];

#[test]
fn every_policy_is_applied_and_taken_off_again_on_every_nic() {
    let Some(mut guest) = two_cpus(&[Nic::Igb, Nic::Igb, Nic::E1000e, Nic::Virtio]) else { return };
    let interfaces = guest.interfaces.clone();
    for interface in &interfaces {
        let before: Vec<_> = interfaces.iter().map(|name| guest.settings(name)).collect();
        for policy in POLICIES {
            let answer = guest.ask(&format!("policies apply {interface} --policy {policy} --workers 2"));
            println!("{interface} {policy}: {}", answer.text);
            for (name, before) in interfaces.iter().zip(&before) {
                if name != interface {
                    assert_eq!(
                        guest.settings(name),
                        *before,
                        "{policy} on {interface} was written on {name}"
                    );
                }
            }
            let set = guest.settings(interface);
            assert_ne!(set, before[0], "{policy} on {interface}");
            let restored = guest.run(&format!("policies restore {interface}"));
            assert!(!restored.contains("NOT restored") && !restored.contains("left alone"), "{restored}");
            assert_eq!(guest.settings(interface), before[own], "{policy} on {interface}");
        }
    }
}
