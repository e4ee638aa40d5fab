//! Each emulated device: its recording, and every policy on it.

use std::path::PathBuf;

use serde_json::Value;
use serial_test::serial;

use super::eight_queues::expect_no_queue_without_a_worker;
use super::load::{load, start, stop, worker_lines};
use super::machine::{Machine, Nic, Shape};
use super::{boot as boot_nics, boot_shape};

const NICS: [Nic; 4] = [Nic::Virtio, Nic::E1000e, Nic::Igb, Nic::Vmxnet3];

/// With four CPUs, so that devices have four queues.
fn boot() -> Option<Machine> {
    boot_shape(&Shape { nics: NICS.to_vec(), numa_nodes: 1, cpus_per_node: 4 })
}

/// Set in the environment, it is the folder into which the recordings are written.
const FOLDER: &str = "LULL_RECORDINGS";

/// The steps of a plan without what a recording can't know.
fn steps(plan: &Value) -> Vec<Value> {
    let mut steps = plan["steps"].as_array().unwrap().clone();
    steps.iter_mut().for_each(|step| step["forbidden"] = Value::Null);
    steps
}

/// In one guest, as each takes a quarter of a minute to start.
#[test]
#[serial]
fn recordings_fewer_workers_than_queues_and_interfaces_above() {
    let Some(mut guest) = boot() else { return };
    expect_plans_of_recordings_to_be_those_of_devices(&mut guest);
    // As `ethtool -K eth3 lro off`, without which vmxnet3's sockets have no NAPI.
    guest.run(&format!("echo 1 >/proc/sys/net/ipv4/conf/{}/forwarding", guest.interfaces[3].clone()));
    expect_no_queue_without_a_worker(&mut guest, &NICS);
    expect_what_is_above_to_lead_to_the_queues(&mut guest);
}

fn expect_plans_of_recordings_to_be_those_of_devices(guest: &mut Machine) {
    for (nic, interface) in NICS.into_iter().zip(guest.interfaces.clone()) {
        let recording = guest.run(&format!("policies record {interface} | tee /tmp/recording.json"));
        assert!(!recording.contains("10.9.") && !recording.contains("52:54"), "addresses: {recording}");
        if let Some(folder) = std::env::var_os(FOLDER) {
            std::fs::write(PathBuf::from(folder).join(format!("{nic:?}.json")), &recording).unwrap();
        }
        println!("{}", guest.ask("policies explain --from /tmp/recording.json").text);
        for policy in ["vanilla", "packing", "suppression", "kernel-polling"] {
            let flags = format!("--policy {policy} --workers all --peak-packet-rate 100000");
            let mut plan = |subject: &str| -> Value {
                // The exit code says whether something prevents the policy.
                let answer = guest.ask(&format!("policies --format json plan {subject} {flags}"));
                assert!([0, 3].contains(&answer.status), "{}", answer.text);
                serde_json::from_str(&answer.text).unwrap()
            };
            let (live, recorded) = (plan(&interface), plan("--from /tmp/recording.json"));
            assert_eq!(steps(&recorded), steps(&live), "{nic:?}, {policy}");
            assert_eq!(recorded["notes"], live["notes"], "{nic:?}, {policy}");
        }
        // A queue's interrupt is found on every device.
        let shown = guest.json(&format!("policies --format json show {interface}"));
        for queue in shown["queues"].as_array().unwrap() {
            assert!(queue["irq"].is_u64() && queue["napi"].is_object(), "{nic:?}: {queue}");
        }
    }
    guest.run("head -c 900 /tmp/recording.json >/tmp/cut.json");
    let answer = guest.ask("policies explain --from /tmp/cut.json");
    assert!(answer.status == 1 && answer.text.contains("/tmp/cut.json is not a recording"), "{answer:?}");
}

/// What kernel polling sets on the first queue's NAPI.
fn values(settings: &Value) -> [Option<u64>; 3] {
    let napi = &settings["queues"][0]["napi"];
    ["defer_hard_irqs", "gro_flush_timeout", "irq_suspend_timeout"].map(|name| napi[name].as_u64())
}

