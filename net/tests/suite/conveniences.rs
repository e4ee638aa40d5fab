//! Sockets with options, by name, in pairs; halves that are reunited; copies in both directions;
//! datagrams.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{
    BindOptions, TcpListener, TcpSocket, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream,
};

use crate::common::{local, pair, serve_echo};

const LIMIT: Duration = Duration::from_secs(30);

#[runtime::test]
async fn options_set_before_are_those_of_the_connection() {
    let listening = TcpSocket::new_v4().unwrap();
    listening.set_recv_buffer_size(20_000).unwrap();
    listening.set_reuseaddr(true).unwrap();
    listening.set_reuseport(true).unwrap();
    let options = socket2::SockRef::from(&listening);
    assert!(options.reuse_address().unwrap() && options.reuse_port().unwrap());
    listening.bind(local()).unwrap();
    let listener = listening.listen(16).unwrap();
    let client = TcpSocket::new_v4().unwrap();
    client.set_nodelay(true).unwrap();
    client.set_tos_v4(0x10).unwrap();
    client.bind("127.0.0.3:0".parse().unwrap()).unwrap();
    let bound = client.local_addr().unwrap();
    let client = client.connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, peer) = listener.accept().await.unwrap();
    assert_eq!((peer, client.local_addr().unwrap()), (bound, bound));
    assert!(client.nodelay().unwrap());
    client.set_ttl(9).unwrap();
    client.set_quickack(false).unwrap();
    assert!(client.ttl().unwrap() == 9 && !client.quickack().unwrap());
    // Set before it connects, as the class of the first packet.
    assert_eq!(socket2::SockRef::from(&client).tos_v4().unwrap(), 0x10);
    // The kernel doubles it.
    assert_eq!(server.recv_buffer_size().unwrap(), 40_000);
    let refused = TcpSocket::new_v4().unwrap().connect(SocketAddr::from(([127, 0, 0, 1], 1))).await;
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[runtime::test]
async fn a_name_is_connected_to_by_the_address_that_answers() {
    let listener = TcpListener::bind(local()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = serve_echo(listener);
    // Where localhost is ::1 first, that is refused, as nobody listens there.
    let mut client = TcpStream::connect(("localhost", port)).await.unwrap();
    client.write_all(b"x").await.unwrap();
    client.read_exact(&mut [0]).await.unwrap();
    let looked_up = net::lookup_host(format!("127.0.0.1:{port}")).await.unwrap();
    assert_eq!(looked_up, [SocketAddr::from(([127, 0, 0, 1], port))]);
    assert!(net::lookup_host("not a name:1").await.is_err());
    drop(client);
    serving.shutdown(Duration::from_secs(30)).await;
    let refused = TcpStream::connect(("localhost", port)).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[runtime::test]
async fn strings_pairs_and_lists_are_addresses_and_only_names_are_looked_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let taken = TcpListener::bind(address).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    // The first that can be bound, and the first that answers.
    let second = TcpListener::bind([address, local()]).unwrap();
    let free = second.local_addr().unwrap();
    drop(second);
    let gone = vec![free, address];
    TcpStream::connect(address.to_string()).await.unwrap();
    TcpStream::connect(address.to_string().as_str()).await.unwrap();
    TcpStream::connect((address.ip(), address.port())).await.unwrap();
    TcpStream::connect(("127.0.0.1", address.port())).await.unwrap();
    TcpStream::connect_timeout(&gone[..], LIMIT).await.unwrap();
    TcpStream::connect(gone).await.unwrap();
    let none = TcpStream::connect(Vec::new()).await.unwrap_err();
    assert_eq!(none.kind(), std::io::ErrorKind::NotFound);

    // A bind never waits for a resolver.
    for error in [TcpListener::bind("localhost:0").unwrap_err(), UdpSocket::bind("localhost:0").unwrap_err()]
    {
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("lookup_host"), "{error}");
    }
    let by_name = TcpListener::bind_within("localhost:0", &BindOptions::new(), Duration::ZERO).await.unwrap();
    assert!(by_name.local_addr().unwrap().ip().is_loopback());
    let udp = UdpSocket::bind(net::lookup_host("localhost:0").await.unwrap()).unwrap();
    assert!(udp.local_addr().unwrap().ip().is_loopback());
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(address.to_string()).unwrap();
    assert_eq!(udp.peer_addr().unwrap(), address);
    assert_eq!(TcpStream::connect("127.0.0.1").await.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
}

#[runtime::test]
async fn an_address_that_does_not_answer_is_passed_over_after_a_quarter_of_a_second() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // With a full backlog the kernel drops the SYN, and the connect hangs. No other test uses this
    // address.
    let full =
        TcpListener::bind_with((Ipv4Addr::new(127, 0, 0, 4), port), &BindOptions::new().backlog(0)).unwrap();
    let hanging = full.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(hanging, Duration::from_millis(200)).await {
        held.push(stream);
    }
    let addresses = vec![hanging, listener.local_addr().unwrap()];
    let begun = std::time::Instant::now();
    let client = TcpStream::connect(addresses).await.unwrap();
    assert_eq!(client.peer_addr().unwrap(), listener.local_addr().unwrap());
    assert!(begun.elapsed() >= Duration::from_millis(250));
}

