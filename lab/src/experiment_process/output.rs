//! Messages to the lab, on standard output.

use std::io::{self, Write};

use serde::Serialize;

/// Sends a message: one line of JSON.
pub(super) fn send(message: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    writeln!(out)?;
    out.flush()
}
