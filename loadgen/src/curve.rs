//! Several rates one after the other: the search for one, and the scan over all.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadgen::{Config, Found, Loop, Report, Verdict};

use crate::flags::Flags;
use crate::live::Live;
use crate::plot::{self, Point};
use crate::values::Format;
use crate::{Failure, INVALID, call, code, create, prepare};

/// No rate reaches the goal.
const UNREACHED: u8 = 5;

pub async fn run(flags: &Flags, config: &Config) -> Result<ExitCode, Failure> {
    create(flags.plot.as_deref())?;
    let mut crew = call(flags).await?;
    let stop = prepare(flags, config).await?;
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(goal) = flags.search {
        let mut live = Live::new(flags.quiet, Duration::ZERO);
        let crew = &mut crew;
        let found = loadgen::search(crew, config, goal, &stop, |what, seen| live.show_at(what, seen)).await;
        live.end();
        return print_found(flags, &found?, stop.load(Ordering::Relaxed));
    }
    let mut worst = 0;
    let (mut reports, mut points, mut failed) = (Vec::new(), Vec::new(), None);
    for rate in flags.scan.into_iter().flat_map(|scan| scan.rates()) {
        let Loop::Open { arrival, .. } = config.pacing else { break };
        let config = Config { pacing: Loop::Open { rate, arrival }, ..config.clone() };
        let mut live = Live::new(flags.quiet, Duration::ZERO);
        let name = format!("at {rate:.0}/s");
        let report = crew.run(&config, &stop, |seen| live.show_at(&name, seen)).await;
        live.end();
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        worst = worst.max(code(&report));
        print_point(flags.format, rate, &report, points.is_empty())?;
        points.push(Point { qps: report.qps, p50: report.latency.p50, p99: report.latency.p99 });
        // Kept where they are printed at the end.
        reports.extend(Some(report).filter(|_| flags.format == Format::Json));
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let mut out = std::io::stdout().lock();
    match flags.format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&reports)?)?,
        Format::Table => write!(out, "{}", plot::in_characters(&points))?,
        Format::Csv => {}
    }
    if let Some(path) = &flags.plot {
        plot::curve(path, &points)?;
    }
    // After what was measured until then.
    failed.map_or(Ok(ExitCode::from(worst)), |error| Err(error.into()))
}

/// A line of the scan, as soon as it is known; JSON comes at the end, in one piece.
fn print_point(format: Format, rate: f64, report: &Report, first: bool) -> Result<(), Failure> {
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

fn print_found(flags: &Flags, found: &Found, interrupted: bool) -> Result<ExitCode, Failure> {
    let mut out = std::io::stdout().lock();
    match flags.format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(found)?)?,
        Format::Csv | Format::Table => {
            let comma = flags.format == Format::Csv;
            let mut row = |cells: [String; 6]| {
                if comma {
                    return writeln!(out, "{}", cells.join(","));
                }
                let [target, qps, latency, low, high, verdict] = cells;
                writeln!(out, "{target:>10} {qps:>10} {latency:>9} {low:>9} {high:>9}  {verdict}")
            };
            let percentile = format!("p{}", found.goal.percentile);
            row(["target", "QPS", &percentile, "low", "high", "verdict"].map(str::to_owned))?;
            for tried in &found.tried {
                let figure =
                    |figure: Option<f64>| figure.map_or("-".to_owned(), |value| format!("{value:.1}"));
                let verdict = serde_json::to_value(tried.verdict)?;
                row([
                    format!("{:.0}", tried.rate),
                    format!("{:.1}", tried.qps),
                    figure(tried.latency.map(|latency| latency.mean)),
                    figure(tried.latency.map(|latency| latency.low)),
                    figure(tried.latency.map(|latency| latency.high)),
                    verdict.as_str().unwrap_or_default().to_owned(),
                ])?;
            }
        }
    }
    let (percentile, bound) = (found.goal.percentile, found.goal.bound_us);
    let too_few = found.tried.last().is_some_and(|tried| tried.verdict == Verdict::TooFew);
    if interrupted {
        eprintln!("loadgen: interrupted: what is printed is not the end of the search");
        return Ok(ExitCode::FAILURE);
    }
    if too_few {
        eprintln!(
            "loadgen: too few requests in {} s to tell their p{percentile}: give a longer -t",
            flags.time
        );
        return Ok(ExitCode::FAILURE);
    }
    let Some(rate) = found.rate else {
        if found.tried.iter().all(|tried| tried.verdict == Verdict::Invalid) {
            eprintln!("loadgen: the generator is too slow for any of these rates");
            return Ok(ExitCode::from(INVALID));
        }
        eprintln!(
            "loadgen: no rate keeps p{percentile} below {bound} µs (a closed loop reaches {:.0}/s)",
            found.peak
        );
        return Ok(ExitCode::from(UNREACHED));
    };
    if flags.format == Format::Table {
        let next = found.failed.map_or_else(
            || " (the peak of a closed loop)".to_owned(),
            |failed| format!(", and {failed:.0}/s does not"),
        );
        writeln!(out, "{rate:.0} requests/s keep p{percentile} below {bound} µs{next}")?;
    }
    Ok(ExitCode::SUCCESS)
}
