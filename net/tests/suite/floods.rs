//! One connection, socket or listener that always has something to do does not stop timers.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use net::{TcpListener, UdpSocket};

use crate::common::local;

/// How long a flood that nobody stops goes on.
const ENDLESS: Duration = Duration::from_secs(60);

/// Repeats something that never waits until a timer ends it, and asserts that the timer does.
async fn assert_timer_ends(flood: impl AsyncFn() + 'static) {
    let stop = Rc::new(Cell::new(false));
    let stopped = Rc::clone(&stop);
    let begun = Instant::now();
    let flood = runtime::spawn(async move {
        let mut count = 0;
        while !stopped.get() && begun.elapsed() < ENDLESS {
            flood().await;
            count += 1;
        }
        (count, stopped.get())
    });
    runtime::sleep(Duration::from_millis(10)).await;
    stop.set(true);
    let (count, was_stopped) = flood.await.unwrap();
    assert!(count > 0 && was_stopped, "the timer waited for the end of the flood");
}

#[runtime::test]
async fn a_flood_of_connections_does_not_stop_timers() {
    let listener = TcpListener::bind(local()).unwrap();
    let address = listener.local_addr().unwrap();
    // Each connection is in the backlog when it is accepted, so on epoll nothing ever waits.
    assert_timer_ends(async move || {
        let client = std::net::TcpStream::connect(address).unwrap();
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(listener.accept().await.unwrap());
    })
    .await;
}

#[runtime::test]
async fn a_flood_of_datagrams_does_not_stop_timers() {
    let socket = UdpSocket::bind(local()).unwrap();
    let address = socket.local_addr().unwrap();
    // Over loopback a datagram has arrived when its send returns, so nothing ever waits.
    assert_timer_ends(async move || {
        socket.send_to(b"more", address).await.unwrap();
        socket.recv_from(&mut [0; 8]).await.unwrap();
    })
    .await;
}
