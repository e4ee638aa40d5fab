//! Streams with the I/O traits of hyper and tokio.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use adapters::Io;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::pair;

type TcpIo = Io<net::TcpStream>;

#[runtime::test]
async fn tokio_copies_between_two_streams() {
    let (client, server) = pair().await;
    let (mut client, server) = (Io::new(client), Io::new(server));
    let (mut reader, mut writer) = tokio::io::split(server);
    let echo = runtime::spawn(async move {
        let copied = tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        writer.shutdown().await.unwrap();
        copied
    });
    client.write_all(&[7; 100_000]).await.unwrap();
    let mut echoed = vec![0; 100_000];
    client.read_exact(&mut echoed).await.unwrap();
    assert!(echoed.iter().all(|byte| *byte == 7));
    client.shutdown().await.unwrap();
    assert_eq!(client.read(&mut echoed).await.unwrap(), 0);
    assert_eq!(echo.await.unwrap(), 100_000);
}

#[runtime::test]
async fn a_read_without_room_does_not_wait() {
    let (client, _server) = pair().await;
    let mut client = Io::new(client);
    assert_eq!(client.read(&mut []).await.unwrap(), 0);
}

#[runtime::test]
async fn a_pending_write_may_come_back_with_another_buffer() {
    let (client, server) = pair().await;
    client.set_send_buffer_size(4096).unwrap();
    server.set_recv_buffer_size(4096).unwrap();
    let mut client = Io::new(client);
    let mut accepted = Vec::new();
    // Until a write has to wait, which has taken nothing then.
    let mut byte = 0_u8;
    loop {
        let buffer = [byte; 10_000];
        let write = poll_fn(|context| {
            Poll::Ready(hyper::rt::Write::poll_write(Pin::new(&mut client), context, &buffer))
        });
        match write.await {
            Poll::Ready(length) => accepted.extend_from_slice(&buffer[..length.unwrap()]),
            Poll::Pending => break,
        }
        byte = byte.wrapping_add(1);
        runtime::yield_now().await;
    }
    // HTTP/2 may now have a more urgent frame, of another length.
    let other = [200; 333];
    let mut server = Io::new(server);
    let reading = runtime::spawn(async move {
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        received
    });
    let length = poll_fn(|context| hyper::rt::Write::poll_write(Pin::new(&mut client), context, &other))
        .await
        .unwrap();
    accepted.extend_from_slice(&other[..length]);
    client.shutdown().await.unwrap();
    let received = reading.await.unwrap();
    assert_eq!(received.len(), accepted.len());
    assert!(received == accepted, "other bytes were sent than those of the writes that were accepted");
}

/// Sends bytes by writes of which many are given up, and receives them by reads of which many are
/// given up. Returns how many were.
async fn cancel_at_random(client: TcpIo, server: TcpIo, rounds: usize, seed: u64) -> usize {
    let accepted = Rc::new(RefCell::new(Vec::new()));
    let given_up = Rc::new(RefCell::new(0));
    let writing = runtime::spawn({
        let (accepted, given_up) = (Rc::clone(&accepted), Rc::clone(&given_up));
        async move {
            let mut random = StdRng::seed_from_u64(seed);
            let mut client = client;
            for round in 0..rounds {
                let buffer = vec![round as u8; random.random_range(1..4000)];
                match poll_some(client.write(&buffer), random.random_range(0..3)).await {
                    Some(length) => accepted.borrow_mut().extend_from_slice(&buffer[..length.unwrap()]),
                    None => *given_up.borrow_mut() += 1,
                }
            }
            client.shutdown().await.unwrap();
        }
    });
    let mut random = StdRng::seed_from_u64(!seed);
    let mut server = server;
    let mut received = Vec::new();
    loop {
        let mut buffer = vec![0; random.random_range(1..3000)];
        match poll_some(server.read(&mut buffer), random.random_range(0..3)).await {
            Some(length) => match length.unwrap() {
                0 => break,
                length => received.extend_from_slice(&buffer[..length]),
            },
            None => *given_up.borrow_mut() += 1,
        }
    }
    writing.await.unwrap();
    assert!(received == *accepted.borrow(), "bytes were lost, doubled or reordered");
    given_up.take()
}

/// Polls a future in some turns of the loop, and then gives it up.
async fn poll_some<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    for _ in 0..=polls {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        runtime::yield_now().await;
    }
    None
}

#[runtime::test]
async fn thousands_of_reads_and_writes_that_are_given_up_lose_nothing() {
    let mut given_up = 0;
    for seed in 0.. {
        let (client, server) = pair().await;
        client.set_send_buffer_size(4096).unwrap();
        server.set_recv_buffer_size(4096).unwrap();
        given_up += cancel_at_random(Io::new(client), Io::new(server), 200, seed).await;
        if given_up > 4000 {
            break;
        }
    }
}
