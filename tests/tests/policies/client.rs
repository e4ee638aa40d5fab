//! A client under kernel polling, such as a proxy or a load generator, on the two-namespace
//! testbed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use lab::testbed::{CLIENT_ADDRESS, SERVER_INTERFACE};
use net::TcpStream;
use policies::counters::{Delta, Snapshot};
use policies::{Cpus, GraceTime, Policy, host};
use runtime::{Builder, DriverKind};
use tests::testbed::{enter, preempt_other_programs, server_builder};
use tests::testbed_test;

use super::echo::server::EchoServer;

const CONNECTIONS: usize = 24;
/// What a client computes for each reply: so long that it is never idle, and a batch still takes
/// less than the suspend timeout of 20 ms.
const WORK: Duration = Duration::from_micros(200);
const MESSAGE: usize = 64;

/// Sends requests on all connections in a closed loop. Returns how many, and what the interface
/// counted meanwhile.
async fn run_closed_loop(address: SocketAddr, time: Duration) -> (u64, Delta) {
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        streams.push(stream);
    }
    let interface = host::interface(SERVER_INTERFACE).unwrap();
    let before = Snapshot::take(&interface).unwrap();
    let end = Instant::now() + time;
    let clients: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            runtime::spawn(async move {
                let mut requests = 0;
                let mut buffer = [0; MESSAGE];
                while Instant::now() < end {
                    stream.write_all(&[b'.'; MESSAGE]).await.unwrap();
                    stream.flush().await.unwrap();
                    stream.read_exact(&mut buffer).await.unwrap();
                    requests += 1;
                    let replied = Instant::now();
                    while replied.elapsed() < WORK {
                        std::hint::spin_loop();
                    }
                }
                requests
            })
        })
        .collect();
    let mut requests = 0;
    for client in clients {
        requests += client.await.unwrap();
    }
    (requests, Snapshot::take(&interface).unwrap().since(&before))
}

#[ignore = "timing"]
#[testbed_test(drivers = "epoll")]
fn replies_wait_for_the_poll_of_a_busy_client_and_do_not_interrupt_it() {
    let testbed = enter(1);
    let echo = Builder::new().ignore_environment().policy(Policy::Vanilla).driver(DriverKind::Epoll);
    let echo = echo.cores(Cpus::one(1)).workers(1);
    // A thread that is started in a namespace stays in it.
    let start = || Ok(EchoServer::start(echo, CLIENT_ADDRESS, Duration::ZERO));
    let server = testbed.client.run(start).unwrap();
    // As short a grace time as this leaves no doubt: what is not suspended is interrupted many
    // times a batch.
    let grace_time = GraceTime::Fixed(Duration::from_micros(20));
    let runtime = server_builder(Policy::KernelPolling, 1).grace_time(grace_time).build().unwrap();
    preempt_other_programs();
    let (requests, delta) = runtime.block_on(run_closed_loop(server.address, Duration::from_secs(1)));
    assert!(requests > 1000, "only {requests} requests");
    // What polls did not bring, an interrupt or the grace timer brought, between the requests of a
    // batch. Nearly all come by polls, on a machine that others use too a third. Without suspension
    // each batch would have one poll.
    let share = delta.busy_poll_share();
    assert!(share > 0.2, "busy polls brought only {share:.3} of the packets");
}
