//! δ: what it costs to cross from user space into the kernel and back.

use std::time::Instant;

use io_uring::{IoUring, opcode};
use loadgen::medians::{Interval, median_interval};
use serde::Serialize;

use crate::Error;

/// Crossings between two readings of the clock, whose cost vanishes among them.
const CALLS: u32 = 512;
/// NOPs that one enter submits, beside a single one.
pub(super) const BATCH: u32 = 32;

/// What crossings cost, ns: medians of many short batches.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CrossingCost {
    /// An empty system call (`getppid`).
    pub system_call: Interval,
    /// A NOP on a ring with its own `io_uring_enter`. `None` where a ring can't be created.
    pub nop: Option<Interval>,
    /// A NOP among [`BATCH`] that one `io_uring_enter` submits.
    pub nop_in_batch: Option<Interval>,
}

/// Measures on this thread's core, `batches` times each in turns.
pub(super) fn measure(batches: usize) -> Result<CrossingCost, Error> {
    // A container may forbid it.
    let mut ring = IoUring::new(BATCH).ok();
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..batches {
        let begun = Instant::now();
        for _ in 0..CALLS {
            std::hint::black_box(rustix::process::getppid());
        }
        times[0].push(nanos_each(begun));
        let Some(ring) = &mut ring else { continue };
        for (times, size) in times[1..].iter_mut().zip([1, BATCH]) {
            let begun = Instant::now();
            for _ in 0..CALLS / size {
                submit_nops(ring, size)?;
            }
            times.push(nanos_each(begun));
        }
    }
    let of_ring = |times: &[f64]| (!times.is_empty()).then(|| median_interval(times));
    Ok(CrossingCost {
        system_call: median_interval(&times[0]),
        nop: of_ring(&times[1]),
        nop_in_batch: of_ring(&times[2]),
    })
}

fn nanos_each(begun: Instant) -> f64 {
    begun.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

/// Submits `count` NOPs with one enter, and takes their completions.
#[allow(unsafe_code)]
fn submit_nops(ring: &mut IoUring, count: u32) -> Result<(), Error> {
    for _ in 0..count {
        // SAFETY: an entry's buffers must stay valid until its completion; a NOP has none.
        unsafe { ring.submission().push(&opcode::Nop::new().build()) }?;
    }
    ring.submit_and_wait(count as usize)?;
    ring.completion().for_each(drop);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_takes_time_and_a_batch_shares_its_enter() {
        let cost = measure(50).unwrap();
        assert!(cost.system_call.low > 0.0 && cost.system_call.reaches_target(), "{cost:?}");
        let (Some(one), Some(batch)) = (cost.nop, cost.nop_in_batch) else { return };
        assert!(batch.median > 0.0 && batch.median < one.median, "{cost:?}");
    }
}
