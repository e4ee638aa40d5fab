//! Measures at several rates, one after the other.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadgen::{Config, Loop, Report};

use crate::flags::Flags;
use crate::progress_bar::RunProgressBar;
use crate::session::{connect_agents, exit_code_of, prepare};
use crate::value_parsers::{Format, Scan};

pub async fn run(flags: &Flags, config: &Config, scan: Scan) -> Result<ExitCode, Box<dyn Error>> {
    let mut coordinator = connect_agents(flags).await?;
    let stop = prepare(flags, config).await?;
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::SUCCESS);
    }
    let (mut worst, mut failed, mut first) = (0, None, true);
    let mut reports = Vec::new();
    for rate in scan.rates() {
        let Loop::Open { arrival, .. } = config.pacing else { break };
        let config = Config { pacing: Loop::Open { rate, arrival }, ..config.clone() };
        let mut bar = RunProgressBar::new(flags.quiet, Duration::ZERO);
        let name = format!("{rate:.0}/s");
        let report = coordinator.run(&config, &stop, |progress| bar.show_named(&name, progress)).await;
        bar.finish();
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        worst = worst.max(exit_code_of(&report));
        print_line(flags.format, rate, &report, std::mem::take(&mut first))?;
        // Reports are large: keep them only to print them at the end.
        reports.extend(Some(report).filter(|_| flags.format == Format::Json));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let mut out = std::io::stdout().lock();
    if flags.format == Format::Json {
        writeln!(out, "{}", serde_json::to_string_pretty(&reports)?)?;
    }
    // Report the error after the results of the rates before it.
    failed.map_or(Ok(ExitCode::from(worst)), |error| Err(error.into()))
}

/// Prints the result of one rate at once, except for JSON, which is printed as one array at the
/// end.
fn print_line(format: Format, rate: f64, report: &Report, first: bool) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let latency = &report.latency;
    match format {
        Format::Json => {}
        Format::Csv => {
            let csv = report.csv();
            let lines = csv.lines().skip(usize::from(!first));
            lines.into_iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        Format::Table => {
            if first {
                writeln!(
                    out,
                    "{:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
                    "target", "QPS", "avg", "50th", "95th", "99th", "99.9th", "max"
                )?;
            }
            let note = report.invalid.as_ref().map_or("", |_| "  INVALID");
            writeln!(
                out,
                "{rate:>10.0} {:>10.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}{note}",
                report.qps, latency.avg, latency.p50, latency.p95, latency.p99, latency.p999, latency.max
            )?;
        }
    }
    Ok(())
}
