//! Unix domain sockets that keep the boundaries of messages, and pass descriptors.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use net::{UnixDatagram, UnixSeqpacket, UnixSeqpacketListener};
use rustix::io::FdFlags;

const LIMIT: Duration = Duration::from_secs(30);

#[runtime::test]
async fn messages_of_a_connection_arrive_whole_and_in_order_and_a_full_receiver_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let missing = UnixSeqpacket::connect(&path).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let listener = UnixSeqpacketListener::bind(&path).unwrap();
    assert_eq!(UnixSeqpacketListener::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    let client = UnixSeqpacket::connect(&path).await.unwrap();
    let server = listener.accept().await.unwrap();
    let sending = runtime::spawn(async move {
        for number in 0..1000_usize {
            client.send(&vec![number as u8; 1 + number]).await.unwrap();
        }
        client
    });
    let mut buffer = [0; 2000];
    for number in 0..1000_usize {
        let length = runtime::timeout(LIMIT, server.recv(&mut buffer)).await;
        let length = length.expect("the sender was forgotten").unwrap();
        assert_eq!(length, 1 + number);
        assert!(buffer[..length].iter().all(|byte| *byte == number as u8));
    }
    let client = sending.await.unwrap();
    client.send(b"too long").await.unwrap();
    let received = server.recv_with_descriptors(&mut buffer[..3]).await.unwrap();
    assert_eq!((received.length, received.truncated), (3, true));
    drop(client);
    assert_eq!(server.recv(&mut buffer).await.unwrap(), 0);
    assert_eq!(server.send(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
}

/// Sends the writing end of a pipe, and writes to what has arrived.
async fn pass(
    send: impl AsyncFnOnce(Vec<OwnedFd>) -> std::io::Result<usize>,
    receive: impl Future<Output = std::io::Result<net::ReceivedDescriptors>>,
) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    assert_eq!(send(vec![writer.into()]).await.unwrap(), 5);
    let received = runtime::timeout(LIMIT, receive).await.unwrap().unwrap();
    assert_eq!((received.length, received.truncated, received.descriptors_lost), (5, false, false));
    let [descriptor] = <[OwnedFd; 1]>::try_from(received.descriptors).unwrap();
    assert_eq!(rustix::io::fcntl_getfd(&descriptor).unwrap(), FdFlags::CLOEXEC);
    std::fs::File::from(descriptor).write_all(b"through").unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through");
}

fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}

#[runtime::test]
async fn descriptors_arrive_open_and_close_at_exec() {
    let (one, other) = UnixDatagram::pair().unwrap();
    let send = async |pipe: Vec<OwnedFd>| one.send_with_descriptors(b"datum", &borrowed(&pipe)).await;
    pass(send, other.recv_with_descriptors(&mut [0; 16])).await;
    let (one, other) = UnixSeqpacket::pair().unwrap();
    let send = async |pipe: Vec<OwnedFd>| one.send_with_descriptors(b"datum", &borrowed(&pipe)).await;
    pass(send, other.recv_with_descriptors(&mut [0; 16])).await;
}

#[runtime::test]
async fn as_many_descriptors_arrive_as_the_kernel_passes_and_more_are_refused() {
    let (one, other) = UnixSeqpacket::pair().unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let sent = [reader.as_fd(); 253];
    one.send_with_descriptors(b"many", &sent).await.unwrap();
    let received = other.recv_with_descriptors(&mut [0; 16]).await.unwrap();
    assert_eq!((received.length, received.descriptors.len(), received.descriptors_lost), (4, 253, false));
    let refused = one.send_with_descriptors(b"many", &[reader.as_fd(); 254]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    // Without any it is an ordinary message.
    one.send_with_descriptors(b"none", &[]).await.unwrap();
    assert_eq!(other.recv_with_descriptors(&mut [0; 16]).await.unwrap().descriptors.len(), 0);
}

#[runtime::test]
async fn a_socket_of_another_type_is_refused() {
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let refused = UnixSeqpacket::try_from(OwnedFd::from(one)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let (one, other) = UnixSeqpacket::pair().unwrap();
    let again = UnixSeqpacket::try_from(one.as_fd().try_clone_to_owned().unwrap()).unwrap();
    again.send(b"x").await.unwrap();
    assert_eq!(other.recv(&mut [0; 4]).await.unwrap(), 1);
}
