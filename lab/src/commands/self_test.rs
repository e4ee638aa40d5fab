//! The verdict of the method's self-test: a server, the same again, and one that computes longer
//! for each request.

use loadgen::medians::Interval;

use crate::report::tables::interval_text;
use crate::rounds::{Figure, LoadKind, Results};

/// How far from 1 the ratio between equal servers may be.
const EQUAL_WITHIN: f64 = 0.03;
/// What share of the work the difference that is found may lack or exceed. A server that computes
/// is interrupted while it does, which takes some 0.6 µs more than its work.
const WORK_WITHIN: f64 = 0.25;

#[derive(Debug)]
pub struct SelfTestVerdict {
    pub passed: bool,
    pub sentence: String,
}

/// Whether the equal servers are found to be equal, and the third one's work of `work_us` to be
/// what it is.
pub fn self_test_verdict(results: &Results, work_us: f64) -> SelfTestVerdict {
    let load = results.by_load().find(|load| load.kind == LoadKind::Open);
    let cpu = |row: usize| load.and_then(|load| load.rows.get(row)?.figures.get(&Figure::CpuPerRequest));
    let equal = cpu(1).and_then(|cpu| cpu.ratio);
    let difference = cpu(2).and_then(|cpu| cpu.difference);
    let is_equal = equal.is_some_and(|it| it.reaches_target() && (it.median - 1.0).abs() <= EQUAL_WITHIN);
    let is_found = difference.is_some_and(|it| {
        it.reaches_target() && it.low > 0.0 && (it.median / work_us - 1.0).abs() <= WORK_WITHIN
    });
    let text = |interval: Option<Interval>| {
        interval.map_or_else(|| "not measured".to_owned(), |interval| interval_text(&interval, 3))
    };
    let passed = is_equal && is_found;
    let sentence = format!(
        "self-test {}: equal servers: {} of each other's CPU time per request (passes within {EQUAL_WITHIN} of 1); {work_us} µs \
         of work: {} µs found (passes within a quarter of it)",
        if passed { "passed" } else { "failed" },
        text(equal),
        text(difference)
    );
    SelfTestVerdict { passed, sentence }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::{Turn, results_of};

    /// The verdict on servers that took these CPU times, with some noise, in as many rounds.
    fn verdict(cpu_us: [f64; 3], noise: f64, rounds: usize) -> (bool, String) {
        let results = results_of(
            &[("1000/s", LoadKind::Open, 1000.0)],
            &["first", "again", "slower"],
            &[0],
            rounds,
            |_, contender, round| {
                let noise = noise * (round % 3) as f64;
                Turn::new([(Figure::CpuPerRequest, cpu_us[contender] + noise * contender as f64)])
            },
        );
        let verdict = self_test_verdict(&results, 5.0);
        (verdict.passed, verdict.sentence)
    }

    #[test]
    fn it_passes_if_equal_servers_are_equal_and_the_work_is_found() {
        for (expected, cpu_us, noise, rounds) in [
            ("passed: equal servers: 1.0", [10.0, 10.1, 14.8], 0.1, 12),
            ("failed: ", [10.0, 10.4, 15.0], 0.0, 12),
            ("failed: ", [10.0, 9.6, 15.0], 0.0, 12),
            // Another amount; one that may be 0; too few rounds; nothing.
            ("failed: ", [10.0, 10.0, 13.7], 0.0, 12),
            ("failed: ", [10.0, 10.0, 16.3], 0.0, 12),
            ("failed: ", [10.0, 10.0, 9.0], 5.0, 12),
            ("failed: ", [10.0, 10.0, 15.0], 0.0, 5),
            ("failed: ", [10.0, 10.0, 15.0], 0.0, 0),
        ] {
            let (passed, sentence) = verdict(cpu_us, noise, rounds);
            assert_eq!(passed, expected.starts_with("passed"), "{sentence}");
            assert!(sentence.starts_with(&format!("self-test {expected}")), "{sentence}");
        }
    }
}
