//! Policies on devices that interrupt, in a guest under software emulation.

mod card;
mod clocks;
mod devices;
mod eight_queues;
mod event_histograms;
mod instructions;
mod load;
mod machine;
mod numa_nodes;
mod polling_thread;
mod queue_modes;

use load::{Counted, load, serve, stop};
use machine::{Machine, Nic, Shape, prepared};
use serial_test::serial;

/// A guest with two CPUs for each node.
fn boot(nics: &[Nic], numa_nodes: u32) -> Option<Machine> {
    boot_shape(&Shape { nics: nics.to_vec(), numa_nodes, cpus_per_node: 2 })
}

fn boot_shape(shape: &Shape) -> Option<Machine> {
    tests::root()?;
    Some(Machine::boot(&prepared()?, shape).unwrap())
}

#[test]
#[serial]
fn what_a_device_refuses_or_rounds_is_reported_and_queues_and_rings_that_were_changed_are_restored() {
    let Some(mut guest) = boot(&[Nic::Igb], 1) else { return };
    let igb = guest.interfaces[0].clone();
    // A device that refuses a value gets a part of it, and the refusal is reported.
    let answer = guest.ask(&format!("policies apply {igb} --policy suppression --all-programs --workers 2"));
    assert!(answer.text.contains("rx-usecs set to 8191: the device refused 65534 ("), "{}", answer.text);
    guest.run("policies restore");
    // The number of queues, and the settings that the device loses when it changes.
    let before = guest.settings(&igb);
    guest
        .run("echo 1 >/proc/irq/$(grep 'eth0-rx-1' /proc/interrupts | cut -d: -f1 | tr -d ' ')/smp_affinity");
    let moved = guest.settings(&igb);
    assert_ne!(moved, before);
    guest.run(&format!("policies apply {igb} --policy kernel-polling --workers 1 --channels 1"));
    assert_eq!(guest.settings(&igb)["queues"].as_array().unwrap().len(), 1);
    guest.run("policies restore");
    assert_eq!(guest.settings(&igb), moved);
    // The driver takes multiples of eight, and rebuilds the queues.
    let answer =
        guest.ask(&format!("policies apply {igb} --policy kernel-polling --workers 2 --rx-ring 500"));
    assert!(answer.text.contains("rx ring set to 504 (500 asked)"), "{}", answer.text);
    assert_eq!(guest.settings(&igb)["rx_ring"]["size"], 504);
    guest.run("policies restore");
    assert_eq!(guest.settings(&igb), moved);
    let answer = guest.ask(&format!("policies plan {igb} --policy vanilla --rx-ring 5000"));
    assert!(answer.text.contains("at most 4096 descriptors, not 5000"), "{}", answer.text);
    assert_eq!(guest.run("ls /run"), "", "nothing is left behind");
}

#[test]
#[serial]
fn kernel_polling_gets_ten_times_the_packets_per_interrupt() {
    // QEMU's model of the 82576 does not mask a queue's interrupt when it is delivered (it leaves out
    // EIAM), so deferral and suspension can't keep it away. It does coalesce.
    // At half load kernel polling adapts to interrupts; a fixed grace time polls at every load.
    // A guest that lacks a core polls late, and virtio has two queues: mostly it is 10, too.
    let compared = [
        (Nic::Igb, "suppression", "", 1.5),
        (Nic::E1000e, "kernel-polling", "--gro-flush-timeout 200", 10.0),
        (Nic::Virtio, "kernel-polling", "--gro-flush-timeout 200", 4.0),
    ];
    let Some(mut guest) = boot(&compared.map(|(nic, ..)| nic), 1) else { return };
    for (index, (nic, policy, flags, times)) in compared.into_iter().enumerate() {
        let mut seen: Vec<[Counted; 2]> = Vec::new();
        for (policy, flags) in [("vanilla", ""), (policy, flags)] {
            let before = guest.settings(&guest.interfaces[index].clone());
            println!("{}", serve(&mut guest, index, policy, flags).trim());
            let saturation = load(&mut guest, index, 0);
            let half = seen.first().map_or(saturation.rate, |vanilla| vanilla[0].rate) / 2.0;
            let half = load(&mut guest, index, half as u64);
            stop(&mut guest);
            assert_eq!(guest.settings(&guest.interfaces[index].clone()), before, "after {policy} on {nic:?}");
            println!("{nic:?} {policy}: at saturation {saturation:?}, at half load {half:?}");
            seen.push([saturation, half]);
        }
        for (load, name) in ["saturation", "half load"].iter().enumerate() {
            let [vanilla, other] = [0, 1].map(|policy| seen[policy][load].packets_per_rx_interrupt());
            assert!(other >= times * vanilla, "{policy} on {nic:?}, {name}: {seen:?}");
        }
    }
}

