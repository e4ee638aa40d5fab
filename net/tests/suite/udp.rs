//! UDP sockets: several tasks on one socket, both address families, groups.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::rc::Rc;
use std::time::Duration;

use net::{BindOptions, DatagramInfo, Ecn, OutgoingDatagram, RecvBatch, SendOptions, UdpSocket, UdpSteering};

use runtime::io::Direction;

use crate::common::local;

#[runtime::test]
async fn two_tasks_that_wait_on_one_socket_both_receive() {
    let socket = Rc::new(UdpSocket::bind(local()).unwrap());
    let address = socket.local_addr().unwrap();
    let receiving: Vec<_> = (0..2)
        .map(|_| {
            let socket = Rc::clone(&socket);
            runtime::spawn(async move {
                let mut buffer = [0; 8];
                socket.recv_from(&mut buffer).await.unwrap();
                buffer[0]
            })
        })
        .collect();
    runtime::sleep(Duration::from_millis(2)).await;
    let sender = UdpSocket::bind(local()).unwrap();
    sender.send_to(b"a", address).await.unwrap();
    runtime::sleep(Duration::from_millis(2)).await;
    sender.send_to(b"b", address).await.unwrap();
    let mut received = Vec::new();
    for task in receiving {
        let byte = runtime::timeout(Duration::from_secs(30), task).await;
        received.push(byte.expect("a waiting task was forgotten").unwrap());
    }
    received.sort_unstable();
    assert_eq!(received, b"ab");
}

#[runtime::test]
async fn an_address_of_ipv6_only_leaves_the_port_of_ipv4_free() {
    let only = BindOptions::new().only_v6(true);
    // The kernel chooses a port that no other test has for IPv4.
    let other = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = other.local_addr().unwrap().port();
    let socket = UdpSocket::bind_with((Ipv6Addr::UNSPECIFIED, port), &only).unwrap();
    assert_eq!(socket.local_addr().unwrap().port(), port);
    assert!(UdpSocket::bind_with((Ipv6Addr::UNSPECIFIED, port), &BindOptions::new()).is_err());
}

/// Answers each datagram with the number of the worker that has received it.
async fn name_worker(socket: UdpSocket) {
    let mut buffer = [0; 4];
    loop {
        let (_, sender) = socket.recv_from(&mut buffer).await.unwrap();
        socket.send_to(&[runtime::current_worker() as u8], sender).await.unwrap();
    }
}

