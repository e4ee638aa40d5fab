//! Reads that wake their task when the last byte has come: whole, given up, cut off.

use std::future::Future;
use std::io::{ErrorKind, Write};
use std::pin::pin;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::TcpStream;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::common::{pair, poll_times, with_std_peer};

const LIMIT: Duration = Duration::from_secs(30);
/// Below and above what the ring's receive waits for, and more than the receive buffer holds at first.
const SIZES: [usize; 4] = [1, 300, 64 << 10, 1 << 20];

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// Writes bytes in pieces of this size, with a pause after each, and returns the socket.
fn dribble(mut peer: std::net::TcpStream, bytes: Vec<u8>, piece: usize) -> JoinHandle<std::net::TcpStream> {
    peer.set_nodelay(true).unwrap();
    thread::spawn(move || {
        for piece in bytes.chunks(piece) {
            peer.write_all(piece).unwrap();
            thread::sleep(Duration::from_micros(10));
        }
        peer
    })
}

async fn count_polls<F: Future>(future: F) -> (F::Output, usize) {
    let (mut future, mut polls) = (pin!(future), 0);
    let output = std::future::poll_fn(|context| {
        polls += 1;
        future.as_mut().poll(context)
    });
    let output = output.await;
    (output, polls)
}

#[runtime::test]
async fn a_value_that_comes_in_pieces_is_read_whole_and_what_follows_it_is_left() {
    // The second one byte by byte.
    for (size, pieces) in SIZES.into_iter().zip([1, 300, 50, 100]) {
        let (mut stream, peer) = with_std_peer().await;
        let value = pattern(size);
        let writing = dribble(peer, [&value[..], b"next"].concat(), size.div_ceil(pieces));
        let read = runtime::timeout(LIMIT, stream.read_exact_owned(vec![0; size])).await;
        assert!(read.expect("the value was not seen").unwrap() == value, "{size} bytes");
        let read = runtime::timeout(LIMIT, stream.read_exact_owned(vec![0; 4])).await;
        assert_eq!(read.unwrap().unwrap(), b"next");
        // Reads of other kinds go on.
        let mut peer = writing.join().unwrap();
        peer.write_all(b"last").unwrap();
        let mut last = [0; 4];
        runtime::timeout(LIMIT, stream.read_exact(&mut last)).await.unwrap().unwrap();
        assert_eq!(&last, b"last");
    }
}

#[runtime::test]
async fn what_the_stream_has_buffered_comes_first() {
    let (mut stream, mut peer) = with_std_peer().await;
    let value = pattern(200_000);
    peer.write_all(&value[..1000]).unwrap();
    let lent = runtime::timeout(LIMIT, stream.fill_buf()).await.unwrap().unwrap();
    assert_eq!(lent, &value[..1000]);
    stream.consume_unpin(100);
    let writing = dribble(peer, value[1000..].to_vec(), 10_000);
    let read = runtime::timeout(LIMIT, stream.read_exact_owned(vec![0; 50])).await;
    assert_eq!(read.unwrap().unwrap(), &value[100..150]);
    let read = runtime::timeout(LIMIT, stream.read_exact_owned(vec![0; 199_850])).await;
    assert!(read.unwrap().unwrap() == value[150..]);
    assert!(stream.read_exact_owned(Vec::new()).await.unwrap().is_empty());
    writing.join().unwrap();
}

/// Writes bytes in 256 pieces, each in a turn of the worker.
async fn write_in_turns(writer: &mut TcpStream, bytes: &[u8]) {
    for piece in bytes.chunks(bytes.len() / 256) {
        writer.write_all(piece).await.unwrap();
        runtime::sleep(Duration::from_nanos(1)).await;
    }
}

#[runtime::test]
async fn the_task_is_woken_for_a_tenth_of_the_pieces_at_most() {
    for size in [32 << 10, 1 << 20] {
        let (mut stream, mut writer) = pair().await;
        writer.set_nodelay(true).unwrap();
        let value = pattern(size);
        let reading = runtime::spawn(async move {
            let mut buffer = vec![0; size];
            let (result, polls) = count_polls(stream.read_exact(&mut buffer)).await;
            result.unwrap();
            (stream, buffer, polls)
        });
        write_in_turns(&mut writer, &value).await;
        let (mut stream, read, by_reads) = runtime::timeout(LIMIT, reading).await.unwrap().unwrap();
        assert!(read == value);
        let reading =
            runtime::spawn(async move { count_polls(stream.read_exact_owned(vec![0; size])).await });
        write_in_turns(&mut writer, &value).await;
        let (read, at_once) = runtime::timeout(LIMIT, reading).await.unwrap().unwrap();
        assert!(read.unwrap() == value);
        eprintln!("{size} bytes: polled {by_reads} times by reads, {at_once} times by one");
        assert!(at_once * 10 <= by_reads, "{at_once} polls, {by_reads} by reads");
    }
}

#[runtime::test]
async fn the_end_of_the_stream_in_the_middle_is_an_error_with_the_rest() {
    for size in SIZES.into_iter().skip(1) {
        let (mut stream, peer) = with_std_peer().await;
        let value = pattern(size);
        let writing = dribble(peer, value[..size - 1].to_vec(), size / 3);
        let closing = thread::spawn(move || drop(writing.join()));
        let read = runtime::timeout(LIMIT, stream.read_exact_owned(vec![0; size])).await;
        let failed = read.expect("the end was not seen").unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::UnexpectedEof);
        assert!(failed.received == value[..size - 1]);
        closing.join().unwrap();
        for _ in 0..2 {
            let read = runtime::timeout(LIMIT, stream.read(&mut [0; 8])).await;
            assert_eq!(read.unwrap().unwrap(), 0);
            let again = runtime::timeout(LIMIT, stream.read_exact_owned(vec![0; size])).await.unwrap();
            let again = again.unwrap_err();
            assert_eq!((again.error.kind(), again.received.len()), (ErrorKind::UnexpectedEof, 0));
        }
    }
}