/// A VLAN on virtio-net, and a bond of virtio-net and e1000e. The host may have no VLANs, so only
/// the bond is loaded.
fn expect_what_is_above_to_lead_to_the_queues(guest: &mut Machine) {
    let (first, second) = (guest.interfaces[0].clone(), guest.interfaces[1].clone());
    let before = guest.settings(&first);
    guest.run("for module in /above/*.ko; do insmod $module || exit 1; done");
    guest.run(&format!("ip link add link {first} name vlan7 type vlan id 7"));
    guest.run("ip addr add 10.9.7.2/24 dev vlan7; ip link set vlan7 up");
    let explained = guest.ask("policies explain vlan7");
    assert!(explained.status == 3, "{}", explained.text);
    assert!(explained.text.contains(&format!("policies explain {first}")), "{}", explained.text);
    start(guest, 7, "kernel-polling", "-t 4 --cores 0-3 --gro-flush-timeout 200");
    assert_ne!(guest.settings(&first), before, "the interface of the VLAN has the policy");
    stop(guest);
    assert_eq!(guest.settings(&first), before, "VLAN");
    guest.run("ip link del vlan7");

    let ports = format!(
        "cd /sys/class/net/bond0/bonding; echo active-backup >mode; for port in {first} {second}; do ip addr flush dev $port; \
         ip link set $port down; echo +$port >slaves; done; echo {first} >active_slave; \
         ip addr add 10.9.0.2/24 dev bond0; ip link set bond0 up"
    );
    guest.run(&ports);
    guest.wait_for_carrier("bond0");
    let before = guest.settings(&first);
    let explained = guest.ask("policies explain bond0");
    assert!(explained.status == 3, "{}", explained.text);
    for port in [&first, &second] {
        assert!(explained.text.contains(&format!("policies explain {port}")), "{}", explained.text);
    }
    let flags = format!("-t 4 --cores 0-3 --gro-flush-timeout 200 --interface {first}");
    start(guest, 0, "kernel-polling", &flags);
    load(guest, 0, RATE);
    // Once: who asks has a connection without NAPI, too.
    let lines = worker_lines(guest, 0);
    let [aligned, misaligned, without] = ["aligned", "misaligned", "without_napi"]
        .map(|word| lines.iter().map(|line| line.number(word)).sum::<u64>());
    println!("bond: {aligned} connections aligned, {misaligned} misaligned, {without} without NAPI");
    // See `eight_queues`.
    assert!(aligned >= 32 && misaligned <= 1 && without <= 1, "{aligned}, {misaligned}, {without}");
    stop(guest);
    assert_eq!(guest.settings(&first), before, "bond");
}

const POLICIES: [&str; 5] = ["vanilla", "packing", "suppression", "kernel-polling", "kernel-thread"];

/// So many that an emulated guest serves them, and a worker sleeps between most of them.
const RATE: u64 = 400;

/// Each policy is explained, planned, applied, watched and restored, then served by a program that
/// is loaded and ends, and by one that is killed.
#[test]
#[serial]
fn every_policy_runs_on_every_device_and_is_restored_after_sigkill_too() {
    let Some(mut guest) = boot() else { return };
    println!("Linux {}, {RATE} requests/s", guest.run("uname -r").trim());
    println!("device   policy          aligned  polled  rx irqs/1000 requests  restored  after SIGKILL");
    for (nic, kind) in NICS.into_iter().enumerate() {
        let interface = guest.interfaces[nic].clone();
        if kind == Nic::Vmxnet3 {
            let explained = guest.ask(&format!("policies explain {interface}"));
            assert!(explained.status == 3 && explained.text.contains("lro off"), "{}", explained.text);
            // As `ethtool -K eth0 lro off`: an interface that forwards must not join packets.
            guest.run(&format!("echo 1 >/proc/sys/net/ipv4/conf/{interface}/forwarding"));
        }
        let queues = guest.settings(&interface)["queues"].as_array().unwrap().len();
        let others: Vec<String> =
            guest.interfaces.iter().filter(|name| **name != interface).cloned().collect();
        let their_own: Vec<Value> = others.iter().map(|name| guest.settings(name)).collect();
        for policy in POLICIES {
            let before = guest.settings(&interface);
            let flags = format!("{interface} --policy {policy} --workers all");
            let explained = guest.ask(&format!("policies explain {interface}"));
            // Its driver enables interrupts after each poll.
            let ignores_deferral = kind == Nic::Vmxnet3;
            assert_eq!(explained.status, if ignores_deferral { 3 } else { 0 }, "{}", explained.text);
            let is_prevented = ignores_deferral && policy == "kernel-polling";
            let planned = guest.ask(&format!("policies plan {flags}"));
            assert_eq!(planned.status, if is_prevented { 3 } else { 0 }, "{}", planned.text);
            // A device may take less than was asked for, which is not a failure.
            let applied = guest.ask(&format!("policies apply {flags} --all-programs"));
            assert!(!applied.text.contains("NOT"), "{kind:?}, {policy}: {applied:?}");
            // Of the two that set most: each look takes half a second.
            let sets_most = ["suppression", "kernel-polling"].contains(&policy);
            for (other, its_own) in others.iter().zip(&their_own).filter(|_| sets_most) {
                assert_eq!(guest.settings(other), *its_own, "{policy} on {kind:?} was written on {other}");
            }
            let status = guest.run("policies status");
            assert!(status.contains(&interface) && status.contains("policies apply"), "{status}");
            guest.run(&format!("policies watch {interface} --count 1 --interval 0.2"));
            let restored = guest.run(&format!("policies restore {interface}"));
            let is_complete = !restored.contains("NOT restored") && !restored.contains("left alone");
            assert!(is_complete || kind != Nic::Igb, "{policy}: {restored}");
            assert_eq!(guest.settings(&interface), before, "{kind:?}, {policy}, after apply");

            // At so few requests the controller leaves interrupts on; a fixed grace time polls at
            // every load.
            let fixed = if policy == "kernel-polling" { "--gro-flush-timeout 200" } else { "" };
            let workers = format!("-t {queues} --cores 0-{} {fixed}", queues - 1);
            start(&mut guest, nic, policy, &workers);
            let counted = load(&mut guest, nic, RATE);
            let [aligned, misaligned] = ["aligned", "misaligned"]
                .map(|word| worker_lines(&mut guest, nic).iter().map(|line| line.number(word)).sum::<u64>());
            stop(&mut guest);
            assert_eq!(guest.settings(&interface), before, "{kind:?}, {policy}, after the server's end");

            start(&mut guest, nic, policy, &workers);
            guest.run("kill -9 $(pidof memcached)");
            guest.wait_for("! pidof memcached >/dev/null");
            let left = guest.settings(&interface);
            let status = guest.run("policies status");
            let preview = guest.run("policies restore --dry-run");
            assert_eq!(guest.settings(&interface), left, "a preview changes nothing");
            if left != before {
                assert!(status.contains("ended without restoring"), "{kind:?}, {policy}: {status}");
                assert!(preview.contains("would be restored from"), "{kind:?}, {policy}: {preview}");
            }
            guest.run("policies restore");
            assert_eq!(guest.settings(&interface), before, "{kind:?}, {policy}, after SIGKILL");
            assert_eq!(guest.run("ls /run"), "", "nothing is left behind");

            let requests = counted.rate * 2.0 / 1000.0;
            println!(
                "{:8} {policy:14} {aligned:4}/{:<4} {:5.1} % {:22.0}  yes       yes",
                format!("{kind:?}"),
                aligned + misaligned,
                counted.polled / counted.packets.max(1.0) * 100.0,
                counted.rx_interrupts / requests,
            );
        }
    }
}

