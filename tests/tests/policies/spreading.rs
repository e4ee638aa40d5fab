//! A card with fewer queues than workers: without a named interface, as on a first deployment, and
//! with it.

use std::io::Read;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::AsyncWriteExt;
use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE};
use net::{TcpListener, UdpSocket};
use runtime::{Builder, Runtime};
use tests::isolated::driver;
use tests::testbed::enter_plain;
use tests::testbed_test;

const WORKERS: usize = 4;
const CONNECTIONS: usize = 32;

fn runtime(names_interface: bool) -> Runtime {
    let builder = Builder::new().ignore_environment().workers(WORKERS).driver(driver());
    let builder = if names_interface { builder.interface(SERVER_INTERFACE) } else { builder };
    builder.build().unwrap()
}

/// How many of the connections each worker serves.
fn served_by_each(queues: u32, names_interface: bool) -> Vec<usize> {
    let testbed = enter_plain(queues);
    let runtime = runtime(names_interface);
    let served = Arc::new(Mutex::new(vec![0; WORKERS]));
    let counts = Arc::clone(&served);
    runtime.block_on(async {
        let listener = TcpListener::bind((SERVER_ADDRESS, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = listener.serve(move |mut stream: net::TcpStream| {
            let napi = runtime::io::incoming_napi_id(&stream);
            assert_ne!(napi, 0, "the card has NAPIs");
            counts.lock().unwrap()[runtime::current_worker()] += 1;
            async move {
                let _ = stream.write_all(b"x").await;
                runtime::sleep(Duration::from_secs(60)).await;
            }
        });
        let connect_all = move || {
            let connect = || {
                let mut stream = TcpStream::connect(address)?;
                stream.read_exact(&mut [0])?;
                Ok(stream)
            };
            (0..CONNECTIONS).map(|_| connect()).collect::<std::io::Result<Vec<_>>>()
        };
        // One after the other: each is served before the next.
        let clients = runtime::spawn_blocking(move || testbed.client.run(connect_all).unwrap()).await;
        drop((clients, serving));
    });
    served.lock().unwrap().clone()
}

#[testbed_test(drivers = "epoll, uring")]
fn connections_over_a_card_with_fewer_queues_than_workers_are_spread_over_all_workers() {
    for (queues, names_interface) in [(1, false), (2, false), (1, true)] {
        let served = served_by_each(queues, names_interface);
        assert_eq!(served, [CONNECTIONS / WORKERS; WORKERS], "{queues} queues, named: {names_interface}");
    }
    // Which queue a connection comes by is a hash's choice.
    let served = served_by_each(2, true);
    assert!(served.iter().all(|count| *count > 0), "{served:?}");
}

#[testbed_test(drivers = "epoll, uring")]
fn datagrams_over_a_card_with_fewer_queues_than_workers_are_spread_over_all_workers() {
    /// A hash leaves out a worker once in 2^24 rounds.
    const CLIENTS: usize = 64;
    for (queues, names_interface) in [(1, false), (2, false), (1, true), (2, true)] {
        let testbed = enter_plain(queues);
        let runtime = runtime(names_interface);
        let received = Arc::new(Mutex::new([0; WORKERS]));
        let counts = Arc::clone(&received);
        runtime.block_on(async {
            let socket = UdpSocket::bind((SERVER_ADDRESS, 0)).unwrap();
            let address = socket.local_addr().unwrap();
            let serving = socket.serve(move |socket: UdpSocket| {
                let counts = Arc::clone(&counts);
                async move {
                    let mut buffer = [0; 16];
                    while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
                        counts.lock().unwrap()[runtime::current_worker()] += 1;
                        let _ = socket.send_to(&buffer[..length], client).await;
                    }
                }
            });
            let ask_all = move || {
                let ask = || {
                    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
                    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
                    socket.send_to(b"x", address)?;
                    socket.recv(&mut [0])
                };
                (0..CLIENTS).map(|_| ask()).collect::<std::io::Result<Vec<_>>>()
            };
            runtime::spawn_blocking(move || testbed.client.run(ask_all).unwrap()).await.unwrap();
            serving.unwrap().stop().await;
        });
        let received = *received.lock().unwrap();
        assert!(received.iter().all(|count| *count > 0), "{queues} queues: {received:?}");
    }
}