#[runtime::test(workers = 2)]
async fn every_worker_serves_datagrams_and_a_stranger_does_not_join() {
    let bound = UdpSocket::bind(local()).unwrap();
    let address = bound.local_addr().unwrap();
    let serving = bound.serve(name_worker).unwrap();
    assert_eq!((serving.local_addr(), serving.steering()), (address, UdpSteering::Hash));
    assert_eq!(UdpSocket::bind(address).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let mut answers = [0; 2];
    for _ in 0..64 {
        let client = UdpSocket::bind(local()).unwrap();
        client.send_to(b"x", address).await.unwrap();
        let mut buffer = [0; 4];
        let answer = runtime::timeout(Duration::from_secs(30), client.recv_from(&mut buffer)).await;
        assert_eq!(answer.expect("a datagram was lost").unwrap(), (1, address));
        answers[usize::from(buffer[0])] += 1;
    }
    assert!(answers[0] > 0 && answers[1] > 0, "{answers:?}");
    serving.stop().await;
    assert!(UdpSocket::bind(address).is_ok(), "the address is still taken");
}

#[runtime::test]
async fn a_batch_is_received_and_sent_by_one_call_with_what_is_known_of_each_datagram() {
    for Route { sender, receiver, to } in routes() {
        receiver.set_recv_ecn(true).unwrap();
        receiver.set_pktinfo(true).unwrap();
        let gro = receiver.set_gro(true).is_ok();
        let many = SendOptions::new().segment_size(NonZeroU16::new(4).unwrap());
        let datagram = |bytes, options| OutgoingDatagram { bytes, to, options };
        let sent = [
            datagram(&b"one"[..], SendOptions::new().ecn(Ecn::Ce)),
            datagram(b"seconds1234", if gro { many } else { SendOptions::new() }),
            datagram(b"", SendOptions::new()),
            datagram(b"too long to fit", SendOptions::new()),
        ];
        assert_eq!(sender.send_batch(&sent).await.unwrap(), 4);
        let mut batch = RecvBatch::new(3, 12);
        assert_eq!(
            runtime::timeout(Duration::from_secs(30), receiver.recv_batch(&mut batch))
                .await
                .unwrap()
                .unwrap(),
            3
        );
        let received: Vec<_> = batch.iter().collect();
        assert!(
            received.iter().map(|(_, bytes)| *bytes).eq(sent[..3].iter().map(|sent| sent.bytes)),
            "{received:?}"
        );
        let infos = batch.iter().map(|(info, _)| (info.ecn, info.local, info.segment_size));
        let segments = NonZeroU16::new(4).filter(|_| gro);
        assert!(infos.eq([
            (Some(Ecn::Ce), Some(to.ip()), None),
            (Some(Ecn::NotEct), Some(to.ip()), segments),
            (Some(Ecn::NotEct), Some(to.ip()), None),
        ]));
        // The next call has the rest, and nothing of the first.
        assert_eq!(receiver.try_recv_batch(&mut batch).unwrap(), 1);
        let rest: Vec<_> = batch.iter().map(|(info, bytes)| (bytes, info.truncated)).collect();
        assert_eq!(rest, [(&b"too long to "[..], true)]);
        assert_eq!(receiver.try_recv_batch(&mut batch).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(batch.iter().count(), 0);
        // Only the first one's error is returned.
        let long = vec![0; 70_000];
        let wrong = [datagram(b"a", SendOptions::new()), datagram(&long, SendOptions::new())];
        assert_eq!(sender.try_send_batch(&wrong).unwrap(), 1);
        assert_eq!(sender.try_send_batch(&wrong[1..]).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
    }
}

#[runtime::test]
async fn a_send_with_a_segment_size_arrives_as_datagrams_of_that_size() {
    let (sender, receiver) = (UdpSocket::bind(local()).unwrap(), UdpSocket::bind(local()).unwrap());
    let set = sender.set_segment_size(NonZeroU16::new(1000));
    if requirements::require("UDP_SEGMENT (Linux 4.18)", set.ok()).is_none() {
        return;
    }
    let to = receiver.local_addr().unwrap();
    let bytes: Vec<u8> = (0..2500).map(|index| (index % 251) as u8).collect();
    assert_eq!(sender.send_to(&bytes, to).await.unwrap(), 2500);
    let (mut received, mut lengths) = (Vec::<u8>::new(), Vec::new());
    let mut buffer = [0; 4096];
    while received.len() < bytes.len() {
        let next = runtime::timeout(Duration::from_secs(30), receiver.recv(&mut buffer)).await;
        let length = next.expect("a datagram is missing").unwrap();
        received.extend(&buffer[..length]);
        lengths.push(length);
    }
    assert_eq!(lengths, [1000, 1000, 500]);
    assert_eq!(received, bytes);
    sender.set_segment_size(None).unwrap();
    sender.send_to(&bytes, to).await.unwrap();
    assert_eq!(receiver.recv(&mut buffer).await.unwrap(), 2500);
    sender.set_segment_size(NonZeroU16::new(1)).unwrap();
    // More datagrams than any kernel allows: 64, or 128 (`UDP_MAX_SEGMENTS`).
    assert!(sender.send_to(&bytes, to).await.is_err());
}

#[runtime::test]
async fn a_datagram_is_answered_from_the_address_that_it_was_sent_to() {
    let server = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let client = UdpSocket::bind(local()).unwrap();
    let asked = SocketAddr::from(([127, 0, 0, 5], server.local_addr().unwrap().port()));
    let loopback: u32 = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
    let mut buffer = [0; 4];
    client.send_to(b"hi", asked).await.unwrap();
    let before = server.recv_msg(&mut buffer).await.unwrap();
    assert_eq!((before.length, before.local, before.interface), (2, None, None));
    server.set_pktinfo(true).unwrap();
    client.send_to(b"hello", asked).await.unwrap();
    let received = server.recv_msg(&mut buffer).await.unwrap();
    assert_eq!((received.length, received.truncated, before.truncated), (4, true, false));
    assert_eq!(received.sender, client.local_addr().unwrap());
    assert_eq!((received.local, received.interface), (Some(asked.ip()), Some(loopback)));
    server.send_from(b"yes", received.sender, received.local.unwrap()).await.unwrap();
    let answered = runtime::timeout(Duration::from_secs(30), client.recv_from(&mut buffer)).await;
    assert_eq!(answered.expect("no answer").unwrap(), (3, asked));
    let foreign = server.send_from(b"no", received.sender, [192, 0, 2, 1].into()).await;
    assert!(foreign.is_err(), "sent from an address that this host has not");
    // Without waiting.
    assert_eq!(client.try_recv_msg(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(server.try_send_msg(b"all", received.sender, &SendOptions::new()).unwrap(), 3);
    client.readable().await.unwrap();
    assert_eq!(client.try_recv_msg(&mut buffer).unwrap().length, 3);
}

#[runtime::test]
async fn a_socket_of_both_families_answers_from_the_address_of_either() {
    let server = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    server.set_pktinfo(true).unwrap();
    let port = server.local_addr().unwrap().port();
    let addresses = [IpAddr::from(Ipv6Addr::LOCALHOST), Ipv4Addr::new(127, 0, 0, 6).into()];
    let mut buffer = [0; 4];
    for asked in addresses {
        let from = if asked.is_ipv6() { asked } else { Ipv4Addr::LOCALHOST.into() };
        let client = UdpSocket::bind((from, 0)).unwrap();
        client.send_to(b"hi", (asked, port)).await.unwrap();
        let received = server.recv_msg(&mut buffer).await.unwrap();
        assert_eq!(received.local.map(|local| local.to_canonical()), Some(asked));
        // Mapped, as it came, and as it is written.
        for from in [received.local.unwrap(), asked] {
            server.send_from(b"yes", received.sender, from).await.unwrap();
            let answered = runtime::timeout(Duration::from_secs(30), client.recv_from(&mut buffer)).await;
            assert_eq!(answered.expect("no answer").unwrap(), (3, (asked, port).into()));
        }
        let other = addresses.into_iter().find(|other| *other != asked).unwrap();
        let refused = server.send_from(b"no", received.sender, other).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
}

/// A pair of sockets, each bound to an address of loopback, and the address under which the first
/// reaches the second.
struct Route {
    sender: UdpSocket,
    receiver: UdpSocket,
    to: SocketAddr,
}

/// Over IPv4, over IPv6, and over IPv4 by sockets of both families.
fn routes() -> [Route; 3] {
    let bind = |address: IpAddr| UdpSocket::bind((address, 0)).unwrap();
    let route = |own: IpAddr, peer: IpAddr| {
        let (sender, receiver) = (bind(own), bind(own));
        let to = (peer, receiver.local_addr().unwrap().port()).into();
        Route { sender, receiver, to }
    };
    let (v4, v6) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST));
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    [route(v4, v4), route(v6, v6), route(Ipv6Addr::UNSPECIFIED.into(), mapped.into())]
}

async fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> DatagramInfo {
    let received = runtime::timeout(Duration::from_secs(30), socket.recv_msg(buffer)).await;
    received.expect("a datagram is missing").unwrap()
}

#[runtime::test]
async fn a_congestion_mark_arrives_with_its_datagram_over_either_family() {
    for Route { sender, receiver, to } in routes() {
        let mut buffer = [0; 4];
        sender.send_msg(b"x", to, &SendOptions::new().ecn(Ecn::Ce)).await.unwrap();
        assert_eq!(receive(&receiver, &mut buffer).await.ecn, None);
        receiver.set_recv_ecn(true).unwrap();
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            sender.send_msg(b"x", to, &SendOptions::new().ecn(ecn)).await.unwrap();
            assert_eq!(receive(&receiver, &mut buffer).await.ecn, Some(ecn), "to {to}");
            sender.send_to(b"x", to).await.unwrap();
            assert_eq!(receive(&receiver, &mut buffer).await.ecn, Some(Ecn::NotEct), "to {to}");
        }
        receiver.set_recv_ecn(false).unwrap();
        sender.send_to(b"x", to).await.unwrap();
        assert_eq!(receive(&receiver, &mut buffer).await.ecn, None);
    }
}

#[runtime::test]
async fn datagrams_that_were_sent_together_are_received_together_and_split() {
    for Route { sender, receiver, to } in routes() {
        if requirements::require("UDP_GRO (Linux 5.0)", receiver.set_gro(true).ok()).is_none() {
            return;
        }
        receiver.set_pktinfo(true).unwrap();
        receiver.set_recv_ecn(true).unwrap();
        let bytes: Vec<u8> = (0..2500).map(|index| (index % 251) as u8).collect();
        let mut buffer = vec![0; 1 << 16];
        let options = SendOptions::new().segment_size(NonZeroU16::new(1000).unwrap()).ecn(Ecn::Ect0);
        assert_eq!(sender.send_msg(&bytes, to, &options.from(to.ip())).await.unwrap(), 2500);
        let info = receive(&receiver, &mut buffer).await;
        assert_eq!((info.length, info.segment_size), (2500, NonZeroU16::new(1000)), "to {to}");
        assert_eq!((info.ecn, info.local, info.truncated), (Some(Ecn::Ect0), Some(to.ip()), false));
        assert!(!info.control_truncated);
        assert_eq!(info.datagrams(&buffer).map(<[u8]>::len).collect::<Vec<_>>(), [1000, 1000, 500]);
        assert_eq!(info.datagrams(&buffer).collect::<Vec<_>>().concat(), bytes);
        // One datagram, and then a buffer that is too short for all of them.
        sender.send_to(&bytes, to).await.unwrap();
        let info = receive(&receiver, &mut buffer).await;
        assert_eq!((info.length, info.segment_size), (2500, None));
        sender.send_msg(&bytes, to, &options).await.unwrap();
        let info = receive(&receiver, &mut buffer[..1500]).await;
        assert_eq!((info.length, info.truncated), (1500, true));
        assert_eq!(info.datagrams(&buffer[..1500]).map(<[u8]>::len).collect::<Vec<_>>(), [1000, 500]);
    }
}

#[runtime::test]
async fn readiness_of_a_socket_ends_when_its_datagrams_are_taken_without_waiting() {
    let (receiver, sender) = (UdpSocket::bind(local()).unwrap(), UdpSocket::bind(local()).unwrap());
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    sender.writable().await.unwrap();
    assert_eq!(sender.try_send(b"one").unwrap(), 3);
    runtime::timeout(Duration::from_secs(30), receiver.readable()).await.unwrap().unwrap();
    let mut buffer = [0; 8];
    assert_eq!(receiver.try_recv(&mut buffer).unwrap(), 3);
    assert_eq!(receiver.try_recv(&mut buffer).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert!(runtime::timeout(Duration::from_millis(5), receiver.readable()).await.is_err(), "it spins");
    // By poll functions, also when the receive waits first.
    let receiving = std::future::poll_fn(|context| receiver.poll_recv_from(context, &mut buffer));
    let sending = std::future::poll_fn(|context| sender.poll_send(context, b"three"));
    let (received, sent) = futures_util::join!(receiving, sending);
    assert_eq!((received.unwrap(), sent.unwrap()), ((5, sender.local_addr().unwrap()), 5));
}

#[runtime::test]
async fn a_datagram_that_is_sent_is_no_event() {
    let sender = UdpSocket::bind(local()).unwrap();
    let receiver = std::net::UdpSocket::bind(local()).unwrap();
    let to = receiver.local_addr().unwrap();
    runtime::sleep(Duration::from_millis(1)).await;
    let before = runtime::metrics()[0].events;
    for _ in 0..20 {
        sender.send_to(b"x", to).await.unwrap();
        // The worker waits meanwhile.
        runtime::sleep(Duration::from_micros(100)).await;
    }
    assert_eq!(runtime::metrics()[0].events - before, 0);
}

#[runtime::test]
async fn options_of_a_socket_are_read_as_they_were_set() {
    let socket = UdpSocket::bind(local()).unwrap();
    assert_eq!(socket.multicast_ttl_v4().unwrap(), 1);
    socket.set_multicast_ttl_v4(3).unwrap();
    socket.set_ttl(7).unwrap();
    assert_eq!((socket.ttl().unwrap(), socket.multicast_ttl_v4().unwrap()), (7, 3));
    socket.set_tos_v4(0xb8).unwrap();
    assert_eq!(socket.tos_v4().unwrap(), 0xb8);
    assert!(!socket.broadcast().unwrap() && socket.multicast_loop_v4().unwrap());
    socket.set_broadcast(true).unwrap();
    socket.set_multicast_loop_v4(false).unwrap();
    assert!(socket.broadcast().unwrap() && !socket.multicast_loop_v4().unwrap());
    let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    assert!(socket.multicast_loop_v6().unwrap());
    socket.set_multicast_loop_v6(false).unwrap();
    assert!(!socket.multicast_loop_v6().unwrap());
}

#[runtime::test]
async fn a_peek_leaves_the_datagram_and_an_error_is_taken_once() {
    let (one, other) = (UdpSocket::bind(local()).unwrap(), UdpSocket::bind(local()).unwrap());
    one.connect(other.local_addr().unwrap()).unwrap();
    other.connect(one.local_addr().unwrap()).unwrap();
    one.send(b"hello").await.unwrap();
    let mut buffer = [0; 8];
    let peeked = runtime::timeout(Duration::from_secs(30), other.peek(&mut buffer)).await.unwrap();
    assert_eq!((peeked.unwrap(), other.try_recv(&mut buffer).unwrap()), (5, 5));
    drop(other);
    // Refused by the kernel, which says so by an event.
    one.send(b"refused").await.unwrap();
    runtime::timeout(Duration::from_secs(30), one.readable()).await.unwrap().unwrap();
    let error = one.take_error().unwrap().expect("nobody has the address");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(one.take_error().unwrap().is_none());
}

#[runtime::test]
async fn an_operation_of_the_callers_waits_for_its_datagram_and_ends_the_readiness() {
    let (receiver, sender) = (UdpSocket::bind(local()).unwrap(), UdpSocket::bind(local()).unwrap());
    let mut buffer = [0; 8];
    let mut tries = 0;
    let receiving = receiver.async_io(Direction::Read, || {
        tries += 1;
        Ok(rustix::net::recv(&receiver, &mut buffer, rustix::net::RecvFlags::empty())?.0)
    });
    let sending = async {
        runtime::sleep(Duration::from_millis(2)).await;
        sender.send_to(b"hello", receiver.local_addr().unwrap()).await.unwrap();
    };
    let receiving = runtime::timeout(Duration::from_secs(30), receiving);
    let (received, ()) = futures_util::join!(receiving, sending);
    assert_eq!(received.expect("the operation was forgotten").unwrap(), 5);
    assert!(tries <= 2, "it was tried {tries} times");
    let again = receiver.try_io(Direction::Read, || receiver.try_recv(&mut buffer));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(runtime::timeout(Duration::from_millis(5), receiver.readable()).await.is_err(), "it spins");
}
