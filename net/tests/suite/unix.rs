//! Unix domain sockets: addresses, datagrams without waiting, descriptors that are passed.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::path::Path;
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{TcpStream, UnixDatagram, UnixListener, UnixStream};
use runtime::io::Direction;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix,
};

const LIMIT: Duration = Duration::from_secs(30);

#[runtime::test]
async fn both_sides_know_both_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let (path, bound) = (folder.path().join("server"), folder.path().join("client"));
    let listener = UnixListener::bind(&path).unwrap();
    assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(&*path));
    let client = UnixStream::connect(&path).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    assert!(peer.is_unnamed() && client.local_addr().unwrap().is_unnamed());
    assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(&*path));
    assert_eq!(server.local_addr().unwrap().as_pathname(), Some(&*path));
    // A client that has bound its socket, and has gone before it is accepted.
    let named = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    named.bind(&socket2::SockAddr::unix(&bound).unwrap()).unwrap();
    named.connect(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    drop(named);
    let (server, peer) = std::future::poll_fn(|context| listener.poll_accept(context)).await.unwrap();
    assert_eq!(peer.as_pathname(), Some(&*bound));
    assert_eq!(server.peer_addr().unwrap().as_pathname(), Some(&*bound));
}

/// `sockaddr_un` has 108 bytes, which a path may fill without a 0 at its end.
#[runtime::test]
async fn a_peer_whose_path_the_standard_library_has_no_address_for_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let listener = UnixListener::bind(&path).unwrap();
    let longest = folder.path().join("x".repeat(108 - folder.path().as_os_str().len() - 1));
    let client = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    rustix::net::bind(&client, &SocketAddrUnix::new(&longest).unwrap()).unwrap();
    client.connect(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    let (_server, peer) = listener.accept().await.unwrap();
    assert!(peer.is_unnamed());
}

#[runtime::test]
async fn an_abstract_address_is_read_as_it_was_bound() {
    let name = format!("lull-address-{}", std::process::id());
    let listener = UnixListener::bind(format!("\0{name}")).unwrap();
    assert_eq!(listener.local_addr().unwrap().as_abstract_name(), Some(name.as_bytes()));
    let client = UnixStream::connect(format!("\0{name}")).await.unwrap();
    assert_eq!(client.peer_addr().unwrap().as_abstract_name(), Some(name.as_bytes()));
    let standard = listener.into_std().unwrap().0;
    let listener = UnixListener::from_std(standard).unwrap();
    let (mut server, _) = listener.accept().await.expect("it waits in the backlog");
    server.write_all(b"x").await.unwrap();
    let mut client = client;
    client.read_exact(&mut [0]).await.unwrap();
}

#[runtime::test]
async fn the_halves_of_a_stream_know_its_addresses() {
    let (mut client, server) = crate::common::pair().await;
    let (local, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
    assert_eq!((server.peer_addr().unwrap(), server.local_addr().unwrap()), (local, peer));
    let (reader, writer) = TcpStream::split(&mut client);
    assert_eq!((reader.local_addr().unwrap(), reader.peer_addr().unwrap()), (local, peer));
    assert_eq!((writer.local_addr().unwrap(), writer.peer_addr().unwrap()), (local, peer));
    let (reader, writer) = client.into_split();
    assert_eq!((reader.local_addr().unwrap(), reader.peer_addr().unwrap()), (local, peer));
    assert_eq!((writer.local_addr().unwrap(), writer.peer_addr().unwrap()), (local, peer));
    let name = format!("lull-halves-{}", std::process::id());
    let _listener = UnixListener::bind(format!("\0{name}")).unwrap();
    let (_, writer) = UnixStream::connect(format!("\0{name}")).await.unwrap().into_split();
    assert_eq!(writer.peer_addr().unwrap().as_abstract_name(), Some(name.as_bytes()));
    assert!(writer.local_addr().unwrap().is_unnamed());
}

#[runtime::test]
async fn datagrams_are_sent_and_received_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let receiver = UnixDatagram::bind(&path).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    let mut buffer = [0; 8];
    assert_eq!(receiver.try_recv(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(
        runtime::timeout(Duration::from_millis(5), receiver.readable()).await.is_err(),
        "nothing was sent"
    );
    assert_eq!(sender.try_send_to(b"one", &path).unwrap(), 3);
    runtime::timeout(LIMIT, receiver.readable()).await.unwrap().unwrap();
    let (length, from) = receiver.try_recv_from(&mut buffer).unwrap();
    assert!(length == 3 && from.is_unnamed());
    assert_eq!(sender.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    sender.connect(&path).unwrap();
    assert_eq!(sender.peer_addr().unwrap().as_pathname(), Some(Path::new(&path)));
    // Until its receiver has no room, and then until it has.
    let mut sent = 0;
    while sender.try_send(b"more").is_ok() {
        sent += 1;
    }
    assert!(runtime::timeout(Duration::from_millis(5), sender.writable()).await.is_err(), "there is no room");
    for _ in 0..sent {
        assert_eq!(receiver.try_recv(&mut buffer).unwrap(), 4);
    }
    runtime::timeout(LIMIT, sender.writable()).await.expect("there is room").unwrap();
    // By poll functions, also when the receive waits first.
    let receiving = std::future::poll_fn(|context| receiver.poll_recv(context, &mut buffer));
    let sending = std::future::poll_fn(|context| sender.poll_send(context, b"three"));
    let (received, sent) = futures_util::join!(receiving, sending);
    assert_eq!((received.unwrap(), sent.unwrap()), (5, 5));
    sender.send(b"four").await.unwrap();
    let received =
        std::future::poll_fn(|context| receiver.poll_recv_from(context, &mut buffer)).await.unwrap();
    assert_eq!(received.0, 4);
    sender.shutdown(Shutdown::Both).unwrap();
    assert_eq!(sender.try_send(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert!(receiver.take_error().unwrap().is_none());
}

/// Receives a datagram and the descriptor that comes with it.
async fn receive_descriptor(socket: &UnixDatagram, buffer: &mut [u8]) -> OwnedFd {
    let receiving = socket.async_io(Direction::Read, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
        let descriptors = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok(descriptors)
    });
    let received = runtime::timeout(LIMIT, receiving).await.expect("the datagram was not received");
    received.unwrap().expect("a descriptor comes with the datagram")
}

#[runtime::test]
async fn a_descriptor_is_passed_with_a_datagram() {
    let (one, other) = UnixDatagram::pair().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let receiving = runtime::spawn(async move {
        let mut buffer = [0; 8];
        receive_descriptor(&other, &mut buffer).await
    });
    // So that the receive waits first.
    runtime::sleep(Duration::from_millis(2)).await;
    let passed = [writer.as_fd()];
    let sent = one.async_io(Direction::Write, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&passed)));
        Ok(rustix::net::sendmsg(&one, &[IoSlice::new(b"pipe")], &mut control, SendFlags::empty())?)
    });
    assert_eq!(sent.await.unwrap(), 4);
    let mut received = std::fs::File::from(receiving.await.unwrap());
    drop(writer);
    received.write_all(b"through").unwrap();
    drop(received);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through");
}
