//! An echo server on a thread, which a test can ask and stop.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use policies::host::scheduler;
use runtime::io::{AsyncFd, Direction, SourceKind};
use runtime::{Builder, WorkerReport};
pub use tests::closed_loop::{Connection, ECHO, Load, quantile};
pub use tests::testbed::preempt_on_client_core;
use tests::testbed::preempt_other_programs;

/// A server with one worker, real-time. Dropping it drops its runtime.
pub struct EchoServer {
    pub address: SocketAddr,
    control: UnixStream,
    reports: Receiver<WorkerReport>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// Starts one in the calling thread's network namespace. It computes for `work` with each
    /// request.
    pub fn start(builder: Builder, address: Ipv4Addr, work: Duration) -> Self {
        let (control, asked) = UnixStream::pair().unwrap();
        asked.set_nonblocking(true).unwrap();
        let loops = loops_within(work);
        let (started, starts) = mpsc::channel();
        let (send_report, reports) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // The supervisor must not inherit that, as it would from the client's thread.
            scheduler::set_fifo_priority(rustix::thread::gettid(), 0).unwrap();
            let runtime = builder.build().unwrap();
            preempt_other_programs();
            runtime.block_on(async move {
                let (address, _serving) = super::serve_with(address, move || compute(loops));
                started.send(address).unwrap();
                let asked = AsyncFd::new(asked, SourceKind::Other).unwrap();
                let mut byte = [0];
                while let Ok(1) = asked.io(Direction::Read, |mut stream| stream.read(&mut byte)).await {
                    send_report.send(runtime::reports().remove(0)).unwrap();
                }
            });
        });
        Self { address: starts.recv().unwrap(), control, reports, thread: Some(thread) }
    }

    /// What is in effect on the worker.
    pub fn report(&mut self) -> WorkerReport {
        self.control.write_all(b"?").unwrap();
        self.reports.recv_timeout(Duration::from_secs(60)).unwrap()
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        // Ends the loop that answers with reports.
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
    }
}

/// A fixed number of loops, so that an interrupt on top of them takes time of the core.
fn compute(loops: u32) {
    for step in 0..loops {
        black_box(step);
    }
}

/// How many loops of [`compute`] take a time on this machine.
fn loops_within(time: Duration) -> u32 {
    const LOOPS: u32 = 20_000;
    let measure = || {
        let start = Instant::now();
        compute(LOOPS);
        start.elapsed()
    };
    // The shortest was not interrupted.
    let shortest = (0..9).map(|_| measure()).min().unwrap();
    (f64::from(LOOPS) * time.as_secs_f64() / shortest.as_secs_f64()) as u32
}
