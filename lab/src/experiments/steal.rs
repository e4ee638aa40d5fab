//! CPU time that the hypervisor takes from this machine (steal).

use std::io;

use procfs::CurrentSI;

/// Steal, as a share of one core, above which a turn is repeated.
pub(super) const STEAL_LIMIT: f64 = 0.02;

/// Steal of all cores since boot, in seconds.
pub(super) fn total_steal() -> io::Result<f64> {
    let stat = procfs::KernelStats::current().map_err(io::Error::other)?;
    Ok(stat.total.steal.unwrap_or(0) as f64 / procfs::ticks_per_second() as f64)
}
