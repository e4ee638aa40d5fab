//! An echo service on the server's side of the testbed, and clients of it.

pub mod server;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE, Testbed};
use net::{TcpListener, TcpStream};
use policies::counters::{Delta, Snapshot};
use policies::host;
use runtime::Runtime;
use runtime::io::{AsyncFd, Direction, SourceKind};
use tests::closed_loop::Load;

/// Serves within a runtime: echoes each request after computing for `work`.
pub fn serve(work: Duration) -> (SocketAddr, net::Serving) {
    serve_with(SERVER_ADDRESS, move || {
        let begun = Instant::now();
        while begun.elapsed() < work {}
    })
}

/// Echoes each request after `compute`.
fn serve_with(address: Ipv4Addr, compute: impl Fn() + Copy + Send + 'static) -> (SocketAddr, net::Serving) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = listener.serve(move |mut stream: TcpStream| async move {
        let mut buffer = [0; 1024];
        stream.set_nodelay(true).unwrap();
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            compute();
            if stream.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    });
    (address, serving.unwrap())
}

/// Echoes on the server's side while `client` runs on the other side and `beside` on the server's
/// worker.
pub fn echo_with<T: Send + 'static>(
    testbed: &Arc<Testbed>,
    runtime: Runtime,
    beside: impl Future<Output = ()> + 'static,
    client: impl FnOnce(SocketAddr) -> T + Send + 'static,
) -> (T, Delta, net::Alignment) {
    let testbed = Arc::clone(testbed);
    runtime.block_on(async move {
        let (address, serving) = serve(Duration::ZERO);
        let interface = host::interface(SERVER_INTERFACE).unwrap();
        let before = Snapshot::take(&interface).unwrap();
        let beside = runtime::spawn(beside);
        let (done, finished) = std::os::unix::net::UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let result = testbed.client.run(|| Ok(client(address))).unwrap();
            drop(done);
            result
        });
        finished.set_nonblocking(true).unwrap();
        AsyncFd::new(finished, SourceKind::Other).unwrap().ready(Direction::Read).await;
        beside.abort();
        let delta = Snapshot::take(&interface).unwrap().since(&before);
        (thread.join().unwrap(), delta, serving.alignment())
    })
}

/// Closed-loop requests of so many connections, at least one on each, in the calling thread's
/// namespace. Returns how many.
pub fn hammer(address: SocketAddr, connections: usize, time: Duration) -> u64 {
    let load = Load::start_here(address, connections);
    std::thread::sleep(time);
    load.end()
}
