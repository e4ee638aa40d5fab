//! Descriptors on the driver.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use runtime::io::{AsyncFd, Direction, SourceKind};

const LIMIT: Duration = Duration::from_secs(30);

fn pair() -> (AsyncFd<UnixStream>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (AsyncFd::new(ours, SourceKind::Other).unwrap(), theirs)
}

#[runtime::test]
async fn a_read_waits_until_there_is_something() {
    let (ours, mut theirs) = pair();
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        theirs.write_all(b"hello").unwrap();
        theirs
    });
    let mut buffer = [0; 8];
    let read = ours.io(Direction::Read, |mut stream| stream.read(&mut buffer)).await.unwrap();
    assert_eq!(&buffer[..read], b"hello");
    drop(writer.join().unwrap());
    let read = ours.io(Direction::Read, |mut stream| stream.read(&mut buffer)).await.unwrap();
    assert_eq!(read, 0);
}

#[runtime::test]
async fn a_close_seen_with_the_data_is_not_forgotten_after_a_short_read() {
    let (ours, mut theirs) = pair();
    theirs.write_all(b"bye").unwrap();
    drop(theirs);
    let mut buffer = [0; 64];
    assert_eq!(ours.io(Direction::Read, |mut stream| stream.read(&mut buffer)).await.unwrap(), 3);
    ours.record_read(3, buffer.len());
    let end = ours.io(Direction::Read, |mut stream| stream.read(&mut buffer));
    assert_eq!(runtime::timeout(LIMIT, end).await.unwrap().unwrap(), 0);
}

#[runtime::test]
async fn a_descriptor_can_be_taken_back_and_registered_again() {
    let (ours, mut theirs) = pair();
    let stream = ours.into_inner().unwrap();
    let again = AsyncFd::new(stream, SourceKind::Other).unwrap();
    theirs.write_all(b"x").unwrap();
    let mut buffer = [0; 1];
    assert_eq!(again.io(Direction::Read, |mut stream| stream.read(&mut buffer)).await.unwrap(), 1);
}

#[runtime::test]
async fn a_regular_file_is_refused() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let error = AsyncFd::new(file, SourceKind::Other).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
}

#[runtime::test]
async fn a_dropped_wait_leaves_the_descriptor_usable() {
    let (ours, mut theirs) = pair();
    let waiting = ours.ready(Direction::Read);
    assert!(runtime::timeout(Duration::from_millis(1), waiting).await.is_err());
    theirs.write_all(b"y").unwrap();
    let mut buffer = [0; 1];
    assert_eq!(ours.io(Direction::Read, |mut stream| stream.read(&mut buffer)).await.unwrap(), 1);
}

#[runtime::test]
async fn a_guard_is_tried_until_the_operation_would_block_and_then_waits_for_the_next_event() {
    let (ours, mut theirs) = pair();
    theirs.write_all(b"ab").unwrap();
    let mut buffer = [0; 1];
    for expected in [b"a", b"b"] {
        let mut guard = ours.readable().await.unwrap();
        assert_eq!(guard.try_io(|fd| fd.get_ref().read(&mut buffer)).unwrap().unwrap(), 1);
        assert_eq!(&buffer, expected);
        guard.retain_ready();
    }
    // Still ready, as nothing has cleared it.
    let mut guard = ours.readable().await.unwrap();
    assert!(guard.try_io(|fd| fd.get_ref().read(&mut buffer)).is_err());
    assert!(runtime::timeout(Duration::from_millis(1), ours.readable()).await.is_err());
    theirs.write_all(b"c").unwrap();
    let mut guard = runtime::timeout(LIMIT, ours.readable()).await.expect("an event is missing").unwrap();
    assert_eq!(guard.get_ref().try_io(Direction::Read, |mut stream| stream.read(&mut buffer)).unwrap(), 1);
    // An error other than that it would block is the operation's result.
    let failed = guard.try_io(|_| Err::<(), _>(io::ErrorKind::PermissionDenied.into()));
    assert_eq!(failed.unwrap().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

#[runtime::test]
async fn a_guard_does_not_clear_an_event_that_is_newer() {
    let (ours, mut theirs) = pair();
    theirs.write_all(b"a").unwrap();
    let mut old = ours.readable().await.unwrap();
    let mut buffer = [0; 8];
    assert_eq!(old.try_io(|fd| fd.get_ref().read(&mut buffer)).unwrap().unwrap(), 1);
    theirs.write_all(b"b").unwrap();
    // The driver reports the second byte meanwhile.
    runtime::sleep(Duration::from_millis(2)).await;
    old.clear_ready();
    runtime::timeout(LIMIT, ours.readable()).await.expect("the event was cleared").unwrap().retain_ready();
}

#[runtime::test]
async fn a_writer_waits_by_guards_until_there_is_room() {
    let (ours, mut theirs) = pair();
    let mut written = 0;
    loop {
        let mut guard = ours.writable().await.unwrap();
        match guard.try_io(|fd| fd.get_ref().write(&[7; 4096])) {
            Ok(result) => written += result.unwrap(),
            Err(_would_block) => break,
        }
    }
    assert!(runtime::timeout(Duration::from_millis(1), ours.writable()).await.is_err());
    let reading = std::thread::spawn(move || {
        theirs.read_exact(&mut vec![0; written]).unwrap();
        theirs
    });
    let polled = std::future::poll_fn(|context| ours.poll_write_ready(context).map_ok(drop));
    runtime::timeout(LIMIT, polled).await.expect("an event is missing").unwrap();
    drop(reading.join().unwrap());
    let polled = std::future::poll_fn(|context| ours.poll_read_ready(context).map_ok(drop));
    runtime::timeout(LIMIT, polled).await.expect("the close is missing").unwrap();
}

#[runtime::test]
async fn a_datagram_socket_is_watched_for_room_only_after_a_send_has_found_none() {
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let ours = Rc::new(AsyncFd::new(ours, SourceKind::Datagrams).unwrap());
    let mut sent = 0;
    // The peer's queue holds some (`net.unix.max_dgram_qlen`).
    while ours.try_io(Direction::Write, |socket| socket.send(b"x")).is_ok() {
        sent += 1;
    }
    let waiting = runtime::spawn({
        let ours = Rc::clone(&ours);
        async move { ours.io(Direction::Write, |socket| socket.send(b"last")).await.unwrap() }
    });
    runtime::sleep(Duration::from_millis(2)).await;
    assert!(!waiting.is_finished());
    let mut buffer = [0; 8];
    for _ in 0..sent {
        assert_eq!(theirs.recv(&mut buffer).unwrap(), 1);
    }
    let waited = runtime::timeout(LIMIT, waiting).await;
    assert_eq!(waited.expect("nobody watches for room").unwrap(), 4);
    assert_eq!(theirs.recv(&mut buffer).unwrap(), 4);
}
