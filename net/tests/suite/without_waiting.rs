//! Reading and writing without waiting, peeking, and sockets that are given back with all that was
//! received.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use net::{TcpStream, UnixStream};

use crate::common::{pair, with_std_peer};

const LIMIT: Duration = Duration::from_secs(30);

/// Bytes none of which is like its neighbours.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index % 251) as u8).collect()
}

async fn within<F: Future>(what: &str, future: F) -> F::Output {
    runtime::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("too late: {what}"))
}

#[runtime::test]
async fn a_read_without_waiting_returns_what_has_come_and_then_would_block() {
    let (mut client, mut server) = pair().await;
    let mut buffer = [0; 16];
    assert_eq!(server.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    client.write_all(b"hello").await.unwrap();
    within("readable", server.readable()).await.unwrap();
    assert_eq!(server.try_read(&mut buffer[..2]).unwrap(), 2);
    within("readable with a rest", server.readable()).await.unwrap();
    assert_eq!(server.try_read(&mut buffer[2..]).unwrap(), 3);
    assert_eq!(&buffer[..5], b"hello");
    assert_eq!(server.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    let waiting = runtime::timeout(Duration::from_millis(2), server.readable()).await;
    assert!(waiting.is_err(), "readable with nothing to read");
    drop(client);
    within("the end", server.readable()).await.unwrap();
    assert_eq!(server.try_read(&mut buffer).unwrap(), 0);
}

#[runtime::test]
async fn a_task_that_only_tries_gets_its_bytes() {
    let (mut client, mut server) = pair().await;
    client.write_all(b"hello").await.unwrap();
    let trying = async {
        let mut received: Vec<u8> = Vec::new();
        let mut buffer = [0; 16];
        while received.len() < 5 {
            match server.try_read(&mut buffer) {
                Ok(length) => received.extend(&buffer[..length]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            runtime::yield_now().await;
        }
        received
    };
    assert_eq!(within("the bytes", trying).await, b"hello");
}

#[runtime::test]
async fn a_write_without_waiting_stops_when_there_is_no_room_and_goes_on_when_there_is() {
    let (client, mut server) = pair().await;
    let chunk = bytes(8 << 10);
    let mut written = 0;
    loop {
        match client.try_write(&chunk) {
            Ok(length) => written += length,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                if runtime::timeout(Duration::from_millis(50), client.writable()).await.is_err() {
                    break;
                }
            }
        }
    }
    let reading = runtime::spawn(async move {
        within("what was written", server.read_exact(&mut vec![0; written])).await.unwrap();
        server
    });
    within("writable", client.writable()).await.unwrap();
    assert!(client.try_write(b"more").unwrap() > 0);
    let mut server = reading.await.unwrap();
    within("more", server.read_exact(&mut [0])).await.unwrap();
}

#[runtime::test]
async fn halves_read_and_write_without_waiting_too() {
    let (client, server) = pair().await;
    let ((_client_reader, writer), (mut reader, _server_writer)) = (client.into_split(), server.into_split());
    within("writable", writer.writable()).await.unwrap();
    assert_eq!(writer.try_write(b"hello").unwrap(), 5);
    within("readable", reader.readable()).await.unwrap();
    let mut buffer = [0; 16];
    assert_eq!(within("peek", reader.peek(&mut buffer)).await.unwrap(), 5);
    assert_eq!(reader.try_read(&mut buffer).unwrap(), 5);
}

/// Peeks until there are as many bytes as `expected`, and compares.
async fn peek_until(stream: &mut TcpStream, expected: &[u8]) {
    let mut buffer = [0; 64];
    loop {
        let length = stream.peek(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], &expected[..length]);
        if length == expected.len() {
            return;
        }
    }
}

#[runtime::test]
async fn a_peek_takes_nothing_and_sees_what_comes_later() {
    let (mut client, mut server) = pair().await;
    client.write_all(b"ab").await.unwrap();
    within("ab", peek_until(&mut server, b"ab")).await;
    let mut one = [0];
    assert_eq!(server.peek(&mut one).await.unwrap(), 1);
    client.write_all(b"cd").await.unwrap();
    within("cd", peek_until(&mut server, b"abcd")).await;
    // Bytes in the stream's buffer come before those that come after them.
    assert!(server.fill_buf().await.unwrap().starts_with(b"a"));
    server.consume_unpin(1);
    client.write_all(b"ef").await.unwrap();
    within("ef", peek_until(&mut server, b"bcdef")).await;
    let mut read = [0; 5];
    within("all", server.read_exact(&mut read)).await.unwrap();
    assert_eq!(&read, b"bcdef");
    drop(client);
    assert_eq!(within("the end", server.peek(&mut one)).await.unwrap(), 0);
    assert_eq!(within("the end", server.read(&mut one)).await.unwrap(), 0);
}

#[runtime::test]
async fn a_peek_sees_a_reset_once_and_then_the_end() {
    let (mut stream, peer) = with_std_peer().await;
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    let error = within("the reset", stream.peek(&mut [0])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(within("the end", stream.peek(&mut [0])).await.unwrap(), 0);
}

/// Gives the stream back, and reads the rest of `count` bytes from its socket.
async fn read_from_socket(stream: TcpStream, mut received: Vec<u8>, count: usize) -> Vec<u8> {
    let (mut socket, unread) = within("into_std", stream.into_std()).await.unwrap();
    received.extend(unread);
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut rest = vec![0; count - received.len()];
    socket.read_exact(&mut rest).unwrap();
    received.append(&mut rest);
    received
}

#[runtime::test]
async fn a_socket_that_is_given_back_while_its_peer_sends_loses_no_byte() {
    for round in 0..12_u64 {
        let (mut stream, mut peer) = with_std_peer().await;
        let sent = bytes(500_000);
        let writing = std::thread::spawn(move || {
            sent.chunks(500 + 2999 * (round as usize % 7)).for_each(|chunk| peer.write_all(chunk).unwrap());
            (sent, peer)
        });
        let mut received = vec![0; 1 + 5000 * round as usize % 60_000];
        stream.read_exact(&mut received).await.unwrap();
        let received = read_from_socket(stream, received, 500_000).await;
        assert!(received == writing.join().unwrap().0, "round {round}");
    }
}

#[runtime::test]
async fn what_was_written_is_sent_before_the_socket_is_given_back() {
    let (mut stream, mut peer) = with_std_peer().await;
    let reading = std::thread::spawn(move || {
        let mut received = vec![0; 600_004];
        peer.read_exact(&mut received).unwrap();
        received
    });
    stream.write_owned(bytes(300_000).into()).await.unwrap();
    stream.write_all(&bytes(300_000)).await.unwrap();
    let (mut socket, unread) = within("into_std", stream.into_std()).await.unwrap();
    assert!(unread.is_empty());
    socket.set_nonblocking(false).unwrap();
    socket.write_all(b"last").unwrap();
    assert!(reading.join().unwrap().ends_with(b"last"));
}

#[runtime::test]
async fn a_connection_that_broke_keeps_its_bytes_and_its_error() {
    let (mut stream, mut peer) = with_std_peer().await;
    peer.write_all(b"abc").unwrap();
    within("abc", peek_until(&mut stream, b"abc")).await;
    socket2::SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    runtime::sleep(Duration::from_millis(5)).await;
    let mut received = Vec::new();
    let error = match within("into_std", stream.into_std()).await {
        // The error is still in the socket.
        Ok((mut socket, unread)) => {
            received.extend(unread);
            socket.read_to_end(&mut received).unwrap_err()
        }
        // The ring has taken the error.
        Err(mut failed) => {
            assert_eq!(failed.error.kind(), ErrorKind::ConnectionReset);
            failed.stream.read_to_end(&mut received).await.unwrap_err()
        }
    };
    assert_eq!((received.as_slice(), error.kind()), (&b"abc"[..], ErrorKind::ConnectionReset));
}

#[runtime::test]
async fn a_unix_socket_goes_to_the_standard_library_and_comes_back() {
    let (mut one, mut other) = UnixStream::pair().unwrap();
    one.write_all(b"hello").await.unwrap();
    other.read_exact(&mut [0]).await.unwrap();
    let (socket, unread) = within("into_std", other.into_std()).await.unwrap();
    let socket_bytes = rustix::io::ioctl_fionread(socket.as_fd()).unwrap();
    assert_eq!(unread.len() + socket_bytes as usize, 4);
    let mut again = UnixStream::from_std(socket).unwrap();
    let mut rest = vec![0; 4 - unread.len()];
    again.read_exact(&mut rest).await.unwrap();
    assert_eq!([unread, rest].concat(), b"ello");
    one.write_all(b"more").await.unwrap();
    within("more", again.read_exact(&mut [0; 4])).await.unwrap();
}
