//! Datagrams under kernel polling: their queue is polled as that of connections is.

use std::net::{SocketAddr, UdpSocket as Std};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE, Testbed};
use net::{UdpSocket, UdpSteering};
use policies::controller::{ForcedSettings, QueueSettings, Reason};
use policies::counters::Snapshot;
use policies::{Policy, host};
use runtime::Runtime;
use runtime::policy::QueueMode;
use tests::memcached::wait_until;
use tests::testbed::{enter, server_builder, server_runtime};
use tests::testbed_test;

use super::echo::server::{Connection, EchoServer};

/// All of them come to one of two queues once in 2^31 rounds.
const CLIENTS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of datagrams over which the share of busy polls is taken.
const ENOUGH: usize = 1_000;

/// Clients on the testbed's other side, each with one datagram in flight, until this is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(testbed: &Testbed, server: SocketAddr) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let spawn = || {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            std::thread::spawn(move || {
                let socket = Std::bind("0.0.0.0:0").unwrap();
                socket.connect(server).unwrap();
                // A datagram may be lost.
                socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                let mut buffer = [0; 64];
                while !stop.load(Ordering::Relaxed) {
                    let _ = socket.send(b"datagram");
                    answered.fetch_add(usize::from(socket.recv(&mut buffer).is_ok()), Ordering::Relaxed);
                }
            })
        };
        // Threads of a namespace's thread are in that namespace.
        let threads = testbed.client.run(|| Ok((0..CLIENTS).map(|_| spawn()).collect())).unwrap();
        Self { stop, answered, threads }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Serves the load on one worker until the queue is in timed mode, and some datagrams more. Returns
