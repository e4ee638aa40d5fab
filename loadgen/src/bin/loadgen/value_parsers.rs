//! Parsers of flag values.

#[cfg(feature = "agents")]
use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use loadgen::WarmUp;

/// The rates of `--scan`, in requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scan {
    min: f64,
    max: f64,
    step: f64,
}

impl Scan {
    /// From `min` to `max`.
    pub fn rates(self) -> impl Iterator<Item = f64> {
        // The tolerance keeps rounding errors from dropping the last rate.
        let steps = ((self.max - self.min) / self.step + 1e-9) as u64;
        (0..=steps).map(move |step| self.min + self.step * step as f64)
    }
}

/// Output formats.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
    Csv,
}

fn parse_number(text: &str, from: f64, to: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (from..=to).contains(&value) => Ok(value),
        _ => Err(format!("write a number from {from} to {to}")),
    }
}

pub fn parse_rate(text: &str) -> Result<f64, String> {
    match parse_number(text, 0.0, 1e9)? {
        rate if rate > 0.0 && rate < 0.001 => Err("write 0, or a rate of at least 0.001".to_owned()),
        rate => Ok(rate),
    }
}

pub fn parse_seconds(text: &str) -> Result<f64, String> {
    parse_number(text, 0.0, 86_400.0)
}

pub fn parse_share(text: &str) -> Result<f64, String> {
    parse_number(text, 0.0, 1.0)
}

pub fn parse_churn(text: &str) -> Result<f64, String> {
    match parse_number(text, 0.0, 1000.0)? {
        share if share > 0.0 && share < 1e-6 => Err("write 0, or a share of at least 0.000001".to_owned()),
        share => Ok(share),
    }
}

pub fn parse_warm_up(text: &str) -> Result<WarmUp, String> {
    if text == "auto" {
        return Ok(WarmUp::UntilSteady);
    }
    let seconds = parse_seconds(text).map_err(|error| format!("{error}, or auto"))?;
    Ok(WarmUp::Fixed(Duration::from_secs_f64(seconds)))
}

pub fn parse_percent(text: &str) -> Result<f64, String> {
    let share = parse_number(text.strip_suffix('%').unwrap_or(text), 0.01, 100.0);
    share.map(|percent| percent / 100.0).map_err(|error| format!("{error}, in percent"))
}

pub fn parse_scan(text: &str) -> Result<Scan, String> {
    let numbers: Option<Vec<f64>> = text.split(':').map(|number| number.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[min, max, step])
            if min > 0.0 && step > 0.0 && min <= max && max <= 1e9 && (max - min) / step <= 1000.0 =>
        {
            Ok(Scan { min, max, step })
        }
        _ => Err("write MIN:MAX:STEP in requests per second, with at most 1000 steps".to_owned()),
    }
}

/// An agent's name and address.
#[cfg(feature = "agents")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentAddress {
    pub name: String,
    pub address: SocketAddr,
}

/// Resolves `HOST` or `HOST:PORT`. `port` is the default.
#[cfg(feature = "agents")]
pub fn parse_agent(text: &str, port: u16) -> Result<AgentAddress, String> {
    let address = loadgen::resolve(text, port)
        .map_err(|_| format!("cannot resolve {text:?}; write HOST or HOST:PORT"))?;
    Ok(AgentAddress { name: text.to_owned(), address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_includes_both_ends() {
        let rates = |text: &str| parse_scan(text).unwrap().rates().collect::<Vec<_>>();
        assert_eq!(rates("1000:3000:1000"), [1000.0, 2000.0, 3000.0]);
        assert_eq!(rates("0.1:0.3:0.1").len(), 3);
        assert_eq!(rates("5:5:1"), [5.0]);
        assert_eq!(parse_percent("2%"), Ok(0.02));
        assert_eq!(parse_percent("2"), Ok(0.02));
    }

    #[cfg(feature = "agents")]
    #[test]
    fn an_agent_without_a_port_has_the_default_port() {
        assert_eq!(parse_agent("127.0.0.1", 5556).unwrap().address.port(), 5556);
        assert_eq!(parse_agent("127.0.0.1:7", 5556).unwrap().address.port(), 7);
        assert_eq!(parse_agent("2001:db8::1:2", 5556).unwrap().address.port(), 5556);
        assert!(parse_agent("no such host", 1).unwrap_err().contains("HOST:PORT"));
    }
}
