//! Descriptors on the driver.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use runtime::io::{AsyncFd, Direction, SourceKind};

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
    assert_eq!(runtime::timeout(Duration::from_secs(5), end).await.unwrap().unwrap(), 0);
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
