//! What a part measured, in a form that is saved and read again.

use serde::{Deserialize, Serialize};

use crate::engine::{LoadKind, LoadResult, Row};

/// The result of a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartResult {
    /// What ratios refer to.
    pub reference: String,
    /// The paper's row that each contender corresponds to, by index.
    pub published: Vec<Option<String>>,
    /// The load generator, the connections and the records, in a sentence.
    pub workload: String,
    /// All loads, those of the class with most rounds first.
    pub loads: Vec<LoadResult>,
    /// What to doubt, a sentence each.
    pub notes: Vec<String>,
    /// Why later loads were not measured, if something failed. The next run measures such a part again.
    #[serde(default)]
    pub failure: Option<String>,
}

impl PartResult {
    /// A part without results.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self {
            reference: "vanilla, epoll".to_owned(),
            published: Vec::new(),
            workload: "a fleet".to_owned(),
            loads: Vec::new(),
            notes: Vec::new(),
            failure: None,
        }
    }

    /// Whether anything beside a capacity was measured.
    pub(super) fn has_figures(&self) -> bool {
        let loads = self.loads.iter().filter(|load| load.kind != LoadKind::Capacity);
        loads.flat_map(|load| &load.rows).any(Row::has_valid_turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Figure, Measured, Turn, results_of};

    #[test]
    fn memory_alone_is_no_figure_to_save() {
        let part = |figure| {
            let mut results = results_of(
                &[("closed loop", LoadKind::Closed, 1.0, None)],
                &["vanilla"],
                &[0],
                6,
                |_, _, _| Turn::new([(figure, 1.0)]),
            );
            results.loads[0].rows[0].figures.insert(Figure::KernelConnectionBytes, Measured::once(1.0));
            PartResult { loads: results.loads, ..PartResult::empty() }
        };
        assert!(!part(Figure::ConnectionBytes).has_figures());
        assert!(part(Figure::Throughput).has_figures());
    }
}
