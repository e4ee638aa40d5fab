//! wrk as a load: how it is started, and what it prints.

use std::path::Path;
use std::process::{Command, Stdio};

/// The figures that wrk prints at its end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WrkMeasurement {
    /// Requests per second.
    pub(super) rate: f64,
    /// Requests in all.
    pub(super) requests: u64,
    /// Median latency, µs.
    pub(super) p50: f64,
    /// 99th percentile, µs.
    pub(super) p99: f64,
    /// What went wrong, if anything did: errors of sockets, or replies that are none of 2xx and 3xx.
    pub(super) errors: Option<String>,
}

/// The command for one thread.
pub(super) fn command(wrk: &Path, connections: usize, seconds: u64, url: &str) -> Command {
    let mut command = Command::new(wrk);
    command.args(["-t", "1", "-c", &connections.to_string(), "-d", &format!("{seconds}s"), "--latency", url]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Reads what wrk printed. `None` if a figure is missing.
pub(super) fn parse(output: &str) -> Option<WrkMeasurement> {
    let field = |prefix: &str| {
        output
            .lines()
            .find_map(|line| line.trim().strip_prefix(prefix))
            .and_then(|rest| rest.split_whitespace().next())
    };
    let requests = output.lines().find_map(|line| line.trim().split_once(" requests in "))?.0;
    let errors = output.lines().map(str::trim);
    let mut errors = errors.filter(|line| line.starts_with("Socket errors") || line.starts_with("Non-2xx"));
    Some(WrkMeasurement {
        rate: field("Requests/sec:")?.parse().ok()?,
        requests: requests.parse().ok()?,
        p50: micros(field("50%")?)?,
        p99: micros(field("99%")?)?,
        errors: errors.next().map(str::to_owned),
    })
}

/// A time as wrk prints it, for example `1.71ms`.
fn micros(text: &str) -> Option<f64> {
    let unit = text.find(|character: char| character.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit);
    let factor = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Running 1s test @ http://198.18.0.1:11211/64\n  1 threads and 125 connections\n  Thread Stats   \
        Avg      Stdev     Max   +/- Stdev\n    Latency     1.23ms  300.00us   9.00ms   90.00%\n    Req/Sec    99.00k     \
        1.00k  100.00k    80.00%\n  Latency Distribution\n     50%  555.00us\n     75%    1.00ms\n     90%    1.20ms\n     \
        99%    1.71ms\n  108900 requests in 1.10s, 31.00MB read\nRequests/sec:  99000.50\nTransfer/sec:     28.18MB\n";

    #[test]
    fn rate_requests_and_percentiles_are_read() {
        let expected =
            WrkMeasurement { rate: 99_000.5, requests: 108_900, p50: 555.0, p99: 1710.0, errors: None };
        assert_eq!(parse(OUTPUT), Some(expected));
    }

    #[test]
    fn errors_are_named_and_other_text_gives_nothing() {
        let output = OUTPUT
            .replace("Requests/sec", "  Socket errors: connect 0, read 3, write 0, timeout 0\nRequests/sec");
        let errors = parse(&output).and_then(|measured| measured.errors);
        assert_eq!(errors.as_deref(), Some("Socket errors: connect 0, read 3, write 0, timeout 0"));
        assert_eq!(parse("unable to connect to 198.18.0.1:11211 Connection refused"), None);
    }
}