/// the modes that it was in, and the share of packets that busy polling received in the end.
fn serve_until_timed(testbed: &Testbed, runtime: Runtime) -> (Vec<QueueMode>, f64) {
    runtime.block_on(async {
        let socket = UdpSocket::bind((SERVER_ADDRESS, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        drop(runtime::spawn(count(socket, Arc::new(Mutex::new(vec![(0, 0)])))));
        let load = Load::start(testbed, address);
        let interface = host::interface(SERVER_INTERFACE).unwrap();
        let begun = Instant::now();
        let mut modes = Vec::new();
        while modes.last() != Some(&QueueMode::Timed) && begun.elapsed() < PATIENCE {
            runtime::sleep(Duration::from_millis(5)).await;
            modes.push(runtime::reports()[0].queue.unwrap().mode);
            modes.dedup();
        }
        let before = Snapshot::take(&interface).unwrap();
        let (begun, answered_before) = (Instant::now(), load.answered());
        let answered = || load.answered() - answered_before;
        while answered() < ENOUGH && begun.elapsed() < PATIENCE {
            runtime::sleep(Duration::from_millis(5)).await;
        }
        let delta = Snapshot::take(&interface).unwrap().since(&before);
        assert!(answered() >= ENOUGH, "only {} datagrams are answered", answered());
        (modes, delta.busy_poll_share())
    })
}

#[testbed_test(drivers = "epoll, uring")]
fn a_queue_that_brings_only_datagrams_is_polled() {
    let testbed = enter(1);
    // Polling is chosen at any load here: what is not chosen was not seen.
    let (modes, share) = serve_until_timed(&testbed, server_runtime(Policy::KernelPolling, 1));
    assert_eq!(modes.last(), Some(&QueueMode::Timed), "{modes:?}");
    // The kernel doesn't count what the last poll of an enter brings (`busy_poll_stop`), on
    // io_uring half of a full look.
    assert!(share > 0.1, "busy polls brought only {share:.3} of the packets");
}

/// How many datagrams each worker has received, and how many of them by a socket whose NAPI is not
/// the worker's.
type Received = Arc<Mutex<Vec<(usize, usize)>>>;

/// Echoes, and counts.
async fn count(socket: UdpSocket, received: Received) {
    let mut buffer = [0; 64];
    loop {
        // An error is that of an earlier answer, to a client that has gone.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let foreign = runtime::io::incoming_napi_id(&socket) != runtime::io::own_napi();
        {
            let mut received = received.lock().unwrap();
            let counts = &mut received[runtime::current_worker()];
            counts.0 += 1;
            counts.1 += usize::from(foreign);
        }
        let _ = socket.send_to(&buffer[..length], from).await;
    }
}

#[testbed_test(drivers = "epoll, uring")]
fn with_two_queues_each_datagram_is_received_by_the_worker_of_its_queue() {
    let testbed = enter(2);
    let runtime = server_runtime(Policy::KernelPolling, 2);
    // A socket's NAPI is that of its first datagram, so that each round tells of one datagram a
    // worker.
    for _ in 0..4 {
        let received: Received = Arc::new(Mutex::new(vec![(0, 0); 2]));
        let counted = Arc::clone(&received);
        runtime.block_on(async {
            let socket = UdpSocket::bind((SERVER_ADDRESS, 0)).unwrap();
            let address = socket.local_addr().unwrap();
            let serving = socket.serve(move |socket| count(socket, Arc::clone(&counted))).unwrap();
            assert_eq!((serving.steering(), serving.local_addr()), (UdpSteering::Queue, address));
            let load = Load::start(&testbed, address);
            let counts = || received.lock().unwrap().clone();
            let enough =
                |counts: Vec<(usize, usize)>| counts.iter().all(|(received, _)| *received >= CLIENTS);
            // A worker whose core is taken by other programs begins late: the other has received
            // much by then.
            let begun = Instant::now();
            while !enough(counts()) && begun.elapsed() < PATIENCE {
                runtime::sleep(Duration::from_millis(5)).await;
            }
            drop(load);
            let counts = counts();
            assert!(enough(counts.clone()) && counts.iter().all(|(_, foreign)| *foreign == 0), "{counts:?}");
            serving.stop().await;
            assert!(UdpSocket::bind(address).is_ok(), "the address is still taken");
        });
    }
}

/// They complete nothing in the worker: its waits only sleep and poll.
#[ignore = "timing"]
#[testbed_test(drivers = "epoll, uring")]
fn other_programs_packets_on_a_polled_queue_arrive_though_the_worker_gets_none() {
    const AT_ONCE: usize = 100;
    let testbed = enter(1);
    let forced = ForcedSettings::default();
    let interval = Duration::from_millis(1);
    let watchdog = QueueSettings::LONGEST_WATCHDOG;
    let builder = server_builder(Policy::KernelPolling, 1).force_queue_settings(forced.clone());
    let mut server = EchoServer::start(builder, SERVER_ADDRESS, Duration::ZERO);
    let mut connection = Connection::open_on(&testbed, server.address);
    forced.choose(QueueSettings::timed(interval, watchdog, Reason::Fixed));
    wait_until("the queue is in timed mode", || {
        connection.request();
        server.report().queue.unwrap().mode == QueueMode::Timed
    });
    let sink = socket2::Socket::from(Std::bind((SERVER_ADDRESS, 0)).unwrap());
    sink.set_recv_buffer_size(1 << 20).unwrap();
    let sink = Std::from(sink);
    let address = sink.local_addr().unwrap();
    sink.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let sending = testbed.client.run(|| {
        Ok(std::thread::spawn(move || {
            let socket = Std::bind("0.0.0.0:0").unwrap();
            let send = |index: &usize| {
                if index.is_multiple_of(AT_ONCE) {
                    std::thread::sleep(interval);
                }
                socket.send_to(b"datagram", address).is_ok()
            };
            (0..AT_ONCE * 300).filter(send).count()
        }))
    });
    let mut received = 0;
    while sink.recv(&mut [0; 64]).is_ok() {
        received += 1;
    }
    let sent = sending.unwrap().join().unwrap();
    println!("{received} of {sent} datagrams");
    assert!(received * 10 >= sent * 9, "{received} of {sent} datagrams");
}
