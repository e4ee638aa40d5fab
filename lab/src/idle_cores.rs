//! Keeps idle cores awake during an experiment.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

/// Forbids deep idle states while it lives: a latency of 0 µs, requested from the kernel's power
/// management (`/dev/cpu_dma_latency`, PM QoS). Idle cores poll for work then.
///
/// A core that sleeps takes time to wake up, some 1 to 100 µs on hardware, and on a virtual machine
/// an exit to the hypervisor and back. That would be part of every latency below saturation, and
/// differs from machine to machine. The kernel drops the request when the file is closed, also
/// after a crash.
#[derive(Debug)]
pub struct AwakeCores(#[expect(dead_code, reason = "holds the request")] File);

impl AwakeCores {
    pub fn request() -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency")?;
        file.write_all(&0i32.to_ne_bytes())?;
        Ok(Self(file))
    }
}
