//! The numbers of the paper: Cai and Karsten, "Kernel vs. User-Level Networking: Don't Throw Out the Stack with the
//! Interrupts", Proc. ACM Meas. Anal. Comput. Syst. 7, 3, Article 49 (2023).
//!
//! Copied from the paper's text. Its tables are complete there. Its figures are images, and where the text names numbers
//! of one, they are quoted. Places are named by section, because the text has no page numbers.

use serde::Serialize;

use super::Part;

/// What the paper is, for the report.
pub const CITATION: &str = "Peter Cai and Martin Karsten. 2023. Kernel vs. User-Level Networking: Don't Throw Out the \
    Stack with the Interrupts. Proc. ACM Meas. Anal. Comput. Syst. 7, 3, Article 49. https://doi.org/10.1145/3626780";

/// What the paper measured on (section 5.1).
pub const SETUP: &str = "two Intel Xeon E5-2680 with 8 cores each at 2.7 GHz, Mellanox ConnectX-3 10 GbE, Linux 5.15 with \
    the authors' patch (5.4 in section 3), mitigations off; seven client machines of the same kind";

/// A row of a table of the paper. All of its tables have these columns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PublishedRow {
    /// The system as the paper names it, for example `F-Stack`.
    pub system: &'static str,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Needs {
    Part(Part),
    TwoNodes,
    UserLevelStack,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Exhibit {
    /// For example `table-5`.
    pub id: &'static str,
    pub name: &'static str,
    pub caption: &'static str,
    pub section: &'static str,
    /// The rows of a table; the first one is what ratios refer to. Empty for figures.
    pub rows: &'static [PublishedRow],
    /// What the text says of it in numbers, word for word. Empty where it names none.
    pub statements: &'static [&'static str],
    /// What it needs here.
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

/// A row without packets per interrupt, in the order of the paper's columns.
const fn row(
    system: &'static str,
    queries: u32,
    [instructions_app, instructions_system, instructions]: [u32; 3],
    [cycles_app, cycles_system]: [f64; 2],
    instructions_per_cycle: f64,
) -> PublishedRow {
    PublishedRow {
        system,
        queries,
        instructions_app,
        instructions_system,
        instructions,
        cycles_app,
        cycles_system,
        instructions_per_cycle,
        packets_per_interrupt: None,
    }
}

const fn with_packets(row: PublishedRow, packets_per_interrupt: f64) -> PublishedRow {
    PublishedRow { packets_per_interrupt: Some(packets_per_interrupt), ..row }
}

