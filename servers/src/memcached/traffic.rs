//! What busy polling has done for the server's interface since the start.

use policies::counters::Snapshot;
use policies::host;

/// An interface, and its counters as they were at the start.
#[derive(Debug)]
pub struct Traffic(Option<Result<(host::Interface, Snapshot), String>>);

impl Traffic {
    /// From now on.
    pub fn on(interface: Option<&str>) -> Self {
        Self(interface.map(|name| {
            let interface = host::interface(name).map_err(|error| error.to_string())?;
            let snapshot = Snapshot::take(&interface).map_err(|error| error.to_string())?;
            Ok((interface, snapshot))
        }))
    }

    /// The share of the interface's packets that a busy poll got, 0 to 1; `None` without an interface.
    pub fn busy_poll_share(&self) -> Result<Option<f64>, String> {
        match &self.0 {
            None => Ok(None),
            Some(Err(error)) => Err(error.clone()),
            Some(Ok((interface, start))) => {
                let now = Snapshot::take(interface).map_err(|error| error.to_string())?;
                Ok(Some(now.since(start).busy_poll_share()))
            }
        }
    }
}
