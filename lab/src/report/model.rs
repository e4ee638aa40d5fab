//! The report on what avoiding crossings can save.

use loadgen::medians::Interval;
use policies::host::Machine;
use serde::Serialize;

use super::document::{Document, Plot, Section, Table};
use super::figures::{sections, series};
use super::svg::{Axis, lines};
use super::table::interval_text;
use crate::engine::{CoreAssignment, Figure, LoadResult};
use crate::experiments::crossing_model::{
    BATCH, CrossingModel, ModelConfig, ModelMeasurements, Prediction, REQUEST,
};

#[derive(Debug, Serialize)]
pub struct ModelReport {
    pub machine: Machine,
    pub cores: CoreAssignment,
    pub config: ModelConfig,
    /// What avoiding crossings can save, in a sentence or two.
    pub verdict: String,
    pub model: CrossingModel,
    #[serde(flatten)]
    pub measured: ModelMeasurements,
}

impl ModelReport {
    pub fn new(cores: CoreAssignment, config: ModelConfig, measured: ModelMeasurements) -> Self {
        let model = CrossingModel::new(&measured);
        let verdict = verdict(&model, &measured);
        Self { machine: Machine::read(), cores, config, verdict, model, measured }
    }

    pub fn document(&self) -> Document {
        let mut conditions = vec![format!(
            "{}; server on core {}, client on core {}",
            self.machine, self.cores.server, self.cores.client
        )];
        let active = self.measured.vulnerabilities.iter().filter_map(|(name, state)| {
            Some(format!("mitigation of {name}: {}", state.strip_prefix("Mitigation: ")?))
        });
        conditions.extend(active);
        Document {
            title: "What crossings into the kernel cost".to_owned(),
            findings: vec![self.verdict.clone()],
            conditions,
            sections: vec![self.crossings(), self.costs(), self.predictions()],
        }
    }

    fn crossings(&self) -> Section {
        let crossing = &self.measured.crossing;
        let nanos = |interval: Option<&Interval>| {
            interval.map_or_else(|| "not available".to_owned(), |it| interval_text(it, 0))
        };
        let rows = [
            ("δ: an empty system call (getppid), ns".to_owned(), nanos(Some(&crossing.system_call))),
            ("a NOP in a ring with its own enter, ns".to_owned(), nanos(crossing.nop.as_ref())),
            (format!("a NOP among {BATCH} of one enter, ns"), nanos(crossing.nop_in_batch.as_ref())),
        ];
        let rows = rows.map(|(name, value)| vec![name, value]).into();
        Section {
            tables: vec![Table::new("", &["cost", "median"], rows)],
            ..Section::new("crossings", "Crossings")
        }
    }

    fn costs(&self) -> Section {
        let results = &self.measured.results;
        // They are closed loops, and nothing else.
        let tables = sections(&results.loads, &[]).into_iter().flat_map(|section| section.tables);
        let mut section = Section {
            caption: format!(
                "exchanges on loopback with requests of {REQUEST} B, and servers in a closed loop; n·δ: crossings at δ each; \
                 a + o(b): without them; PD: their share"
            ),
            tables: tables.collect(),
            notes: results.notes.clone(),
            ..Section::new("costs", "A request's CPU time")
        };
        if let Some((intercept, slope)) = self.model.path {
            section.notes.push(format!(
                "the exchange's server without crossings: {intercept:.2} µs + {slope:.3} ns per byte (a line through the medians)"
            ));
        }
        let loads: Vec<&LoadResult> = results.leading().collect();
        let x = Axis { title: "bytes of a reply", logarithmic: true };
        let y = Axis { title: "CPU time in crossings, %", logarithmic: false };
        let plot = lines(x, y, &series(&loads, Figure::Potential, |load, _| Some(load.at)));
        let title = "The share of crossings by the size of replies";
        section.add_plot(plot.map(|svg| Plot::new("potential", title, svg)));
        section
    }

    fn predictions(&self) -> Section {
        let row = |it: &Prediction| {
            let outcome = match it.agrees {
                Some(true) => "yes",
                Some(false) => "no: the model does not predict this",
                None => "too few rounds to tell",
            };
            let (predicted, measured) = (format!("{:.1}", it.predicted), interval_text(&it.measured, 1));
            vec![it.change.clone(), predicted, measured, outcome.to_owned()]
        };
        let rows = self.model.predictions.iter().map(row).collect();
        let mut section = Section::new("predictions", "Predictions");
        section.caption = "beside what the model was not made from".to_owned();
        section.tables =
            vec![Table::new("", &["change", "predicted gain %", "measured gain %", "agrees"], rows)];
        if self.measured.crossing.nop.is_none() {
            section.notes.push(
                "io_uring is not available: no NOPs were measured, and uring is not predicted".to_owned(),
            );
        }
        section
    }
}

fn verdict(model: &CrossingModel, measured: &ModelMeasurements) -> String {
    let most = CrossingModel::most(&measured.results);
    let Some((most, share)) = most.and_then(|most| Some((most, most.value(Figure::Potential)?))) else {
        return "No server was measured: the machine disturbed every round.".to_owned();
    };
    let mut text = format!(
        "Of the servers' CPU time, crossings themselves are the largest share in {}: {} %. Avoiding them, as a user-level \
         network stack does, saves this share, if nothing else changes.",
        most.contender,
        interval_text(share, 1)
    );
    if model.predictions.iter().any(|it| it.agrees == Some(false)) {
        text.push_str(" A change that avoids crossings may change more than them: see the predictions that were missed.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::crossing_model::measurements;

    fn report(rounds: usize, echo_uring: f64) -> ModelReport {
        let cores = CoreAssignment::choose().unwrap();
        ModelReport::new(cores, ModelConfig::new(true, None), measurements(rounds, echo_uring))
    }

    #[test]
    fn the_text_has_all_costs_the_tables_and_the_verdict() {
        // 0.2 µs for each of 2.5 crossings, of 5 µs.
        let report = report(6, 4.66);
        let text = report.document().text();
        for part in [
            "200 [200, 200]",
            "mitigation of spectre_v2: Retpolines",
            "4.50 [4.50, 4.50]",
            "largest share in epoll: 10.0 [10.0, 10.0] %",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(!text.contains("missed"), "{text}");
        let plot = &report.document().sections[1].plots[0];
        assert!(plot.svg.contains("uring") && plot.svg.contains("<polyline"), "{}", plot.svg);
    }

    #[test]
    fn a_gain_that_is_not_predicted_and_too_few_rounds_are_said() {
        let text = report(6, 3.5).document().text();
        assert!(text.contains("no: the model does not predict this") && text.contains("missed"), "{text}");
        assert!(text.contains("30.0 [29.8, 30.2]"), "{text}");
        let text = report(5, 3.5).document().text();
        assert!(
            text.contains("too few rounds to tell") && text.contains("(no interval, 5 rounds)"),
            "{text}"
        );
    }
}
