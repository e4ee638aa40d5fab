//! The report on a comparison of CPU time per request with memcached.

use loadgen::interleaved_rounds::DistanceClass;

use crate::experiments::memcached_cpu::MemcachedCpuRow;

/// One server under one load, in one line.
pub fn memcached_cpu_line(row: &MemcachedCpuRow) -> String {
    let MemcachedCpuRow { load, class, server, cpu_us, qps, core_busy, ratio_to_memcached: ratio } = row;
    let class = if *class == DistanceClass::Single { String::new() } else { format!("{class:5}") };
    format!(
        "{class}{load:15} {server:12} {:6.3} µs/request [{:.3}, {:.3}]  {qps:9.0} requests/s  core {:3.0} % busy  {:.2} [{:.2}, {:.2}] of memcached's",
        cpu_us.median,
        cpu_us.min,
        cpu_us.max,
        core_busy * 100.0,
        ratio.median,
        ratio.min,
        ratio.max
    )
}
