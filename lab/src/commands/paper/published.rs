//! The numbers of the paper: Cai and Karsten, "Kernel vs. User-Level Networking: Don't Throw Out
//! the Stack with the Interrupts", Proc. ACM Meas. Anal. Comput. Syst. 7, 3, Article 49 (2023).
//!
//! Copied from the paper's text. Its tables are complete there. Its figures are images, and where
//! the text names numbers of one, they are quoted. Places are named by section, because the text
//! has no page numbers.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::parts::Part;

pub const CITATION: &str = "Peter Cai and Martin Karsten. 2023. Kernel vs. User-Level Networking: Don't Throw Out the \
    Stack with the Interrupts. Proc. ACM Meas. Anal. Comput. Syst. 7, 3, Article 49. https://doi.org/10.1145/3626780";

/// What the paper measured on (section 5.1).
pub const SETUP: &str = "two Intel Xeon E5-2680 with 8 cores each at 2.7 GHz, Mellanox ConnectX-3 10 GbE, Linux 5.15 with \
    the authors' patch (5.4 in section 3), mitigations off; seven client machines of the same kind";

/// A row of a table of the paper. All of its tables have these columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PublishedRow {
    /// The system as the paper names it, for example `F-Stack`.
    pub system: String,
    /// Queries per second (QPT, T = 1 s).
    pub queries: u32,
    /// Instructions per query in the application (IPQ, App).
    pub instructions_app: u32,
    /// Instructions per query in libraries and the kernel (IPQ, Sys).
    pub instructions_system: u32,
    /// Instructions per query (IPQ, Total).
    pub instructions: u32,
    /// Cycles in the application, % (Cycles, App).
    pub cycles_app: f64,
    /// Cycles in libraries and the kernel, % (Cycles, Sys).
    pub cycles_system: f64,
    pub instructions_per_cycle: f64,
    /// Packets per interrupt (pkts/irq), which Table 5 alone has.
    pub packets_per_interrupt: Option<f64>,
}

/// What a table or figure needs to be measured here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Needs {
    Part(Part),
    TwoNodes,
    UserLevelStack,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exhibit {
    /// For example `table-5`.
    pub id: String,
    pub name: String,
    pub caption: String,
    pub section: String,
    /// The rows of a table; the first one is what ratios refer to. Empty for figures.
    #[serde(default)]
    pub rows: Vec<PublishedRow>,
    /// What the text says of it in numbers, word for word. Empty where it names none.
    pub statements: Vec<String>,
    pub needs: Needs,
}

impl Exhibit {
    pub fn row(&self, system: &str) -> Option<&PublishedRow> {
        self.rows.iter().find(|row| row.system == system)
    }

    /// A row's queries per second over those of the first row.
    pub fn ratio(&self, row: &PublishedRow) -> f64 {
        self.rows.first().map_or(1.0, |first| f64::from(row.queries) / f64::from(first.queries))
    }
}

/// The tables and figures with measurements, in the paper's order. Figures 1 to 4 are drawings and
/// pseudo-code.
pub static EXHIBITS: LazyLock<Vec<Exhibit>> =
    LazyLock::new(|| serde_json::from_str(include_str!("published.json")).unwrap_or_default());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_the_paper_add_up_but_for_rounding() {
        assert_eq!(EXHIBITS.len(), 10);
        for row in EXHIBITS.iter().flat_map(|exhibit| &exhibit.rows) {
            let sum = row.instructions_app + row.instructions_system;
            assert!(sum.abs_diff(row.instructions) <= 1, "{row:?}");
            assert!((row.cycles_app + row.cycles_system - 100.0).abs() < 0.11, "{row:?}");
        }
    }

    #[test]
    fn ratios_are_those_that_the_text_names() {
        let ratio = |id: &str, system: &str| {
            let exhibit = EXHIBITS.iter().find(|exhibit| exhibit.id == id).unwrap();
            (exhibit.ratio(exhibit.row(system).unwrap()) * 100.0).round() / 100.0
        };
        assert_eq!(ratio("table-1", "F-Stack"), 1.27);
        assert_eq!(ratio("table-2", "F-Stack"), 1.27);
        assert_eq!(ratio("table-3", "Caladan"), 3.65);
        assert_eq!(ratio("table-4", "4 + 4 cores"), 0.83);
        assert_eq!(ratio("table-5", "IRQ Suppression"), 1.34);
        assert_eq!(ratio("table-5", "Kernel Polling"), 1.31);
    }
}
