//! The echo server on Lull.

use std::io;
use std::net::TcpListener as StdListener;
use std::time::{Duration, Instant};

use futures_util::{AsyncBufReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use runtime::{Builder, WorkerReport};

use super::spec::{EchoServerSpec, RequestCounter};

/// Serves until the process is killed. Calls `ready` with what the worker runs, and why it runs
/// something else than the requested policy.
pub(super) fn serve(
    listener: StdListener,
    spec: &EchoServerSpec,
    ready: impl FnOnce(String, Vec<String>) -> io::Result<()>,
) -> io::Result<()> {
    let (shape, work) = (spec.shape, spec.work);
    builder(spec).build().map_err(io::Error::other)?.block_on(async {
        let serving = TcpListener::from_std(listener)?.serve(move |mut stream: TcpStream| async move {
            // Fails only if the connection has been closed.
            let _ = stream.set_nodelay(true);
            let mut requests = RequestCounter::new(shape);
            while let Ok(length @ 1..) = stream.fill_buf().await.map(<[u8]>::len) {
                stream.consume_unpin(length);
                compute(work);
                if stream.write_all(requests.replies(length)).await.is_err() {
                    break;
                }
            }
        })?;
        report(ready)?;
        std::future::pending::<()>().await;
        drop(serving);
        Ok(())
    })
}

pub(super) fn builder(spec: &EchoServerSpec) -> Builder {
    let usual = || Builder::new().ignore_environment().workers(1);
    spec.network.as_ref().map_or_else(usual, |network| network.builder(&[spec.core]))
}

/// What the first worker runs.
pub(crate) fn worker_report() -> io::Result<WorkerReport> {
    runtime::reports().into_iter().next().ok_or_else(|| io::Error::other("the runtime reports no worker"))
}

pub(super) fn report(ready: impl FnOnce(String, Vec<String>) -> io::Result<()>) -> io::Result<()> {
    let report = worker_report()?;
    // Values that the host keeps are worth a note, too: a comparison with them is not one of the
    // controller.
    ready(report.running.to_string(), [report.steps_down, report.notes].concat())
}

fn compute(time: Duration) {
    if time > Duration::ZERO {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}
