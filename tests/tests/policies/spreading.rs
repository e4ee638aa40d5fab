//! A card whose queues no worker owns: no interface is named, as on a first deployment.

use std::io::Read;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::AsyncWriteExt;
use lab::testbed::SERVER_ADDRESS;
use net::TcpListener;
use runtime::Builder;
use tests::isolated::driver;
use tests::testbed::enter_plain;
use tests::testbed_test;

const WORKERS: usize = 4;
const CONNECTIONS: usize = 32;

/// How many of the connections each worker serves.
fn served_by_each(queues: u32) -> Vec<usize> {
    let testbed = enter_plain(queues);
    let mut runtime = Builder::new().ignore_environment().workers(WORKERS).driver(driver()).build().unwrap();
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
    for queues in [1, 2] {
        assert_eq!(served_by_each(queues), [CONNECTIONS / WORKERS; WORKERS], "{queues} queues");
    }
}
