//! Scaling over queues: what the paper's figures over numbers of cores show, and this machine can't.

use super::super::document::Section;

/// A server on two cores, and as many for the load: with fewer the load is what is measured.
const LEAST_CORES: usize = 4;

/// 1, 2, 4 … workers, on a machine with this many cores.
pub(super) fn scaling(cores: usize) -> Section {
    let reason = if cores < LEAST_CORES {
        format!(
            "needs {LEAST_CORES} cores (two workers, and two cores for the load), and this machine has {cores}; for tests of \
             alignment see \"Two nodes and eight queues\" in docs/benchmarks/paper.md"
        )
    } else {
        format!("this machine has {cores} cores, but lab's testbed has one queue, and its server one worker")
    };
    Section {
        caption: "Lull's memcached with 1, 2, 4 … workers, each on a queue of its own".to_owned(),
        place: "not in the paper as a table: Figures 7 and 8 have it over two NUMA nodes".to_owned(),
        glance: format!("not measured: {reason}"),
        missing: Some(reason),
        ..Section::new("scaling", "Scaling over queues")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_the_cores_that_are_missing_or_the_testbeds_one_queue() {
        for (cores, reason) in
            [(2, "this machine has 2; "), (8, "this machine has 8 cores, but lab's testbed")]
        {
            let report = scaling(cores);
            assert!(report.glance.contains(reason), "{}", report.glance);
            assert!(report.glance.starts_with("not measured: ") && report.missing.is_some());
        }
    }
}
