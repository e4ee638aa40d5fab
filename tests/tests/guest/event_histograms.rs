//! Histograms of tracepoints, which the guest's kernel keeps: how often an event happened, by the
//! values of its fields.

use super::machine::Machine;

const TRACEFS: &str = "/sys/kernel/tracing";
/// `TRACE_FLAG_SOFTIRQ` of `common_flags`: in a softirq. A busy poll only keeps softirqs off.
pub const SOFTIRQ: u64 = 0x10;

/// A tracepoint, and the fields by whose values its events are counted.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// As `irq/irq_handler_entry`.
    pub event: &'static str,
    /// As `irq,common_pid`, with what may follow: fields to add up, and a filter.
    pub keys: String,
}

/// The events with the same values.
#[derive(Debug)]
pub struct Bucket(String);

impl Bucket {
    /// The number that follows a name: of a key, a sum, or `hitcount`.
    pub fn number(&self, name: &str) -> Option<u64> {
        let start = self.0.find(&format!("{name}:"))? + name.len() + 1;
        self.0[start..].trim_start().split([',', ' ', '}']).next()?.parse().ok()
    }

    pub fn count(&self) -> u64 {
        self.number("hitcount").unwrap_or_else(|| panic!("no hitcount in {}", self.0))
    }
}

/// Runs `action`, and returns each histogram's buckets of what happened meanwhile.
pub fn trace<const N: usize>(
    guest: &mut Machine,
    histograms: [Histogram; N],
    action: impl FnOnce(&mut Machine),
) -> [Vec<Bucket>; N] {
    guest.run(&format!("[ -e {TRACEFS}/events ] || mount -t tracefs tracefs {TRACEFS}"));
    let folder = |histogram: &Histogram| format!("{TRACEFS}/events/{}", histogram.event);
    for histogram in &histograms {
        guest.run(&format!("echo 'hist:keys={}' >{}/trigger", histogram.keys, folder(histogram)));
    }
    action(guest);
    histograms.map(|histogram| {
        let text = guest.run(&format!("cat {}/hist", folder(&histogram)));
        guest.run(&format!("echo '!hist:keys={}' >{}/trigger", histogram.keys, folder(&histogram)));
        let is_complete = text.lines().any(|line| line.trim() == "Dropped: 0");
        assert!(is_complete, "the histogram was too small: {text}");
        text.lines().filter(|line| line.starts_with('{')).map(|line| Bucket(line.to_owned())).collect()
    })
}

/// The packets of one NAPI that one CPU received in one context.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    pub napi: u64,
    pub cpu: u64,
    pub by_softirq: bool,
    pub packets: u64,
}

/// The packets that each NAPI hands over meanwhile (`napi_gro_receive_entry`).
pub fn trace_received(guest: &mut Machine, action: impl FnOnce(&mut Machine)) -> Vec<Received> {
    let keys = "napi_id,common_cpu,common_flags".to_owned();
    let [received] = trace(guest, [Histogram { event: "net/napi_gro_receive_entry", keys }], action);
    received.iter().filter_map(parse).collect()
}

fn parse(bucket: &Bucket) -> Option<Received> {
    Some(Received {
        napi: bucket.number("napi_id")?,
        cpu: bucket.number("common_cpu")?,
        by_softirq: bucket.number("common_flags")? & SOFTIRQ != 0,
        packets: bucket.count(),
    })
}