#[runtime::test]
async fn halves_of_one_stream_are_reunited_and_those_of_two_are_not() {
    let ((one, mut peer), (other, _)) = (pair().await, pair().await);
    let (reader, writer) = one.into_split();
    let (other_reader, other_writer) = other.into_split();
    let error = reader.reunite(other_writer).unwrap_err();
    let (reader, _other_writer) = (error.0, error.1);
    peer.write_all(b"before").await.unwrap();
    let mut one = reader.reunite(writer).unwrap();
    // Writing was not shut down.
    one.write_all(b"after").await.unwrap();
    peer.read_exact(&mut [0; 5]).await.unwrap();
    one.read_exact(&mut [0; 6]).await.unwrap();
    let (mut reader, writer) = one.into_split();
    writer.forget();
    peer.write_all(b"x").await.unwrap();
    reader.read_exact(&mut [0]).await.unwrap();
    drop(other_reader);
}

#[runtime::test]
async fn a_proxy_passes_on_bytes_and_the_end_of_each_direction() {
    let ((mut client, mut front), (mut back, mut server)) = (pair().await, pair().await);
    let proxy = runtime::spawn(async move { net::copy_bidirectional(&mut front, &mut back).await.unwrap() });
    let serving = runtime::spawn(async move {
        let mut request = Vec::new();
        server.read_to_end(&mut request).await.unwrap();
        server.write_all(&request[..1000]).await.unwrap();
        request.len()
    });
    client.write_all(&vec![7; 300_000]).await.unwrap();
    client.close().await.unwrap();
    let mut answer = Vec::new();
    runtime::timeout(LIMIT, client.read_to_end(&mut answer))
        .await
        .expect("the end was not passed on")
        .unwrap();
    assert_eq!((serving.await.unwrap(), answer.len()), (300_000, 1000));
    assert_eq!(proxy.await.unwrap(), (300_000, 1000));
}

#[runtime::test]
async fn a_unix_pair_knows_its_peer() {
    let (mut one, mut other) = UnixStream::pair().unwrap();
    one.write_all(b"hello").await.unwrap();
    other.read_exact(&mut [0; 5]).await.unwrap();
    let credentials = other.peer_cred().unwrap();
    assert_eq!(credentials.pid, std::process::id() as i32);
    assert_eq!(credentials.uid, rustix::process::geteuid().as_raw());
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
    let client = std::os::unix::net::UnixStream::connect(folder.path().join("socket")).unwrap();
    let mut client = UnixStream::from_std(client).unwrap();
    client.write_all(b"x").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    server.read_exact(&mut [0]).await.unwrap();
    assert_eq!(server.peer_cred().unwrap().pid, std::process::id() as i32);
}

#[runtime::test]
async fn unix_datagrams_arrive_whole_and_a_full_receiver_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = UnixDatagram::bind(&path).unwrap();
    let client = UnixDatagram::unbound().unwrap();
    client.send_to(b"one", &path).await.unwrap();
    client.connect(&path).unwrap();
    let sending = runtime::spawn(async move {
        for _ in 0..1000 {
            client.send(b"more").await.unwrap();
        }
    });
    let mut buffer = [0; 16];
    assert_eq!(server.recv_from(&mut buffer).await.unwrap().0, 3);
    for _ in 0..1000 {
        let received = runtime::timeout(LIMIT, server.recv(&mut buffer)).await;
        assert_eq!(received.expect("the sender was forgotten").unwrap(), 4);
    }
    sending.await.unwrap();
    let (one, other) = UnixDatagram::pair().unwrap();
    one.send(b"x").await.unwrap();
    assert_eq!(other.recv(&mut buffer).await.unwrap(), 1);
}

