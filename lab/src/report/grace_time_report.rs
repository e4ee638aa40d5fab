//! The report on a comparison of grace times.

use super::table::{interval_text, plain_table};
use crate::experiments::grace_time_calibration::GraceTimeCalibration;

/// The report as text.
pub fn grace_time_text(calibration: &GraceTimeCalibration) -> String {
    let header = ["grace time µs", "requests/s", "over the best fixed one"];
    let rows = calibration.trials.iter().map(|trial| {
        vec![
            trial.grace_time.as_micros().to_string(),
            format!("{:.0}", trial.qps),
            interval_text(&trial.ratio_to_best, 3),
        ]
    });
    let mut text = format!(
        "{}\n{} rounds in one server under one load; medians, 95 % intervals; the hypervisor took {:.1} % of a core\n",
        plain_table(header, rows, &[]),
        calibration.rounds,
        calibration.steal * 100.0
    );
    if let Some(distance) = calibration.conditions.distance {
        text.push_str(&format!(
            "distance of the cores: {:.0} ns before the run, {:.0} ns after it\n",
            distance.before, distance.after
        ));
    }
    if calibration.distance_changed {
        text.push_str(
            "note: the distance of the cores changed in each run, so grace times were not compared alike\n",
        );
    } else if !calibration.left_out.is_empty() {
        let runs = calibration.left_out.len();
        text.push_str(&format!("left out: {runs} runs in which the distance of the cores changed\n"));
    }
    if let Some(best) = calibration.best {
        let micros = best.as_micros();
        text.push_str(&format!(
            "the shortest fixed grace time within 1 % of the best, for a program that can't adapt it: \
             --gro-flush-timeout {micros}\n"
        ));
    }
    text
}
