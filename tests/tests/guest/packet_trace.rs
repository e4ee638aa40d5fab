//! Which CPU of the guest received each packet, and in which context: a histogram that the kernel keeps at its tracepoint
//! `napi_gro_receive_entry`, where a NAPI hands over each packet.

use super::machine::Machine;

const TRACEFS: &str = "/sys/kernel/tracing";
const EVENT: &str = "/sys/kernel/tracing/events/net/napi_gro_receive_entry";
const HISTOGRAM: &str = "hist:keys=napi_id,common_cpu,common_flags";
/// `TRACE_FLAG_SOFTIRQ`: in a softirq. A busy poll only keeps softirqs off.
const SOFTIRQ: u64 = 0x10;

/// The packets of one NAPI that one CPU received in one context.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    pub napi: u64,
    pub cpu: u64,
    pub by_softirq: bool,
    pub packets: u64,
}

/// Runs `action`, and returns what was received meanwhile.
pub fn trace(guest: &mut Machine, action: impl FnOnce(&mut Machine)) -> Vec<Received> {
    guest.run(&format!("[ -e {EVENT} ] || mount -t tracefs tracefs {TRACEFS}"));
    guest.run(&format!("echo '{HISTOGRAM}' >{EVENT}/trigger"));
    action(guest);
    let text = guest.run(&format!("cat {EVENT}/hist"));
    guest.run(&format!("echo '!{HISTOGRAM}' >{EVENT}/trigger"));
    text.lines().filter_map(parse).collect()
}

/// A line such as `{ napi_id: 8193, common_cpu: 1, common_flags: 128 } hitcount: 7`.
fn parse(line: &str) -> Option<Received> {
    let (_, keys) = line.split_once('{')?;
    let number = |name: &str| {
        let rest = &keys[keys.find(name)? + name.len()..];
        rest.trim_start_matches([':', ' ']).split([',', ' ', '}']).next()?.parse().ok()
    };
    Some(Received {
        napi: number("napi_id")?,
        cpu: number("common_cpu")?,
        by_softirq: number("common_flags")? & SOFTIRQ != 0,
        packets: number("hitcount")?,
    })
}