/// The tables and figures with measurements, in the paper's order. Figures 1 to 4 are drawings and pseudo-code.
pub const EXHIBITS: [Exhibit; 10] = [
    Exhibit {
        id: "table-1",
        name: "Table 1",
        caption: "Memcached: Vanilla vs. F-Stack (1 core)",
        section: "3.2.1",
        rows: &[
            row("Vanilla", 84_124, [1905, 18_512, 20_417], [10.6, 89.4], 0.64),
            row("F-Stack", 106_468, [1930, 20_579, 22_509], [10.2, 89.8], 0.89),
        ],
        statements: &[
            "Replacing kernel networking with F-Stack results in an overall performance increase of 27%.",
        ],
        needs: Needs::UserLevelStack,
    },
    Exhibit {
        id: "table-2",
        name: "Table 2",
        caption: "Nginx: Vanilla vs. F-Stack (8 cores)",
        section: "3.2.2",
        rows: &[
            row("Vanilla", 508_828, [5749, 19_245, 24_994], [24.3, 75.7], 0.59),
            row("F-Stack", 647_441, [6330, 18_037, 24_367], [32.9, 67.1], 0.73),
        ],
        statements: &["The results in Table 2 show a similar overall performance improvement of 27%."],
        needs: Needs::Part(Part::Web),
    },
    Exhibit {
        id: "table-3",
        name: "Table 3",
        caption: "Memcached: Vanilla vs. Caladan (6 cores)",
        section: "3.2.3",
        rows: &[
            row("Vanilla", 577_653, [1783, 17_549, 19_332], [9.89, 90.11], 0.69),
            row("Caladan", 2_108_154, [2103, 5282, 7385], [28.5, 71.5], 0.97),
        ],
        statements: &[
            "Caladan achieves a 3.65-fold performance improvement over the default Linux setup, which is a combination of \
             an IPQ reduction by almost 2.6, while the IPC is increased by 41%.",
        ],
        needs: Needs::UserLevelStack,
    },
    Exhibit {
        id: "table-4",
        name: "Table 4",
        caption: "Memcached/Vanilla: 8 cores vs. 4+4 cores/NUMA",
        section: "3.2.4",
        rows: &[
            row("8 cores", 724_077, [1832, 17_570, 19_402], [9.6, 90.4], 0.65),
            row("4 + 4 cores", 601_494, [1851, 17_672, 19_522], [8.6, 91.4], 0.55),
        ],
        statements: &[
            "it is clear that reduced locality comes with a performance penalty of about 17%, which is caused by a \
             corresponding reduction in IPC.",
        ],
        needs: Needs::TwoNodes,
    },
    Exhibit {
        id: "table-5",
        name: "Table 5",
        caption: "Memcached: Alignment Proposals, 8 cores",
        section: "5.2",
        rows: &[
            with_packets(row("Vanilla", 724_077, [1832, 17_570, 19_402], [9.6, 90.4], 0.65), 1.05),
            with_packets(row("IRQ Packing", 847_669, [1981, 17_549, 19_530], [10.7, 89.3], 0.77), 22.1),
            with_packets(row("IRQ Suppression", 967_675, [1842, 17_123, 18_965], [11.7, 88.3], 0.85), 262.0),
            with_packets(row("Kernel Polling", 947_021, [1853, 16_716, 18_569], [11.9, 88.1], 0.82), 15.6),
        ],
        statements: &[
            "IRQ suppression results in an impressive 33% throughput increase over the vanilla version",
        ],
        needs: Needs::Part(Part::Policies),
    },
    Exhibit {
        id: "figure-5",
        name: "Figure 5",
        caption: "Memcached: Latency vs. Throughput, 8 cores",
        section: "5.2",
        rows: &[],
        statements: &[
            "it is clear that kernel polling outperforms the vanilla configuration by at least 30%.",
        ],
        needs: Needs::Part(Part::Policies),
    },
    Exhibit {
        id: "figure-6",
        name: "Figure 6",
        caption: "Memcached: Latency vs. Throughput, 4 + 4 cores",
        section: "5.3",
        rows: &[],
        statements: &[],
        needs: Needs::TwoNodes,
    },
    Exhibit {
        id: "figure-7",
        name: "Figure 7",
        caption: "Memcached: Closed-loop Throughput (NUMA)",
        section: "5.3",
        rows: &[],
        statements: &[
            "The relative gap between vanilla and kernel polling is largely constant at 43-46% for these experiments, \
             compared to 30-31% in the single-domain case.",
        ],
        needs: Needs::TwoNodes,
    },
    Exhibit {
        id: "figure-8",
        name: "Figure 8",
        caption: "Memcached: IPQ vs IPC (NUMA)",
        section: "5.3",
        rows: &[],
        statements: &[
            "IPC still closely mirrors the performance difference, with a gap of 43% at 8 + 8 cores between vanilla and \
             kernel polling.",
        ],
        needs: Needs::TwoNodes,
    },
    Exhibit {
        id: "figure-9",
        name: "Figure 9",
        caption: "Memcached: Throughput & LLC misses, 1 core",
        section: "appendix A",
        rows: &[],
        statements: &[
            "At 10 connections per client (560 total), kernel polling achieves a throughput about 8% higher than that of \
             F-Stack, but it eventually falls below as the number of connections increases.",
        ],
        needs: Needs::Part(Part::Connections),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_the_paper_add_up_but_for_rounding() {
        for row in EXHIBITS.iter().flat_map(|exhibit| exhibit.rows) {
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