/// As Azure takes away the VF beside its netvsc, and gives it back.
#[test]
#[serial]
fn a_vf_that_is_taken_away_under_load_and_given_back_gets_its_policy_again() {
    let Some(mut guest) = boot_nics(&[Nic::Igb], 1) else { return };
    let parent = guest.interfaces[0].clone();
    let vfs = |count: u32| format!("echo {count} >/sys/class/net/{parent}/device/sriov_numvfs");
    let virtual_function = format!("ls /sys/class/net/{parent}/device/virtfn0/net");
    guest.run(&vfs(1));
    guest.wait_for(&format!("{virtual_function} >/dev/null 2>&1"));
    let interface = guest.run(&virtual_function).trim().to_owned();
    let address = "10.9.0.3";
    // Its parent's address would answer for it.
    guest.run(&format!("ip addr flush dev {parent}; ip addr add {address}/24 dev {interface}"));
    guest.run(&format!("ip link set {interface} up"));
    guest.wait_for_carrier(&interface);
    let before = guest.settings(&interface);
    guest.run(&format!(
        "memcached -v -u root --policy kernel-polling --gro-flush-timeout 200 -t 1 --cores 1 --interface {interface} \
         -l {address} >/tmp/memcached 2>&1 &"
    ));
    guest.wait_for("grep -q 'listening on' /tmp/memcached");
    let applied = guest.settings(&interface);
    assert_ne!(applied, before);
    let load = |guest: &Machine| {
        guest
            .outside_spawn("loadgen", &["-s", address, "-c", "4", "-t", "3", "-w", "0", "-q", "200"])
            .unwrap()
    };
    let busy = load(&guest);
    std::thread::sleep(std::time::Duration::from_secs(1));
    guest.run(&vfs(0));
    guest.wait_for("grep -q 'the interface is gone' /tmp/memcached");
    drop(busy);
    guest.run(&vfs(1));
    guest.wait_for(&format!("{virtual_function} >/dev/null 2>&1"));
    let again = guest.run(&virtual_function).trim().to_owned();
    guest.run(&format!("ip addr add {address}/24 dev {again}; ip link set {again} up"));
    guest.wait_for(&format!("grep -q 'the interface is back as {again}' /tmp/memcached"));
    let shown = guest.settings(&again);
    assert_ne!(shown["index"], applied["index"]);
    assert_eq!(values(&shown), values(&applied), "{}", guest.run("cat /tmp/memcached"));
    assert_eq!(shown["queues"][0]["irq_affinity"], applied["queues"][0]["irq_affinity"]);
    guest.wait_for_carrier(&again);
    let served =
        guest.outside("loadgen", &["-s", address, "-c", "4", "-t", "1", "-w", "0", "-q", "200"]).unwrap();
    // Latencies in an emulated machine mean nothing, and the run may be invalid (3).
    assert!(matches!(served.status.code(), Some(0 | 3)), "it is served again: {served:?}");
    // `watch` finds its workers by its index, which is another one.
    guest.wait_for(&format!("ls /run/lull/*-$(cat /sys/class/net/{again}/ifindex)-*.workers"));
    assert_eq!(guest.run("ls /run/lull/*.workers | wc -l").trim(), "1");
    stop(&mut guest);
    assert_eq!(values(&guest.settings(&again)), values(&before));
    assert_eq!(guest.run("ls /run"), "", "nothing is left behind");
}
