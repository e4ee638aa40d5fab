//! The section `policy` of `stats`: one line per worker with its policy, driver, alignment and
//! time, and the share of busy polls.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use policies::counters::{RxPackets, busy_poll_rx_packets};
use policies::host::{self, Interface};
use runtime::policy::QueueStatus;

use super::counters::Counters;

/// How long a reading of the share is used.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A name and a value for each worker.
pub fn worker_lines(counters: &Counters) -> impl Iterator<Item = (String, String)> {
    runtime::reports().into_iter().zip(runtime::metrics()).map(|(report, metrics)| {
        let (aligned, misaligned, without_napi) = counters.alignment(report.worker);
        let napi = report.napi.as_ref().map_or(0, |napi| napi.id);
        let mut line = format!(
            "policy={} requested={} driver={} napi={napi} aligned={aligned} misaligned={misaligned} without_napi={without_napi} running_us={} polling_us={} parked_us={}",
            report.running,
            report.asked,
            report.driver,
            metrics.running().as_micros(),
            metrics.polling().as_micros(),
            metrics.parked().as_micros(),
        );
        if let Some(core) = report.core {
            line.push_str(&format!(" core={core}"));
        }
        if let Some(queue) = report.queue_status() {
            line.push_str(&queue_fields(&queue));
        }
        (format!("worker:{}", report.worker), line)
    })
}

/// How a worker's queue is driven, in words without spaces.
fn queue_fields(queue: &QueueStatus) -> String {
    let QueueStatus { mode, grace_time_us, poll_interval_us, spin_us, why } = queue;
    let interval = match poll_interval_us {
        0 => String::new(),
        micros => format!(" poll_interval_us={micros}"),
    };
    format!(" mode={mode} grace_time_us={grace_time_us}{interval} spin_us={spin_us} why={}", why.name())
}

/// The share of an interface's packets that busy polling received.
#[derive(Debug)]
pub struct BusyPollShare {
    start: Option<Result<(Interface, Packets), String>>,
    latest: Mutex<Option<(Instant, String)>>,
}

/// Packets received so far.
#[derive(Debug, Clone, Copy)]
struct Packets {
    all: u64,
    by_busy_polls: u64,
}

impl Packets {
    fn read(interface: &Interface) -> Result<Self, String> {
        let all = RxPackets::read(interface).map_err(|error| error.to_string())?.total();
        let by_busy_polls = busy_poll_rx_packets().map_err(|error| error.to_string())?;
        Ok(Self { all, by_busy_polls })
    }
}

impl BusyPollShare {
    /// Begins to count on an interface.
    pub fn start(interface: Option<&str>) -> Self {
        let start = interface.map(|name| {
            let interface = host::interface(name).map_err(|error| error.to_string())?;
            let packets = Packets::read(&interface)?;
            Ok((interface, packets))
        });
        Self { start, latest: Mutex::default() }
    }

    /// The value for `stats policy`, of at most a second ago: it takes a file in `/proc` and a
    /// message to the kernel, some hundred microseconds in which the worker serves nobody.
    pub fn latest(&self) -> String {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let now = runtime::time::now();
        match &*latest {
            Some((taken, share)) if now.saturating_duration_since(*taken) < MAX_AGE => share.clone(),
            _ => latest.insert((now, self.read())).1.clone(),
        }
    }

    /// The share since the start, 0 to 1, or why there is none.
    fn read(&self) -> String {
        let share = match &self.start {
            None => Err("no interface".to_owned()),
            Some(Err(error)) => Err(error.clone()),
            Some(Ok((interface, start))) => Packets::read(interface).map(|now| {
                let all = now.all.saturating_sub(start.all);
                let by_busy_polls = now.by_busy_polls.saturating_sub(start.by_busy_polls);
                // At most 1, although packets come between the two readings.
                if all == 0 { 0.0 } else { (by_busy_polls as f64 / all as f64).min(1.0) }
            }),
        };
        share.map_or_else(|reason| format!("none ({reason})"), |share| format!("{share:.3}"))
    }
}

#[cfg(test)]
mod tests {
    use policies::controller::{PollInterval, QueueSettings, Reason};

    use super::*;

    #[test]
    fn the_fields_of_a_queue_are_words_without_spaces() {
        let watchdog = Duration::from_millis(2);
        let timed = QueueSettings::timed(Duration::from_micros(40), watchdog, Reason::ManyPackets);
        assert_eq!(
            queue_fields(&QueueStatus::new(&timed)),
            " mode=timed grace_time_us=2000 poll_interval_us=40 spin_us=0 why=many-packets"
        );
        let fixed = QueueSettings::fixed(PollInterval::default());
        assert_eq!(
            queue_fields(&QueueStatus::new(&fixed)),
            " mode=grace grace_time_us=30 spin_us=0 why=fixed"
        );
    }
}