#[test]
#[serial]
fn wherever_an_apply_is_killed_restore_puts_everything_back() {
    let Some(mut guest) = boot(&[Nic::Igb], 1) else { return };
    let interface = guest.interfaces[0].clone();
    let before = guest.settings(&interface);
    let apply = format!(
        "policies apply {interface} --policy suppression --all-programs --workers 2 --channels 1 --rx-ring 500"
    );
    // Every change is between two of these calls. Messages are many, and most only read.
    for (calls, step) in [("write,rename,renameat,renameat2,unlink,unlinkat,rmdir", 1), ("sendto", 20)] {
        let count = guest.run(&format!(
            "strace -f -qq --seccomp-bpf -o /tmp/calls -e trace={calls} {apply} >/tmp/out 2>&1; wc -l </tmp/calls"
        ));
        guest.run("policies restore >/dev/null");
        assert_eq!(guest.settings(&interface), before);
        let count: usize = count.trim().parse().unwrap();
        assert!(count > 5, "{calls}: {count}");
        for number in (1..=count).step_by(step) {
            let inject = format!("inject={calls}:signal=SIGKILL:when={number}");
            guest.ask(&format!(
                "strace -f -qq --seccomp-bpf -o /dev/null -e trace={calls} -e {inject} {apply} >/tmp/out 2>&1"
            ));
            let restored = guest.run("policies restore");
            assert!(!restored.contains("NOT restored"), "killed at {calls} {number}: {restored}");
            assert_eq!(guest.settings(&interface), before, "killed at {calls} {number}: {restored}");
            assert_eq!(guest.run("ls /run"), "", "killed at {calls} {number}");
        }
        println!("{} kills at {calls}", count.div_ceil(step));
    }
}

/// The link of an interface that is served goes down and up, and its settings are applied again.
fn reopen_link(guest: &mut Machine, interface: &str) {
    guest.run(&format!("ip link set {interface} down; sleep 2; ip link set {interface} up"));
    guest.wait_for_carrier(interface);
    guest.wait_for("grep -q 'the link is up' /tmp/memcached");
    std::thread::sleep(std::time::Duration::from_secs(2));
}

#[test]
#[serial]
fn changes_of_links_and_interrupts_are_followed_or_reverted() {
    let Some(mut guest) = boot(&[Nic::Igb, Nic::Virtio], 1) else { return };
    let interface = guest.interfaces[0].clone();
    let before = guest.settings(&interface);
    serve(&mut guest, 0, "kernel-polling", "--gro-flush-timeout 200");
    let held = guest.settings(&interface);
    let irq = held["queues"][1]["irq"].as_u64().unwrap();
    let affinity = format!("/proc/irq/{irq}/smp_affinity_list");
    // As an operator or irqbalance would.
    guest.run(&format!("echo 0 >{affinity}"));
    guest.wait_for(&format!("[ $(cat {affinity}) = 1 ]"));
    guest.wait_for("grep -q 'affinity set to 1.*it had been changed to 0' /tmp/memcached");
    // The link goes down and up.
    reopen_link(&mut guest, &interface);
    assert_eq!(guest.settings(&interface), held);
    assert!(load(&mut guest, 0, 500).packets > 500.0, "the server keeps serving");
    // The settings of a killed server are restored.
    guest.run("kill -9 $(pidof memcached); sleep 0.5");
    guest.run("policies restore");
    assert_eq!(guest.settings(&interface), before);
    // Workers that follow their interrupts.
    serve(&mut guest, 0, "kernel-polling", "--affinity follow --gro-flush-timeout 200");
    load(&mut guest, 0, 500);
    guest.run(&format!("echo 0 >{affinity}"));
    load(&mut guest, 0, 500);
    let on_core_0 = "grep -l 'Cpus_allowed_list:.0$' /proc/$(pidof memcached)/task/*/status | wc -l";
    guest.wait_for(&format!("[ $({on_core_0}) -ge 1 ]"));
    guest.wait_for("grep -q 'rx-1 interrupt moved to core 0' /tmp/memcached");
    stop(&mut guest);
    guest.run(&format!("echo 0-1 >{affinity}"));
    assert_eq!(guest.settings(&interface), before);
}

#[test]
#[serial]
fn a_running_irqbalance_is_noted_with_what_to_do() {
    let Some(mut guest) = boot(&[Nic::Igb], 1) else { return };
    let interface = guest.interfaces[0].clone();
    let plan = format!("policies plan {interface} --policy vanilla --workers 2");
    let explain = format!("policies explain {interface}");
    let noted = |guest: &mut Machine| {
        [&plan, &explain].map(|command| {
            let text = guest.ask(command).text;
            text.contains("irqbalance runs") && text.contains("--banirq=NUMBER")
        })
    };
    assert_eq!(noted(&mut guest), [false; 2]);
    guest.run("mkdir -p /run/irqbalance; irqbalance --foreground >/tmp/irqbalance 2>&1 & sleep 2");
    assert_eq!(noted(&mut guest), [true; 2], "{}", guest.ask("cat /tmp/irqbalance; ps").text);
}

#[test]
#[serial]
fn watch_counts_under_load_and_explain_names_the_driver() {
    let Some(mut guest) = boot(&[Nic::Igb, Nic::Virtio], 1) else { return };
    let interface = guest.interfaces[0].clone();
    let before = guest.settings(&interface);
    let explained = guest.run(&format!("policies explain {interface}"));
    println!("{explained}");
    assert!(explained.starts_with(&format!("{interface} can run kernel polling in full")), "{explained}");
    assert!(explained.contains("driver igb"), "{explained}");
    serve(&mut guest, 1, "vanilla", "--interface lo");
    let load =
        guest.outside_spawn("loadgen", &["-s", "10.9.1.2", "-c", "32", "-t", "40", "-w", "0"]).unwrap();
    let watched = guest.run("policies watch eth1 --count 2");
    println!("{watched}");
    assert_eq!(watched.matches("received by busy polling").count(), 2, "{watched}");
    drop(load);
    stop(&mut guest);
    assert_eq!(guest.settings(&interface), before);
}
