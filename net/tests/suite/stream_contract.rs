//! What `Stream` promises on every driver: when a write is done, when an error is returned, what
//! flush, close, shutdown and drop do. Each test runs on each driver.

use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::TcpStream;

use crate::common::{pair, with_std_peer};

const LIMIT: Duration = Duration::from_secs(30);

fn reset(peer: std::net::TcpStream) {
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
}

#[runtime::test]
async fn a_buffer_may_be_changed_when_its_write_has_returned() {
    for size in [1000, 40_000] {
        let (mut stream, mut peer) = with_std_peer().await;
        let mut buffer = vec![1; size];
        let written = stream.write(&buffer).await.unwrap();
        assert!(written > 0);
        buffer.fill(2);
        stream.flush().await.unwrap();
        let mut received = vec![0; written];
        peer.read_exact(&mut received).unwrap();
        assert!(received.iter().all(|&byte| byte == 1));
    }
}

#[runtime::test]
async fn a_writer_without_room_is_woken_by_its_peers_reads_after_reads_that_waited() {
    const LENGTH: usize = 16 << 20;
    let (mut client, mut server) = pair().await;
    let answering = runtime::spawn(async move {
        for _ in 0..2 {
            // It waits for the request.
            server.read_exact(&mut [0]).await.unwrap();
            server.write_all(&vec![7; LENGTH]).await.unwrap();
        }
        server.close().await.unwrap();
    });
    let asking = async {
        for _ in 0..2 {
            runtime::sleep(Duration::from_millis(2)).await;
            client.write_all(b"x").await.unwrap();
            // The answer finds no room.
            runtime::sleep(Duration::from_millis(20)).await;
            client.read_exact(&mut vec![0; LENGTH]).await.unwrap();
        }
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    };
    runtime::timeout(LIMIT, asking).await.expect("the writer was forgotten");
    answering.await.unwrap();
}

#[runtime::test]
async fn a_reader_is_woken_when_as_much_is_there_as_its_mark_says_or_the_end() {
    let (mut stream, mut peer) = with_std_peer().await;
    peer.set_nodelay(true).unwrap();
    let (mut reader, _writer) = TcpStream::split(&mut stream);
    let mut buffer = vec![0; 20_000];
    // Writes while the reader waits: what is there before is read, whatever the mark.
    let mut read_after = async |reader: &mut net::ReadHalf<'_, _>, bytes: &[u8], limit| {
        let moment = Duration::from_millis(3);
        assert!(runtime::timeout(moment, reader.read(&mut buffer)).await.is_err());
        peer.write_all(bytes).unwrap();
        runtime::timeout(limit, reader.read(&mut buffer)).await.ok().map(Result::unwrap)
    };
    // However long it waits, it is not woken for fewer.
    let short = Duration::from_millis(30);
    reader.set_receive_low_water(10_000).unwrap();
    for _ in 0..9 {
        assert_eq!(read_after(&mut reader, &[1; 1000], short).await, None);
    }
    assert_eq!(read_after(&mut reader, &[1; 1000], LIMIT).await, Some(10_000));
    assert_eq!(read_after(&mut reader, b"x", short).await, None);
    // What has come is enough for a lower mark.
    reader.set_receive_low_water(1).unwrap();
    let mut buffer = vec![0; 20_000];
    assert_eq!(reader.read(&mut buffer).await.unwrap(), 1);
    reader.set_receive_low_water(10_000).unwrap();
    assert!(runtime::timeout(Duration::from_millis(3), reader.read(&mut buffer)).await.is_err());
    peer.write_all(b"rest").unwrap();
    drop(peer);
    assert_eq!(reader.read(&mut buffer).await.unwrap(), 4);
    assert_eq!(reader.read(&mut buffer).await.unwrap(), 0);
}

#[runtime::test]
async fn flush_returns_when_the_kernel_has_taken_everything() {
    let (mut stream, mut peer) = with_std_peer().await;
    for size in [1, 5000, 100_000] {
        stream.write_all(&vec![1; size]).await.unwrap();
        stream.flush().await.unwrap();
        // The peer blocks this thread: the worker sends nothing more.
        peer.read_exact(&mut vec![0; size]).unwrap();
    }
    stream.flush().await.unwrap();
}

#[runtime::test]
async fn close_sends_what_was_written_and_then_the_end_and_may_be_repeated() {
    let (mut stream, mut server) = pair().await;
    let reading = runtime::spawn(async move {
        let mut bytes = Vec::new();
        server.read_to_end(&mut bytes).await.unwrap();
        // The other direction is still open.
        server.write_all(b"answer").await.unwrap();
        bytes.len()
    });
    stream.write_all(&vec![1; 300_000]).await.unwrap();
    stream.close().await.unwrap();
    stream.close().await.unwrap();
    assert_eq!(reading.await.unwrap(), 300_000);
    assert_eq!(stream.write(b"more").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"answer");
}

