//! Which CPU of the guest received each packet, and in which context: the tracepoint
//! `napi_gro_receive_entry`, where a NAPI hands over each packet.

use super::event_histograms::{Bucket, Histogram, SOFTIRQ, trace as trace_events};
use super::machine::Machine;

/// The packets of one NAPI that one CPU received in one context.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    pub napi: u64,
    pub cpu: u64,
    pub by_softirq: bool,
    pub packets: u64,
}

pub fn trace(guest: &mut Machine, action: impl FnOnce(&mut Machine)) -> Vec<Received> {
    let keys = "napi_id,common_cpu,common_flags".to_owned();
    let [received] = trace_events(guest, [Histogram { event: "net/napi_gro_receive_entry", keys }], action);
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
