//! Searches the highest rate that keeps a latency percentile below a bound.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadgen::{Config, Goal, SearchResult, Verdict};

use crate::flags::Flags;
use crate::progress_bar::RunProgressBar;
use crate::session::{INVALID, UNREACHED, connect_agents, prepare};
use crate::value_parsers::Format;

pub async fn run(flags: &Flags, config: &Config, goal: Goal) -> Result<ExitCode, Box<dyn Error>> {
    let mut coordinator = connect_agents(flags).await?;
    let stop = prepare(flags, config).await?;
    if stop.load(Ordering::Relaxed) {
        return Ok(ExitCode::SUCCESS);
    }
    let mut bar = RunProgressBar::new(flags.quiet, Duration::ZERO);
    let show = |name: &str, progress| bar.show_named(name, progress);
    let result = loadgen::search(&mut coordinator, config, goal, &stop, show).await;
    bar.finish();
    print_result(flags, &result?, stop.load(Ordering::Relaxed))
}

fn print_result(flags: &Flags, result: &SearchResult, interrupted: bool) -> Result<ExitCode, Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    match flags.format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(result)?)?,
        Format::Csv | Format::Table => print_trials(&mut out, result, flags.format == Format::Csv)?,
    }
    let (percentile, bound) = (result.goal.percentile, result.goal.bound_us);
    let too_few = result.tried.last().is_some_and(|trial| trial.verdict == Verdict::TooFew);
    if interrupted {
        eprintln!("loadgen: interrupted; the search is incomplete");
        return Ok(ExitCode::FAILURE);
    }
    if too_few {
        eprintln!("loadgen: too few requests in {} s for p{percentile}: use a longer -t", flags.time);
        return Ok(ExitCode::FAILURE);
    }
    let Some(rate) = result.rate else {
        if result.tried.iter().all(|trial| trial.verdict == Verdict::Invalid) {
            eprintln!("loadgen: the generator is too slow for each of these rates");
            return Ok(ExitCode::from(INVALID));
        }
        eprintln!(
            "loadgen: no rate keeps p{percentile} below {bound} µs (a closed loop reaches {:.0}/s)",
            result.peak
        );
        return Ok(ExitCode::from(UNREACHED));
    };
    if flags.format == Format::Table {
        let next = result.failed.map_or_else(
            || " (the peak of a closed loop)".to_owned(),
            |failed| format!(", and {failed:.0}/s does not"),
        );
        writeln!(out, "{rate:.0} requests/s keep p{percentile} below {bound} µs{next}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_trials(out: &mut impl Write, result: &SearchResult, csv: bool) -> Result<(), Box<dyn Error>> {
    let mut print_row = |cells: [String; 6]| {
        if csv {
            return writeln!(out, "{}", cells.join(","));
        }
        let [target, qps, latency, low, high, verdict] = cells;
        writeln!(out, "{target:>10} {qps:>10} {latency:>9} {low:>9} {high:>9}  {verdict}")
    };
    let percentile = format!("p{}", result.goal.percentile);
    print_row(["target", "QPS", &percentile, "low", "high", "verdict"].map(str::to_owned))?;
    for trial in &result.tried {
        let figure = |figure: Option<f64>| figure.map_or("-".to_owned(), |value| format!("{value:.1}"));
        let verdict = serde_json::to_value(trial.verdict)?;
        print_row([
            format!("{:.0}", trial.rate),
            format!("{:.1}", trial.qps),
            figure(trial.latency.map(|latency| latency.mean)),
            figure(trial.latency.map(|latency| latency.low)),
            figure(trial.latency.map(|latency| latency.high)),
            verdict.as_str().unwrap_or_default().to_owned(),
        ])?;
    }
    Ok(())
}