#[runtime::test]
async fn a_shutdown_of_writing_sends_what_was_written_before_the_end() {
    for how in [Shutdown::Write, Shutdown::Both] {
        let (mut stream, mut peer) = with_std_peer().await;
        let bytes = vec![1; 30_000];
        stream.write_all(&bytes[..10_000]).await.unwrap();
        stream.write_all(&bytes[10_000..]).await.unwrap();
        stream.shutdown(how).unwrap();
        assert_eq!(stream.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        runtime::timeout(LIMIT, stream.flush()).await.unwrap().unwrap();
        stream.close().await.unwrap();
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        assert!(received == bytes, "{} bytes", received.len());
    }
}

#[runtime::test]
async fn a_shutdown_of_reading_ends_a_read_that_waits() {
    let (stream, _peer) = with_std_peer().await;
    let (mut reader, writer) = stream.into_split();
    let reading = runtime::spawn(async move { reader.read(&mut [0]).await });
    runtime::sleep(Duration::from_millis(2)).await;
    writer.shutdown(Shutdown::Read).unwrap();
    let read = runtime::timeout(LIMIT, reading).await.expect("the read still waits").unwrap();
    assert_eq!(read.unwrap(), 0);
}

#[runtime::test]
async fn a_failed_send_is_told_once_at_the_latest_by_flush_and_by_every_later_write() {
    for size in [100, 64 << 10] {
        let (mut stream, peer) = with_std_peer().await;
        reset(peer);
        runtime::sleep(Duration::from_millis(2)).await;
        let bytes = vec![1; size];
        let told = match stream.write_all(&bytes).await {
            Ok(()) => stream.flush().await,
            failed => failed,
        };
        let kind = told.expect_err("the peer has reset the connection").kind();
        assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&kind), "{kind:?}");
        for later in [1, size, 1] {
            let kind = stream.write(&bytes[..later]).await.unwrap_err().kind();
            assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&kind), "{kind:?}");
        }
    }
}

#[runtime::test]
async fn a_reset_is_read_once_and_then_the_end() {
    let (mut stream, peer) = with_std_peer().await;
    reset(peer);
    let read = runtime::timeout(LIMIT, stream.read(&mut [0])).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    for _ in 0..2 {
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
    // Nothing was written that could be lost.
    stream.flush().await.unwrap();
    stream.close().await.unwrap();
}

#[runtime::test]
async fn empty_reads_and_writes_do_not_wait() {
    let (mut stream, _peer) = with_std_peer().await;
    assert_eq!(runtime::timeout(LIMIT, stream.read(&mut [])).await.unwrap().unwrap(), 0);
    assert_eq!(runtime::timeout(LIMIT, stream.write(&[])).await.unwrap().unwrap(), 0);
    let (mut one, mut other) = ([0; 0], [0; 0]);
    let mut both = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
    assert_eq!(runtime::timeout(LIMIT, stream.read_vectored(&mut both)).await.unwrap().unwrap(), 0);
}

#[runtime::test]
async fn dropping_a_stream_sends_what_was_written_and_then_the_end() {
    for size in [1, 3000, 200_000] {
        let (mut stream, mut server) = pair().await;
        let writing = runtime::spawn(async move { stream.write_all(&vec![1; size]).await.unwrap() });
        let mut bytes = Vec::new();
        server.read_to_end(&mut bytes).await.unwrap();
        writing.await.unwrap();
        assert!(bytes == vec![1; size], "{} of {size} bytes", bytes.len());
    }
}

/// Kernels without a68ed2df7213 (CVE-2026-23473) lose the end: both wake-ups come before the ring's
/// work runs, and the receive takes them as one.
#[runtime::test]
async fn the_end_of_a_unix_stream_that_follows_its_last_bytes_at_once_is_read() {
    for round in 0..50 {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut stream = net::UnixStream::from_std(ours).unwrap();
        // Begins to receive.
        let mut byte = [0];
        std::io::Write::write_all(&mut &theirs, b"0").unwrap();
        stream.read_exact(&mut byte).await.unwrap();
        let _ = runtime::timeout(Duration::from_micros(200), stream.readable()).await;
        std::io::Write::write_all(&mut &theirs, b"1").unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let read = runtime::timeout(Duration::from_secs(30), stream.read_to_end(&mut rest)).await;
        assert!(read.is_ok(), "in round {round} the end was lost: the kernel lacks a68ed2df7213");
        assert_eq!(rest, b"1");
    }
}

#[test]
#[ignore = "timing"]
fn a_shutdown_with_a_limit_does_not_wait_for_a_peer_that_takes_nothing() {
    for driver in crate::drivers::drivers() {
        let runtime = crate::drivers::one_worker(driver);
        let _peer = runtime.block_on(async {
            let (mut stream, peer) = crate::common::with_std_peer().await;
            let block = vec![0; 1 << 20];
            let limit = std::time::Duration::from_millis(50);
            while runtime::timeout(limit, stream.write_all(&block)).await.is_ok() {}
            peer
        });
        let begun = std::time::Instant::now();
        runtime.shutdown_timeout(std::time::Duration::from_millis(10));
        // Without a limit it takes two seconds.
        assert!(begun.elapsed() < std::time::Duration::from_secs(1), "{driver}: {:?}", begun.elapsed());
    }
}
