//! The share of an interface's packets that busy polling received.

use policies::Error;
use policies::counters::{RxPackets, busy_poll_rx_packets};
use policies::host::{self, Interface};

/// An interface and its counters at the server's start, or why they cannot be read.
#[derive(Debug)]
pub struct BusyPollShare(Option<Result<(Interface, Packets), String>>);

/// Packets received so far.
#[derive(Debug, Clone, Copy)]
struct Packets {
    all: u64,
    by_busy_polls: u64,
}

impl Packets {
    fn read(interface: &Interface) -> Result<Self, String> {
        let all = RxPackets::read(interface).map_err(|error: Error| error.to_string())?.total();
        let by_busy_polls = busy_poll_rx_packets().map_err(|error| error.to_string())?;
        Ok(Self { all, by_busy_polls })
    }

    /// Between 0 and 1, although packets come between the two readings.
    fn busy_poll_share_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let by_busy_polls = self.by_busy_polls.saturating_sub(before.by_busy_polls);
        if all == 0 { 0.0 } else { (by_busy_polls as f64 / all as f64).min(1.0) }
    }
}

impl BusyPollShare {
    pub fn start(interface: Option<&str>) -> Self {
        Self(interface.map(|name| {
            let interface = host::interface(name).map_err(|error| error.to_string())?;
            let packets = Packets::read(&interface)?;
            Ok((interface, packets))
        }))
    }

    /// The value for `stats policy`: the share since the start, 0 to 1, or why there is none.
    pub fn display(&self) -> String {
        match &self.0 {
            None => "none (no interface)".to_owned(),
            Some(Err(error)) => format!("none ({error})"),
            Some(Ok((interface, start))) => match Packets::read(interface) {
                Ok(now) => format!("{:.3}", now.busy_poll_share_since(start)),
                Err(error) => format!("none ({error})"),
            },
        }
    }
}
