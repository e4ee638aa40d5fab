//! Explains whether kernel polling can run on an interface, and how to fix what prevents it. Observes the
//! interface for a second. Needs no privilege.
//!
//!     cargo run -p lull-policies --features tools --example explain -- eth0

use policies::explain::{Explanation, Severity};
use policies::{JournalDir, host};

fn main() -> Result<(), policies::Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "lo".to_owned());
    let explanation = Explanation::of(&host::interface(&name)?, &JournalDir::default())?;

    println!("{}", explanation.verdict());
    for finding in &explanation.findings {
        let label = match finding.severity {
            Severity::Ok => "ok",
            Severity::Degrades => "degrades",
            Severity::Prevents => "prevents",
            _ => "other",
        };
        println!("{label:>8}: {}", finding.summary);
        if let Some(remedy) = &finding.remedy {
            println!("          remedy: {remedy}");
        }
    }
    Ok(())
}
