//! The server's loop.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use policies::{Cpus, host};
use servers::memcached::Config;
use servers::memcached::sessions::Sessions;

use super::connections::{Connections, Endpoint};
use super::frame_socket::{FrameSender, FrameSocket};
use super::link::FrameSink;
use super::queue_poller::QueuePoller;
use super::spec::{PORT, UserLevelServerReady, UserLevelServerSpec};
use super::xdp_program::{XdpError, XdpProgram};
use crate::Error;

impl FrameSink for FrameSender {
    #[inline]
    fn has_room(&mut self) -> bool {
        FrameSender::has_room(self)
    }

    #[inline]
    fn write<R>(&mut self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        FrameSender::write(self, length, write)
    }
}

/// Serves until standard input is closed. Calls `report` when it listens, when it serves or can't, and at the end.
pub(crate) fn serve(
    spec: &UserLevelServerSpec,
    report: impl Fn(&UserLevelServerReady) -> io::Result<()>,
) -> Result<(), Error> {
    // Before the core is taken: it has a core to itself.
    let stop = stop_at_end_of_input();
    Cpus::one(spec.core).pin(None)?;
    let config = Config {
        memory: if spec.memory > 0 { spec.memory } else { Config::default().memory },
        ..Config::default()
    };
    let sessions = Sessions::new(&config)?;
    let interface = host::interface(&spec.interface)?;
    let opened = FrameSocket::open(interface.index).and_then(|socket| {
        let program = XdpProgram::attach(interface.index, PORT, socket.as_raw_fd())?;
        Ok((socket, program))
    });
    let (mut socket, _program) = match opened {
        Ok(opened) => opened,
        Err(XdpError { step, needs, source }) => {
            return Ok(report(&UserLevelServerReady::Refused {
                reason: format!("can't {step}: {source}; it needs {needs}"),
            })?);
        }
    };
    let poller = QueuePoller::listen(spec.address)?;
    report(&UserLevelServerReady::Listens)?;
    let napis = interface.queues.iter().filter_map(|queue| queue.napi.as_ref());
    if let Err(error) = poller.begin(&napis.map(|napi| napi.id).collect::<Vec<_>>()) {
        return Ok(report(&UserLevelServerReady::Refused {
            reason: format!("can't busy-poll the interface's queue: {error}"),
        })?);
    }
    let endpoint = Endpoint {
        address: spec.address,
        prefix_length: spec.prefix_length,
        port: PORT,
        hardware: spec.hardware,
    };
    let mut connections = Connections::new(endpoint, &sessions, &mut socket.sender);
    report(&UserLevelServerReady::Serves)?;
    let epoch = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        socket.flush()?;
        poller.poll()?;
        let now = smoltcp::time::Instant::from_micros(
            i64::try_from(epoch.elapsed().as_micros()).unwrap_or(i64::MAX),
        );
        while socket.receive(|frame, sender| connections.receive(frame, sender, now)) {}
        connections.look_after_one(&mut socket.sender, now);
    }
    Ok(report(&UserLevelServerReady::Ended(socket.lost_frames()))?)
}

/// A flag that a thread sets when standard input is closed.
fn stop_at_end_of_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    thread::spawn(move || {
        // An error is an end, too.
        while matches!(io::stdin().read(&mut [0; 64]), Ok(1..)) {}
        stopped.store(true, Ordering::Relaxed);
    });
    stop
}
