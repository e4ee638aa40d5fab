//! Descriptors that pass beside datagrams of Unix domain sockets.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use net::UnixDatagram;
use rustix::io::FdFlags;

const LIMIT: Duration = Duration::from_secs(30);

#[runtime::test]
async fn descriptors_arrive_open_and_close_at_exec() {
    let (one, other) = UnixDatagram::pair().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    assert_eq!(one.send_with_descriptors(b"datum", &[writer.as_fd()]).await.unwrap(), 5);
    drop(writer);
    let mut buffer = [0; 4];
    let received = runtime::timeout(LIMIT, other.recv_with_descriptors(&mut buffer)).await.unwrap().unwrap();
    assert_eq!((received.length, received.truncated, received.descriptors_lost), (4, true, false));
    let [descriptor] = <[OwnedFd; 1]>::try_from(received.descriptors).unwrap();
    assert_eq!(rustix::io::fcntl_getfd(&descriptor).unwrap(), FdFlags::CLOEXEC);
    std::fs::File::from(descriptor).write_all(b"through").unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through");
}

#[runtime::test]
async fn as_many_descriptors_arrive_as_the_kernel_passes_and_more_are_refused() {
    let (one, other) = UnixDatagram::pair().unwrap();
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
