//! Copying between streams within the kernel.

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::copy;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tests_macros::isolated;

use crate::common::{drivers, one_worker, with_std_peer};

const LIMIT: Duration = Duration::from_secs(30);

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

#[runtime::test]
async fn everything_is_copied_to_a_slow_reader_after_what_was_written_before() {
    let (mut from, mut source) = with_std_peer().await;
    let (mut to, mut target) = with_std_peer().await;
    let bytes = pattern(3 << 20);
    source.write_all(&bytes[..5000]).unwrap();
    // Buffered by the stream.
    assert!(!runtime::timeout(LIMIT, from.fill_buf()).await.unwrap().unwrap().is_empty());
    from.consume_unpin(1);
    to.write_all(b"before").await.unwrap();
    let sent = bytes[5000..].to_vec();
    let writing = thread::spawn(move || source.write_all(&sent).unwrap());
    let reading = thread::spawn(move || {
        let (mut received, mut buffer) = (Vec::new(), vec![0; 50_000]);
        while received.len() < 200_000 {
            thread::sleep(Duration::from_millis(1));
            let length = target.read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..length]);
        }
        target.read_to_end(&mut received).unwrap();
        received
    });
    let copied = runtime::timeout(LIMIT, copy(&mut from, &mut to)).await.expect("the copy hangs").unwrap();
    assert_eq!(copied, bytes.len() as u64 - 1);
    assert_eq!(copy(&mut from, &mut to).await.unwrap(), 0);
    to.write_all(b"after").await.unwrap();
    to.close().await.unwrap();
    writing.join().unwrap();
    assert!(reading.join().unwrap() == [b"before", &bytes[1..], b"after"].concat());
}

#[runtime::test]
async fn a_copy_that_is_dropped_at_random_points_loses_no_byte() {
    let (mut from, mut source) = with_std_peer().await;
    let (mut to, mut target) = with_std_peer().await;
    let bytes = pattern(4 << 20);
    let sent = bytes.clone();
    let writing = thread::spawn(move || {
        for piece in sent.chunks(30_000) {
            source.write_all(piece).unwrap();
            thread::sleep(Duration::from_micros(50));
        }
    });
    // So slow that the pipe is not empty most of the time.
    to.set_send_buffer_size(16 << 10).unwrap();
    let reading = thread::spawn(move || {
        let (mut received, mut buffer) = (Vec::new(), vec![0; 50_000]);
        loop {
            match target.read(&mut buffer).unwrap() {
                0 => break received,
                length => received.extend_from_slice(&buffer[..length]),
            }
            thread::sleep(Duration::from_micros(50));
        }
    });
    let (mut random, mut dropped) = (SmallRng::seed_from_u64(21), 0);
    loop {
        let limit = Duration::from_micros(random.random_range(0..2000));
        match runtime::timeout(limit, copy(&mut from, &mut to)).await {
            Ok(copied) => {
                copied.unwrap();
                break;
            }
            Err(_) => dropped += 1,
        }
        if random.random_range(0..4) == 0 {
            let mut buffer = vec![0; random.random_range(1..100_000)];
            let read = runtime::timeout(LIMIT, from.read(&mut buffer)).await.unwrap().unwrap();
            to.write_all(&buffer[..read]).await.unwrap();
        }
    }
    to.close().await.unwrap();
    writing.join().unwrap();
    assert!(reading.join().unwrap() == bytes);
    eprintln!("{dropped} copies were dropped");
    assert!(dropped > 0);
}

#[runtime::test]
async fn a_broken_target_is_an_error_and_the_bytes_stay() {
    let (mut from, mut source) = with_std_peer().await;
    let (mut to, target) = with_std_peer().await;
    rustix::net::sockopt::set_socket_linger(&target, Some(Duration::ZERO)).unwrap();
    drop(target);
    source.write_all(b"hello").unwrap();
    drop(source);
    let error = runtime::timeout(LIMIT, copy(&mut from, &mut to)).await.unwrap().unwrap_err();
    assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind()), "{error}");
    let mut left = Vec::new();
    runtime::timeout(LIMIT, from.read_to_end(&mut left)).await.unwrap().unwrap();
    assert_eq!(left, b"hello");
}

#[test]
#[isolated]
fn without_a_pipe_the_bytes_are_copied() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    for driver in drivers() {
        one_worker(driver).block_on(async {
            let (mut from, mut source) = with_std_peer().await;
            let (mut to, mut target) = with_std_peer().await;
            let before = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: before.maximum }).unwrap();
            let writing = thread::spawn(move || source.write_all(&pattern(300_000)).unwrap());
            let copied = runtime::timeout(LIMIT, copy(&mut from, &mut to)).await.expect("it hangs").unwrap();
            assert_eq!(copied, 300_000);
            setrlimit(Resource::Nofile, before).unwrap();
            writing.join().unwrap();
            drop(to);
            let mut received = Vec::new();
            target.read_to_end(&mut received).unwrap();
            assert!(received == pattern(300_000), "on {driver}");
        });
    }
}
