//! Compares servers.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadgen::{ComparedServer, Comparison, Config, Estimate};

use crate::flags::Flags;
use crate::progress_bar::RunProgressBar;
use crate::session::{FAILURES, INVALID, connect_agents, prepare};
use crate::value_parsers::Format;

pub async fn run(flags: &Flags, config: &Config) -> Result<ExitCode, Box<dyn Error>> {
    let mut coordinator = connect_agents(flags).await?;
    let stop = prepare(flags, config).await?;
    let mut bar = RunProgressBar::new(flags.quiet, Duration::ZERO);
    let (servers, rounds) = (&flags.compare, flags.rounds as usize);
    let compared = loadgen::compare(&mut coordinator, config, servers, rounds, &stop, |name, progress| {
        bar.show_named(name, progress);
    })
    .await;
    bar.finish();
    let compared = compared?;
    if stop.load(Ordering::Relaxed) {
        eprintln!("loadgen: interrupted; the figures cover the time until then");
    }
    let mut out = std::io::stdout().lock();
    match flags.format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&compared)?)?,
        Format::Csv => write_csv(&mut out, &compared)?,
        Format::Table => write_table(&mut out, &compared)?,
    }
    if compared.left_out > 0 {
        let why = compared.invalid.as_deref().unwrap_or_default();
        eprintln!("loadgen: {} of {rounds} rounds were invalid and are excluded: {why}", compared.left_out);
    }
    if let Some(error) = compared.error {
        return Err(error.into());
    }
    let none = compared.servers.iter().all(|server| server.turns.is_empty());
    Ok(ExitCode::from(match compared.failures {
        _ if none && stop.load(Ordering::Relaxed) => return Err("interrupted in the first round".into()),
        _ if none => INVALID,
        0 => 0,
        failures => {
            eprintln!("loadgen: {failures} requests failed");
            FAILURES
        }
    }))
}

fn write_csv(out: &mut impl Write, compared: &Comparison) -> std::io::Result<()> {
    writeln!(out, "round,server,qps,p50_us,p99_us")?;
    for ComparedServer { server, turns, .. } in &compared.servers {
        for (round, turn) in turns.iter().enumerate() {
            writeln!(out, "{},{server},{:.1},{:.1},{:.1}", round + 1, turn.qps, turn.p50, turn.p99)?;
        }
    }
    Ok(())
}

fn write_table(out: &mut impl Write, compared: &Comparison) -> std::io::Result<()> {
    writeln!(out, "{:<24} {:>6} {:>12} {:>9} {:>9}", "median of", "turns", "QPS", "50th", "99th")?;
    for ComparedServer { server, turns, median, .. } in &compared.servers {
        let server = server.to_string();
        writeln!(
            out,
            "{server:<24} {:>6} {:>12.1} {:>9.1} {:>9.1}",
            turns.len(),
            median.qps,
            median.p50,
            median.p99
        )?;
    }
    let first = compared.servers.first().map(|first| first.server.to_string()).unwrap_or_default();
    for ComparedServer { server, ratio, .. } in &compared.servers {
        let Some(ratio) = ratio else { continue };
        for (name, estimate) in [("QPS", ratio.qps), ("50th", ratio.p50), ("99th", ratio.p99)] {
            if let Some(Estimate { mean, low, high, batches, .. }) = estimate {
                let rounds = format!("95 % of {batches} rounds");
                writeln!(out, "{server} / {first}: {name:<4} {mean:.3} [{low:.3}, {high:.3}], {rounds}")?;
            }
        }
    }
    Ok(())
}