#[runtime::test]
async fn a_datagram_is_sent_to_the_first_of_several_addresses_and_names_are_looked_up() {
    let (one, other) = (UdpSocket::bind(local()).unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let (port, mut buffer) = (other.local_addr().unwrap().port(), [0; 16]);
    let addresses = [other.local_addr().unwrap(), one.local_addr().unwrap()];
    one.send_to(b"several", &addresses[..]).await.unwrap();
    assert_eq!(runtime::timeout(LIMIT, other.recv(&mut buffer)).await.unwrap().unwrap(), 7);
    one.send_to(b"text", ("127.0.0.1", port)).await.unwrap();
    assert_eq!(runtime::timeout(LIMIT, other.recv(&mut buffer)).await.unwrap().unwrap(), 4);
    let none: &[SocketAddr] = &[];
    let error = one.send_to(b"none", none).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(one.send_to(b"lost", "name.invalid:1").await.is_err());
}

#[runtime::test]
async fn a_connected_udp_socket_talks_to_its_peer_only() {
    let (one, other) = (UdpSocket::bind(local()).unwrap(), UdpSocket::bind(local()).unwrap());
    let (first, second) = (one.local_addr().unwrap(), other.local_addr().unwrap());
    one.connect(second).unwrap();
    assert_eq!(one.peer_addr().unwrap(), second);
    one.send(b"hello").await.unwrap();
    let mut buffer = [0; 16];
    assert_eq!(other.peek_from(&mut buffer).await.unwrap(), (5, first));
    assert_eq!(other.try_recv_from(&mut buffer).unwrap(), (5, first));
    assert_eq!(other.try_recv_from(&mut buffer).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let stranger = UdpSocket::bind(local()).unwrap();
    stranger.send_to(b"stranger", first).await.unwrap();
    other.try_send_to(b"answer", first).unwrap();
    assert_eq!(runtime::timeout(LIMIT, one.recv(&mut buffer)).await.unwrap().unwrap(), 6);
    assert_eq!(&buffer[..6], b"answer");
    assert_eq!(one.into_std().unwrap().local_addr().unwrap(), first);
}

#[runtime::test]
async fn datagrams_to_a_group_are_received_by_its_members() {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let joined = socket.join_multicast_v4(group, Ipv4Addr::LOCALHOST);
    if requirements::require("multicast on loopback", joined.ok()).is_none() {
        return;
    }
    let port = socket.local_addr().unwrap().port();
    let sender = UdpSocket::bind(local()).unwrap();
    socket2::SockRef::from(&sender).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    sender.send_to(b"all", (group, port)).await.unwrap();
    let mut buffer = [0; 8];
    let received = runtime::timeout(LIMIT, socket.recv_from(&mut buffer)).await;
    assert_eq!(received.expect("the group's datagram was not received").unwrap().0, 3);
    socket.leave_multicast_v4(group, Ipv4Addr::LOCALHOST).unwrap();
}

#[runtime::test]
async fn connecting_to_a_unix_listener_with_a_full_backlog_waits_for_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    listener.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    listener.listen(0).unwrap();
    let first = UnixStream::connect(&path).await.unwrap();
    let second = runtime::spawn(async move { UnixStream::connect(&path).await });
    runtime::sleep(Duration::from_millis(30)).await;
    assert!(!second.is_finished(), "the backlog has room for one");
    let _accepted = listener.accept().unwrap();
    runtime::timeout(Duration::from_secs(30), second).await.unwrap().unwrap().unwrap();
    drop(first);
}

#[runtime::test]
async fn an_unconnected_datagram_waits_for_room_at_its_receiver() {
    let name = format!("\0lull-room-{}", std::process::id());
    let receiver = UnixDatagram::bind(&name).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    // Fills the receiver's queue, of `net.unix.max_dgram_qlen` datagrams, 10 by default.
    let (filler, address) = (socket2::SockRef::from(&sender), socket2::SockAddr::unix(&name).unwrap());
    let full = loop {
        if let Err(error) = filler.send_to(b"x", &address) {
            break error;
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    let waiting = runtime::spawn(async move { sender.send_to(b"last", &name).await });
    runtime::sleep(Duration::from_millis(5)).await;
    assert!(!waiting.is_finished());
    let mut buffer = [0; 8];
    while receiver.recv(&mut buffer).await.unwrap() != 4 {}
    assert_eq!(waiting.await.unwrap().unwrap(), 4);
}
