//! Two NUMA nodes, with the NICs on the second one.

use serde_json::json;
use serial_test::serial;

use super::boot;
use super::load::{start, stop, worker_lines};
use super::machine::{Machine, Nic};

#[test]
#[serial]
fn queues_and_memory_are_placed_on_the_devices_numa_node_first() {
    let Some(mut guest) = boot(&[Nic::Igb, Nic::Virtio], 2) else { return };
    for interface in guest.interfaces.clone() {
        plans_take_the_cores_of_the_devices_node(&mut guest, &interface);
    }
    // The kernel would move pages to the node that uses them. Where they are touched first is what
    // is tested.
    guest.run("echo 0 >/proc/sys/kernel/numa_balancing");
    for nic in 0..guest.interfaces.len() {
        memory_is_on_the_workers_node(&mut guest, nic, [2, 3], 1);
    }
    let explained = memory_is_on_the_workers_node(&mut guest, 0, [0, 1], 0);
    for worker in ["Worker 0 (thread", "Worker 1 (thread"] {
        assert!(explained.contains(worker), "{explained}");
    }
    assert_eq!(explained.matches("of another node: its packets cross").count(), 2, "{explained}");
    each_worker_has_its_buffers_on_its_own_node(&mut guest);
}

fn plans_take_the_cores_of_the_devices_node(guest: &mut Machine, interface: &str) {
    let plan = guest.json(&format!("policies --format json plan {interface} --policy vanilla --workers 2"));
    assert_eq!(plan["settings"]["worker_cores"], json!([2, 3]), "{plan}");
    let far = guest.run(&format!("policies plan {interface} --policy vanilla --worker-cores 0-1"));
    assert!(far.contains("is on NUMA node 1 (cores 2-3), and workers are on cores 0-1"), "{far}");
    let packing =
        guest.json(&format!("policies --format json plan {interface} --policy packing --worker-cores 0,2"));
    let cores = packing["steps"].as_array().unwrap().iter().filter(|step| step["knob"] == "irq-affinity");
    assert!(cores.clone().count() > 0 && cores.clone().all(|step| step["target"] == "3"), "{packing}");
}

fn pages(guest: &mut Machine) -> [u64; 2] {
    let maps = guest.run("grep anon= /proc/$(pidof memcached)/numa_maps");
    pages_in(&maps)
}

/// Pages of the server's anonymous mappings on each node, without the heap of the main thread: the
/// buffers that the kernel receives into are there, and segments of the store.
fn mapped_pages(guest: &mut Machine) -> [u64; 2] {
    let maps = guest.run("grep anon= /proc/$(pidof memcached)/numa_maps | grep -v -e file= -e heap -e stack");
    pages_in(&maps)
}

fn pages_in(maps: &str) -> [u64; 2] {
    ["N0=", "N1="].map(|node| {
        maps.split_whitespace().filter_map(|word| word.strip_prefix(node)?.parse::<u64>().ok()).sum()
    })
}

/// A worker on each node. The runtime is built, and the server started, by one of them.
fn each_worker_has_its_buffers_on_its_own_node(guest: &mut Machine) {
    start(guest, 0, "kernel-polling", "-t 2 --cores 1-2 --driver uring --gro-flush-timeout 200");
    let at_start = mapped_pages(guest);
    // A worker has 32 buffers of 16 KiB: 128 pages, written to when it starts.
    assert!(at_start.iter().all(|&pages| (128..512).contains(&pages)), "{at_start:?}");
    let flags = ["-s", "10.9.0.2", "--loadonly", "-T", "16", "-r", "8000", "-V", "2000"];
    let stored = guest.outside("loadgen", &flags).unwrap();
    assert!(stored.status.success(), "{}", String::from_utf8_lossy(&stored.stderr));
    let loaded = mapped_pages(guest);
    println!("workers on cores 1 and 2, on uring: pages a node {at_start:?}, then {loaded:?}");
    let grown = [0, 1].map(|node| loaded[node].saturating_sub(at_start[node]));
    assert!(grown[0] + grown[1] > 3800, "{at_start:?} {loaded:?}");
    // Of 16 connections one worker has none once in 30,000 runs.
    assert!(grown.iter().all(|&pages| pages > 100), "{at_start:?} {loaded:?}");
    stop(guest);
}

/// Stores 16 MB in a server with these workers. Returns what `explain` says of them.
fn memory_is_on_the_workers_node(guest: &mut Machine, nic: usize, cores: [u64; 2], node: usize) -> String {
    let interface = guest.interfaces[nic].clone();
    let before = guest.settings(&interface);
    let [first, last] = cores;
    start(guest, nic, "kernel-polling", &format!("-t 2 --cores {first}-{last} --gro-flush-timeout 200"));
    let served = guest.settings(&interface);
    // Those that nobody polls keep their interrupts where they are.
    for (queue, core) in served["queues"].as_array().unwrap().iter().zip(cores) {
        assert_eq!(queue["irq_affinity"], core.to_string(), "{served}");
    }
    // The server holds queues, which is a finding with an exit code.
    let explained = guest.ask(&format!("policies explain {interface}")).text;
    println!("{explained}");
    assert!(explained.contains("is on NUMA node 1 (cores 2-3)"), "{explained}");
    assert_eq!(explained.contains("of another node"), node == 0, "{explained}");
    let at_start = pages(guest);
    let server = format!("10.9.{nic}.2");
    let stored =
        guest.outside("loadgen", &["-s", &server, "--loadonly", "-r", "8000", "-V", "2000"]).unwrap();
    assert!(stored.status.success(), "{}", String::from_utf8_lossy(&stored.stderr));
    let workers = worker_lines(guest, nic);
    for (index, worker) in workers.iter().enumerate() {
        let napi = &served["queues"][index]["napi"]["id"];
        assert_eq!((worker.number("core"), json!(worker.number("napi"))), (cores[index], napi.clone()));
        // With more queues than workers (igb), a connection of a queue in excess counts as
        // misaligned.
        if served["queues"].as_array().unwrap().len() == workers.len() {
            assert_eq!(worker.number("misaligned"), 0, "{workers:?}");
        }
    }
    let loaded = pages(guest);
    println!("{interface}, workers on cores {first}-{last}: pages a node {at_start:?}, then {loaded:?}");
    let grown = [0, 1].map(|node| loaded[node].saturating_sub(at_start[node]));
    // 8000 values of 2000 bytes are 3900 pages.
    assert!(grown[node] > 3800, "{at_start:?} {loaded:?}");
    assert!(grown[node] as f64 > 0.95 * (grown[0] + grown[1]) as f64, "{at_start:?} {loaded:?}");
    stop(guest);
    assert_eq!(guest.settings(&interface), before);
    explained
}
