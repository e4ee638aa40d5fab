//! The share of an interface's packets that busy polling received.

use policies::counters::Snapshot;
use policies::host;

/// An interface and its counters at the server's start, or why they cannot be read.
#[derive(Debug)]
pub struct BusyPollShare(Option<Result<(host::Interface, Snapshot), String>>);

impl BusyPollShare {
    /// Starts counting on an interface, if there is one.
    pub fn start(interface: Option<&str>) -> Self {
        Self(interface.map(|name| {
            let interface = host::interface(name).map_err(|error| error.to_string())?;
            let snapshot = Snapshot::take(&interface).map_err(|error| error.to_string())?;
            Ok((interface, snapshot))
        }))
    }

    /// The value for `stats policy`: the share since the start, 0 to 1, or why there is none.
    pub fn display(&self) -> String {
        match &self.0 {
            None => "none (no interface)".to_owned(),
            Some(Err(error)) => format!("none ({error})"),
            Some(Ok((interface, start))) => match Snapshot::take(interface) {
                Ok(now) => format!("{:.3}", now.since(start).busy_poll_share()),
                Err(error) => format!("none ({error})"),
            },
        }
    }
}
