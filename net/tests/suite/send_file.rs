//! Files that the kernel sends.

use std::io::{ErrorKind, Read, Seek, Write};
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::UnixStream;

use crate::common::pair;

/// Bytes that differ from their neighbours.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + index / 251) as u8).collect()
}

fn file_of(bytes: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

#[runtime::test]
async fn the_bytes_of_a_file_follow_what_was_written() {
    let content = pattern(3_000_000);
    let file = file_of(&content);
    let (mut server, mut client) = pair().await;
    let sent = runtime::spawn(async move {
        server.write_all(b"head").await.unwrap();
        // More than the socket's buffers hold, so it waits for the client.
        server.send_file(&file, 100, 2_900_000).await.unwrap();
        server.write_all(b"tail").await.unwrap();
        server.close().await.unwrap();
        // The file's own position is not used.
        let mut position = file;
        assert_eq!(position.stream_position().unwrap(), 0);
        position.read_exact(&mut [0; 10]).unwrap();
    });
    runtime::sleep(Duration::from_millis(20)).await;
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    sent.await.unwrap();
    assert_eq!(received.len(), 2_900_008);
    assert!(received == [b"head", &content[100..2_900_100], b"tail"].concat());
}

#[runtime::test]
async fn a_file_that_is_too_short_is_an_error() {
    let file = file_of(b"short");
    let (mut server, _client) = pair().await;
    let error = server.send_file(&file, 0, 6).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    let (mut left, mut right) = UnixStream::pair().unwrap();
    left.send_file(&file, 1, 4).await.unwrap();
    let mut received = [0; 4];
    right.read_exact(&mut received).await.unwrap();
    assert_eq!(&received, b"hort");
}

#[runtime::test]
async fn a_client_that_is_gone_is_an_error() {
    let file = file_of(&pattern(8 << 20));
    let (mut server, client) = pair().await;
    drop(client);
    assert!(server.send_file(&file, 0, 8 << 20).await.is_err());
}