#[runtime::test]
async fn a_reset_in_the_middle_is_that_error_with_the_rest() {
    for size in SIZES.into_iter().skip(1) {
        let (mut stream, mut peer) = with_std_peer().await;
        peer.write_all(&pattern(100)).unwrap();
        let resetting = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        });
        let read = runtime::timeout(LIMIT, stream.read_exact_owned(vec![0; size])).await;
        resetting.join().unwrap();
        let failed = read.expect("the reset was not seen").unwrap_err();
        assert_eq!(failed.error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(failed.received, pattern(100));
        let read = runtime::timeout(LIMIT, stream.read(&mut [0; 8])).await;
        assert_eq!(read.unwrap().unwrap(), 0);
    }
}

#[runtime::test]
async fn a_read_that_is_given_up_leaves_its_bytes_and_a_stream_as_before() {
    for size in SIZES.into_iter().skip(1) {
        let (mut stream, mut peer) = with_std_peer().await;
        let value = pattern(size);
        for part in [&value[..size / 3], &value[size / 3..size / 2]] {
            peer.write_all(part).unwrap();
            let late =
                runtime::timeout(Duration::from_millis(5), stream.read_exact_owned(vec![0; size])).await;
            assert!(late.is_err());
        }
        let mut half = vec![0; size / 2];
        runtime::timeout(LIMIT, stream.read_exact(&mut half)).await.expect("bytes are lost").unwrap();
        assert!(half == value[..size / 2]);
        // One byte wakes a plain read.
        let reading = runtime::spawn(async move {
            let read = stream.read(&mut [0; 8]).await;
            (stream, read)
        });
        runtime::sleep(Duration::from_millis(2)).await;
        peer.write_all(b"x").unwrap();
        let (mut stream, read) =
            runtime::timeout(LIMIT, reading).await.expect("the byte woke nobody").unwrap();
        assert_eq!(read.unwrap(), 1);
        peer.write_all(&value).unwrap();
        let read = runtime::timeout(LIMIT, stream.read_exact_owned(vec![0; size])).await;
        assert!(read.unwrap().unwrap() == value);
    }
}

async fn give_up<F: Future>(future: F, random: &mut SmallRng) -> Option<F::Output> {
    match random.random_range(0..3) {
        0 => runtime::timeout(Duration::from_micros(random.random_range(0..300)), future).await.ok(),
        1 => poll_times(future, random.random_range(0..4)).await,
        _ => Some(runtime::timeout(LIMIT, future).await.expect("the reader hangs")),
    }
}

#[runtime::test]
async fn reads_given_up_at_random_points_lose_no_byte() {
    const NUMBERS: u32 = 1 << 20;
    let (mut stream, writer) = pair().await;
    let sender = runtime::spawn(async move {
        let mut writer: TcpStream = writer;
        let mut random = SmallRng::seed_from_u64(11);
        let mut next = 0u32;
        while next < NUMBERS {
            // Some large ones, most of them small.
            let most = if random.random_range(0..16) == 0 { 100_000 } else { 500 };
            let end = (next + random.random_range(1..most)).min(NUMBERS);
            let bytes: Vec<u8> = (next..end).flat_map(u32::to_le_bytes).collect();
            next = end;
            writer.write_all(&bytes).await.unwrap();
            if random.random_range(0..3) == 0 {
                runtime::sleep(Duration::from_micros(random.random_range(0..200))).await;
            }
        }
    });
    let mut random = SmallRng::seed_from_u64(12);
    let (mut received, mut expected, mut dropped, mut ended) = (Vec::new(), 0u32, 0, false);
    while !ended {
        let most = [16, 4000, 70_000, 300_000][random.random_range(0..4)];
        let size = random.random_range(1..=most);
        match random.random_range(0..8) {
            0 => {
                let mut buffer = vec![0; size.min(5000)];
                match give_up(stream.read(&mut buffer), &mut random).await {
                    Some(length) => {
                        let length = length.unwrap();
                        ended = length == 0;
                        received.extend_from_slice(&buffer[..length]);
                    }
                    None => dropped += 1,
                }
            }
            _ => match give_up(stream.read_exact_owned(vec![0; size]), &mut random).await {
                Some(Ok(mut bytes)) => {
                    assert_eq!(bytes.len(), size);
                    received.append(&mut bytes);
                }
                Some(Err(mut failed)) => {
                    assert_eq!(failed.error.kind(), ErrorKind::UnexpectedEof);
                    ended = true;
                    received.append(&mut failed.received);
                }
                None => dropped += 1,
            },
        }
        let (numbers, _) = received.as_chunks::<4>();
        for number in numbers {
            assert_eq!(u32::from_le_bytes(*number), expected);
            expected += 1;
        }
        received.drain(..numbers.len() * 4);
    }
    sender.await.unwrap();
    eprintln!("{dropped} reads were given up");
    assert!(expected == NUMBERS && received.is_empty() && dropped > 0);
}
