//! `kernel-thread` on devices that interrupt: a kernel thread polls all the time, and the interrupt
//! stays masked.

use serde_json::Value;
use serial_test::serial;

use super::load::{Counted, load, load_received_on, serve_on, stop};
use super::machine::{Machine, Nic};
use super::{boot, reopen_link};

/// The id of the thread that polls queue 0, which must poll all the time, on core 1.
fn polling_thread(guest: &mut Machine, interface: &str) -> u64 {
    let shown = guest.json(&format!("policies --format json show {interface}"));
    for queue in shown["queues"].as_array().unwrap() {
        assert_eq!(queue["napi"]["threaded"], 2, "{queue}");
    }
    let thread = shown["queues"][0]["napi"]["pid"].as_u64().unwrap();
    let allowed = guest.run(&format!("grep Cpus_allowed_list /proc/{thread}/status"));
    assert_eq!(allowed.split_whitespace().last(), Some("1"), "{allowed}");
    thread
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
        reopen_link(&mut guest, &interface);
        assert_eq!(settings_but_ids(&mut guest, &interface), held);
        polling_thread(&mut guest, &interface);
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
fn packets_are_received_on_vanillas_worker_core_or_the_packing_core_and_a_polling_thread_has_no_interrupts() {
    let nics = [Nic::E1000e, Nic::Virtio];
    let Some(mut guest) = boot(&nics, 1) else { return };
    for (index, nic) in nics.iter().enumerate() {
        let interface = guest.interfaces[index].clone();
        let before = guest.settings(&interface);
        let mut seen = Vec::new();
        for policy in ["vanilla", "packing", "kernel-thread"] {
            // Vanilla's worker is not where interrupts are by default.
            let worker = if policy == "vanilla" { 1 } else { 0 };
            let said = serve_on(&mut guest, index, policy, worker, "");
            assert!(said.contains(&format!("worker 0: {policy} on ")), "{said}");
            if policy == "kernel-thread" {
                let thread = polling_thread(&mut guest, &interface);
                // 41: the scheduling class, of which 0 is SCHED_OTHER.
                let class = guest.run(&format!("cut -d ' ' -f 41 /proc/{thread}/stat"));
                assert_eq!(class.trim(), "0");
            }
            // The first packets start the thread's polling, with an interrupt.
            load(&mut guest, index, 500);
            // What the testbed's kernel threads stand in for: `policies/receiving_core.rs` asserts the
            // same on a veth.
            seen.push(load_received_on(&mut guest, index, 1, &format!("{policy} on {nic:?}")));
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
        }
        let [vanilla, packing, polled] = [0, 1, 2].map(|policy| interrupted(&seen[policy]));
        let said =
            format!("{nic:?}: {polled} % of packets interrupt; vanilla {vanilla} %, packing {packing} %");
        assert!(polled < vanilla.min(packing) / 5.0, "{said}");
    }
}
