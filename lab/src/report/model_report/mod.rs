//! The report on what avoiding crossings can save.

mod plot;
mod text;

use loadgen::medians::Interval;
use policies::host::Machine;
use serde::Serialize;

use super::table::interval_text;
use crate::experiments::CoreAssignment;
use crate::experiments::crossing_model::{
    CrossingModel, ModelConfig, ModelMeasurements, Outcome, Prediction,
};

/// The report on what avoiding crossings can save.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct ModelReport {
    /// The machine.
    pub machine: Machine,
    /// Which core ran what.
    pub cores: CoreAssignment,
    /// How much was measured.
    pub config: ModelConfig,
    /// What avoiding crossings can save, in a sentence or two.
    pub verdict: String,
    /// What to know before relying on it, a sentence each.
    pub notes: Vec<String>,
    /// The model.
    pub model: CrossingModel,
    /// Every turn.
    pub measured: ModelMeasurements,
}

impl ModelReport {
    /// Computes the model, and says what follows from it.
    pub fn new(
        machine: Machine,
        cores: CoreAssignment,
        config: ModelConfig,
        measured: ModelMeasurements,
    ) -> Self {
        let model = CrossingModel::new(&measured);
        let verdict = verdict(&model);
        let notes = notes(&model, &measured);
        Self { machine, cores, config, verdict, notes, model, measured }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        text::text(self)
    }

    /// The potentials over sizes, as an SVG image.
    ///
    /// # Errors
    /// If the plot can't be drawn.
    pub fn svg(&self) -> Result<String, Box<dyn std::error::Error>> {
        plot::svg(&self.model)
    }
}

/// A share in percent, with its interval.
fn percent_text(mut share: Interval) -> String {
    for value in [&mut share.median, &mut share.low, &mut share.high] {
        *value *= 100.0;
    }
    interval_text(&share, 1)
}

fn verdict(model: &CrossingModel) -> String {
    let Some(most) = model.most() else {
        return "No server was measured: the machine disturbed every round.".to_owned();
    };
    let mut text = format!(
        "Of the servers' CPU time, crossings themselves are the largest share in {}: {} %. Avoiding them, as a user-level network stack does, saves this share, if nothing else changes.",
        most.name,
        percent_text(most.potential)
    );
    let missed = |it: &&Prediction| it.outcome == Outcome::NotPredicted;
    if model.predictions.iter().filter(missed).count() > 0 {
        text.push_str(" A change that avoids crossings may change more than them: see the predictions that were missed.");
    }
    text
}

fn notes(model: &CrossingModel, measured: &ModelMeasurements) -> Vec<String> {
    let ModelMeasurements { path, echo, memcached, .. } = measured;
    let mut notes = vec![path.summary(), echo.summary(), memcached.summary()];
    if measured.crossing.nop.is_none() {
        notes.push("io_uring is not available: no NOPs were measured, and uring is not predicted".to_owned());
    }
    notes.extend(model.predictions.iter().map(prediction_note));
    notes
}

/// What was predicted, measured and counted. Nothing more is known about a difference.
fn prediction_note(it: &Prediction) -> String {
    let outcome = match it.outcome {
        Outcome::Overlaps => "the intervals of the predicted and the measured gain overlap",
        Outcome::NotPredicted => "the model does not predict this",
        _ => {
            "too few rounds to tell whether the model predicts this; run longer (--seconds) or on a quieter machine"
        }
    };
    let [before, after] = it.waits;
    format!(
        "{}: {outcome}: predicted gain {} %, measured {} %; counted: {before:.2} waits per request on epoll, {after:.2} on uring",
        it.change,
        percent_text(it.predicted_gain),
        percent_text(it.measured_gain),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::crossing_model::sample::{measurements, server};

    pub(super) fn report_of(measured: ModelMeasurements) -> ModelReport {
        let cores = CoreAssignment::choose().unwrap();
        ModelReport::new(Machine::read(), cores, ModelConfig::new(true, None), measured)
    }

    pub(super) fn report() -> ModelReport {
        report_of(measurements(true))
    }

    #[test]
    fn the_verdict_names_the_server_whose_crossings_are_the_largest_share() {
        let verdict = report().verdict;
        // 0.2 µs for each of 2.5 crossings, of 5 µs.
        assert!(verdict.contains("echo, epoll: 10.0 [10.0, 10.0] %"), "{verdict}");
        assert!(!verdict.contains("missed"), "{verdict}");
    }

    #[test]
    fn a_gain_that_the_model_does_not_predict_is_said_with_its_figures() {
        let mut measured = measurements(true);
        measured.echo = server(6, 5.0, 3.5);
        let report = report_of(measured);
        let note = report.notes.iter().find(|note| note.starts_with("echo: epoll to uring")).unwrap();
        for part in [
            "the model does not predict this",
            "predicted gain 6.8 [6.8, 6.8] %",
            "0.50 waits per request on epoll",
        ] {
            assert!(note.contains(part), "no {part:?} in {note}");
        }
        assert!(note.contains("measured 30.0 [29.8, 30.2] %"), "{note}");
        assert!(report.verdict.contains("missed"), "{}", report.verdict);
    }

    #[test]
    fn five_rounds_have_no_interval_and_decide_nothing() {
        let mut measured = measurements(true);
        measured.echo = server(5, 5.0, 3.5);
        let report = report_of(measured);
        let note = report.notes.iter().find(|note| note.starts_with("echo: epoll to uring")).unwrap();
        assert!(note.contains("too few rounds") && note.contains("(no interval, 5 rounds)"), "{note}");
        assert!(report.verdict.contains("10.0 (no interval, 5 rounds) %"), "{}", report.verdict);
    }
}
