//! `kernel-thread` on devices that interrupt: a kernel thread polls all the time, and the interrupt
//! stays masked.

use serde_json::Value;
use serial_test::serial;

use super::boot;
use super::load::{Counted, load, received_by_cpu, serve_on, stop};
use super::machine::{Machine, Nic};

/// The id of the thread that polls queue 0, which must poll all the time.
fn polling_thread(guest: &mut Machine, interface: &str) -> u64 {
    let shown = guest.json(&format!("policies --format json show {interface}"));
    for queue in shown["queues"].as_array().unwrap() {
        assert_eq!(queue["napi"]["threaded"], 2, "{queue}");
    }
    shown["queues"][0]["napi"]["pid"].as_u64().unwrap()
}

/// All settings but the ids of NAPIs, which e1000e replaces when its link is reopened.
fn settings_but_ids(guest: &mut Machine, interface: &str) -> Value {
    let mut settings = guest.settings(interface);
    for queue in settings["queues"].as_array_mut().unwrap() {
        queue["napi"]["id"].take();
    }
    settings
}

/// Interrupts per packet, in percent.
fn interrupted(counted: &Counted) -> f64 {
    counted.rx_interrupts / counted.packets * 100.0
}

#[test]
#[serial]
fn a_polling_thread_comes_back_with_its_link_and_ends_with_a_restore() {
    let nics = [Nic::E1000e, Nic::Virtio];
    let Some(mut guest) = boot(&nics, 1) else { return };
    for index in 0..nics.len() {
        let interface = guest.interfaces[index].clone();
        let before = settings_but_ids(&mut guest, &interface);
        serve_on(&mut guest, index, "kernel-thread", 0, "");
        let held = settings_but_ids(&mut guest, &interface);
        guest.run(&format!("ip link set {interface} down; sleep 2; ip link set {interface} up"));
        guest.wait_for(&format!("grep -q 1 /sys/class/net/{interface}/carrier"));
        guest.wait_for("grep -q 'the link is up' /tmp/memcached");
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert_eq!(settings_but_ids(&mut guest, &interface), held);
        let thread = polling_thread(&mut guest, &interface);
        let allowed = guest.run(&format!("grep Cpus_allowed_list /proc/{thread}/status"));
        assert_eq!(allowed.split_whitespace().last(), Some("1"), "{allowed}");
        assert!(load(&mut guest, index, 500).packets > 500.0, "the server keeps serving");
        // The settings of a killed server are restored.
        guest.run("kill -9 $(pidof memcached); sleep 0.5");
        assert_eq!(settings_but_ids(&mut guest, &interface), held);
        guest.run("policies restore");
        assert_eq!(settings_but_ids(&mut guest, &interface), before);
    }
}

#[test]
#[serial]
fn under_kernel_thread_a_thread_on_the_packing_core_polls_and_interrupts_stay_away() {
    let nics = [Nic::E1000e, Nic::Virtio];
    let Some(mut guest) = boot(&nics, 1) else { return };
    println!("nic     policy         requests/s  packets  rx irqs  tx irqs  irqs/packet  received by CPU");
    for (index, nic) in nics.iter().enumerate() {
        let interface = guest.interfaces[index].clone();
        let before = guest.settings(&interface);
        let mut seen = Vec::new();
        for policy in ["vanilla", "packing", "kernel-thread"] {
            let said = serve_on(&mut guest, index, policy, 0, "");
            assert!(said.contains(&format!("worker 0: {policy} on ")), "{said}");
            if policy == "kernel-thread" {
                let thread = polling_thread(&mut guest, &interface);
                let allowed = guest.run(&format!("grep Cpus_allowed_list /proc/{thread}/status"));
                assert_eq!(allowed.split_whitespace().last(), Some("1"), "{allowed}");
                // 41: the scheduling class, of which 0 is SCHED_OTHER.
                let class = guest.run(&format!("cut -d ' ' -f 41 /proc/{thread}/stat"));
                assert_eq!(class.trim(), "0");
            }
            // The first packets start the thread's polling, with an interrupt.
            load(&mut guest, index, 500);
            let received_before = received_by_cpu(&mut guest);
            let counted = load(&mut guest, index, 0);
            let received_after = received_by_cpu(&mut guest);
            let received: Vec<u64> =
                received_after.iter().zip(&received_before).map(|(now, then)| now - then).collect();
            println!(
                "{:7} {policy:14} {:10.0} {:8.0} {:8.0} {:8.0} {:10.2} %  {received:?}",
                format!("{nic:?}"),
                counted.rate,
                counted.packets,
                counted.rx_interrupts,
                counted.tx_interrupts,
                interrupted(&counted),
            );
            if policy == "kernel-thread" {
                let watched = guest.run(&format!("policies --format json watch {interface} --count 1"));
                println!("{watched}");
                let watched: Value = serde_json::from_str(&watched).unwrap();
                let thread = &watched["queues"][0]["kernel_thread"];
                assert_eq!(thread["core"], 1, "{watched}");
                // Without traffic, too. Two threads of virtio's queues share the core.
                assert!(thread["cpu"].as_f64().unwrap() > 0.3, "{watched}");
            }
            stop(&mut guest);
            assert_eq!(guest.settings(&interface), before, "after {policy} on {nic:?}");
            let total: u64 = received.iter().sum();
            let core = if policy == "vanilla" { 0 } else { 1 };
            assert!(total > 500, "{policy} on {nic:?}: {received:?}");
            assert!(received[core] as f64 >= 0.9 * total as f64, "{policy} on {nic:?}: {received:?}");
            seen.push(counted);
        }
        let [vanilla, packing, polled] = [0, 1, 2].map(|policy| interrupted(&seen[policy]));
        let said =
            format!("{nic:?}: {polled} % of packets interrupt; vanilla {vanilla} %, packing {packing} %");
        assert!(polled < vanilla.min(packing) / 5.0, "{said}");
    }
}
