//! A memcached load on the guest, and what it costs in interrupts.

use std::collections::HashMap;

use serde_json::Value;

use super::machine::Machine;

#[derive(Debug, Clone, Copy)]
pub struct Counted {
    pub rate: f64,
    pub packets: f64,
    pub rx_interrupts: f64,
    pub polled: f64,
}

impl Counted {
    /// With no interrupt, as if there had been one.
    pub fn packets_per_rx_interrupt(&self) -> f64 {
        self.packets / self.rx_interrupts.max(1.0)
    }
}

/// Starts the server on two workers, one per core.
pub fn serve(guest: &mut Machine, nic: usize, policy: &str, more: &str) -> String {
    start(guest, nic, policy, &format!("-t 2 --cores 0-1 {more}"))
}

/// Starts the server on one worker, on a core.
pub fn serve_on(guest: &mut Machine, nic: usize, policy: &str, core: usize, more: &str) -> String {
    start(guest, nic, policy, &format!("-t 1 --cores {core} {more}"))
}

/// Starts the server as these flags say.
pub fn start(guest: &mut Machine, nic: usize, policy: &str, workers: &str) -> String {
    guest.run(&format!(
        "memcached -v -u root --policy {policy} {workers} -l 10.9.{nic}.2 >/tmp/memcached 2>&1 &"
    ));
    guest.wait_for("grep -q 'listening on' /tmp/memcached");
    guest.run("cat /tmp/memcached")
}

pub fn stop(guest: &mut Machine) {
    guest.run("kill $(pidof memcached)");
    guest.wait_for("! pidof memcached >/dev/null");
}

/// Two seconds of load from outside, at `rate` requests per second; 0 saturates the server.
pub fn load(guest: &mut Machine, nic: usize, rate: u64) -> Counted {
    let server = format!("10.9.{nic}.2");
    let stored = guest.outside("loadgen", &["-s", &server, "--loadonly", "-r", "1000"]).unwrap();
    assert!(stored.status.success(), "{}", String::from_utf8_lossy(&stored.stderr));
    let before = counters(guest, nic);
    let rate = rate.to_string();
    let mut arguments =
        vec!["-s", &server, "-r", "1000", "--noload", "-w", "0", "-t", "2", "-c", "32", "--format", "json"];
    if rate != "0" {
        arguments.extend(["-q", &rate]);
    }
    let output = guest.outside("loadgen", &arguments).unwrap();
    // Latencies in an emulated machine mean nothing, and the run may be invalid (3): packets are
    // counted.
    let measured = matches!(output.status.code(), Some(0 | 3));
    assert!(measured, "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let after = counters(guest, nic);
    Counted {
        rate: report["qps"].as_f64().unwrap(),
        packets: after.packets - before.packets,
        rx_interrupts: after.rx_interrupts - before.rx_interrupts,
        polled: after.polled - before.polled,
    }
}

/// Saturates the server, whose packets are received on one core, as the CPUs of the guest count
/// what they hand to protocols: the first column of `softnet_stat`.
pub fn load_received_on(guest: &mut Machine, nic: usize, core: usize, what: &str) -> Counted {
    let received_by_cpu = |guest: &mut Machine| -> Vec<u64> {
        let lines = guest.run("cat /proc/net/softnet_stat");
        lines.lines().map(|line| u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()).collect()
    };
    let before = received_by_cpu(guest);
    let counted = load(guest, nic, 0);
    let after = received_by_cpu(guest);
    let received: Vec<u64> = after.iter().zip(&before).map(|(now, then)| now - then).collect();
    println!("{what}: received {received:?}, {counted:?}");
    let total: u64 = received.iter().sum();
    assert!(total > 500, "{what}: {received:?}");
    assert!(received[core] as f64 >= 0.9 * total as f64, "{what}: {received:?}");
    counted
}

/// What an interface has received since it is there, and its receive queues' interrupts.
fn counters(guest: &mut Machine, nic: usize) -> Counted {
    let interface = guest.interfaces[nic].clone();
    let shown = guest.json(&format!("policies --format json show {interface}"));
    let queues = shown["queues"].as_array().unwrap();
    let irqs: Vec<u64> = queues.iter().filter_map(|queue| queue["irq"].as_u64()).collect();
    // A line is `38:  0  345  PCI-MSIX-0000:00:03.0  1-edge  eth0-rx-0`, with a count for each CPU.
    let interrupts = |line: &str| -> Option<u64> {
        let (irq, counts) = line.split_once(':')?;
        let is_ours = irqs.contains(&irq.trim().parse().ok()?);
        is_ours.then(|| counts.split_whitespace().map_while(|count| count.parse::<u64>().ok()).sum())
    };
    let rx_interrupts: u64 = guest.run("cat /proc/interrupts").lines().filter_map(interrupts).sum();
    let netstat = guest.run("grep TcpExt /proc/net/netstat");
    let mut lines = netstat.lines().map(str::split_whitespace);
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let (_, polled) = names.zip(values).find(|(name, _)| *name == "BusyPollRxPackets").unwrap();
    let packets = guest.run(&format!("cat /sys/class/net/{interface}/statistics/rx_packets"));
    Counted {
        rate: 0.0,
        packets: packets.trim().parse().unwrap(),
        rx_interrupts: rx_interrupts as f64,
        polled: polled.parse().unwrap(),
    }
}

/// What the server says of each worker in `stats policy`, as words of the form `name=value`.
pub fn worker_lines(guest: &mut Machine, nic: usize) -> Vec<WorkerLine> {
    let stats = guest.run(&format!("printf 'stats policy\\r\\nquit\\r\\n' | nc 10.9.{nic}.2 11211"));
    stats.lines().filter_map(|line| line.strip_prefix("STAT worker:")).map(WorkerLine::parse).collect()
}

#[derive(Debug)]
pub struct WorkerLine {
    words: HashMap<String, String>,
}

impl WorkerLine {
    fn parse(line: &str) -> Self {
        let words = line.split_whitespace().filter_map(|word| word.split_once('='));
        Self { words: words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect() }
    }

    pub fn number(&self, name: &str) -> u64 {
        let value = self.words.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        value.parse().unwrap_or_else(|_| panic!("{name} is {value}"))
    }
}
