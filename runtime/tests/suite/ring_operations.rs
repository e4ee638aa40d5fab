//! Operations that an application submits to its worker's ring.

use std::cell::Cell;
use std::fs::File;
use std::future::Future;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use runtime::DriverKind;
use runtime::io::{NoRing, RingFd, RingOperation, has_ring, submit};

use crate::drivers::{drivers, one_worker};

const LIMIT: Duration = Duration::from_secs(30);

struct Counted {
    bytes: Vec<u8>,
    count: Rc<Cell<usize>>,
}

impl Counted {
    fn new(bytes: usize, count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self { bytes: vec![0; bytes], count: Rc::clone(count) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
    }
}

fn pipe() -> (File, File) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    (reader.into(), writer.into())
}

fn memory_file(bytes: &[u8]) -> File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("ring-operations", flags).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn read(file: &File, mut keep: Counted) -> RingOperation<Counted> {
    let fd = types::Fd(file.as_raw_fd());
    let entry = opcode::Read::new(fd, keep.bytes.as_mut_ptr(), keep.bytes.len() as u32).offset(u64::MAX);
    // SAFETY: the kernel writes to the vector's bytes, which are on the heap, and which nobody else
    // uses.
    unsafe { submit(bytes_of(entry.build()), keep) }.unwrap_or_else(|(no_ring, _)| panic!("{no_ring}"))
}

fn bytes_of(entry: squeue::Entry) -> [u8; 64] {
    // SAFETY: an entry is 64 bytes, all of them initialized.
    unsafe { std::mem::transmute(entry) }
}

fn nop() -> RingOperation<()> {
    // SAFETY: it uses nothing.
    unsafe { submit(bytes_of(opcode::Nop::new().build()), ()) }
        .unwrap_or_else(|(no_ring, ())| panic!("{no_ring}"))
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Goes on in a later poll of the task; `enter`: after the worker has entered its ring.
async fn end_turn(enter: bool) {
    match enter {
        true => runtime::sleep(Duration::from_nanos(1)).await,
        false => runtime::yield_now().await,
    }
}

/// Runs turns of the worker until nothing is alive.
async fn until_none_lives(count: &Cell<usize>) {
    let end = Instant::now() + LIMIT;
    while count.get() > 0 {
        assert!(Instant::now() < end, "{} operations are alive", count.get());
        runtime::sleep(Duration::from_micros(200)).await;
    }
}

#[runtime::test(driver = "epoll")]
async fn without_a_ring_operations_fail_with_a_reason() {
    assert!(!has_ring());
    // SAFETY: it uses nothing.
    let refused = unsafe { submit(bytes_of(opcode::Nop::new().build()), 7) };
    assert_eq!(refused.unwrap_err(), (NoRing, 7));
    let file = RingFd::new(memory_file(b"hello"));
    let (error, buffer) = file.read_at(vec![1, 2], 0).await;
    let error = error.unwrap_err();
    assert_eq!((error.kind(), buffer), (ErrorKind::Unsupported, vec![1, 2]));
    assert!(error.get_ref().unwrap().is::<NoRing>());
    assert!(error.to_string().contains("epoll"), "{error}");
    assert_eq!(RingFd::open("/proc/self/exe", 0, 0).await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[runtime::test]
async fn a_file_is_written_read_and_synced() {
    if !has_ring() {
        return;
    }
    let file = RingFd::new(memory_file(b"0123456789"));
    let (written, bytes) = file.write_at(Bytes::from_static(b"abc"), 4).await;
    assert_eq!((written.unwrap(), &bytes[..]), (3, &b"abc"[..]));
    file.sync_all().await.unwrap();
    file.sync_data().await.unwrap();
    let mut buffer = Vec::with_capacity(32);
    buffer.extend_from_slice(b"> ");
    let (read, buffer) = file.read_at(buffer, 2).await;
    assert_eq!((read.unwrap(), &buffer[..]), (8, &b"> 23abc789"[..]));
    let (end, buffer) = file.read_at(buffer, 10).await;
    assert_eq!((end.unwrap(), buffer.len()), (0, 10));
    let (error, buffer) = file.read_at(buffer, u64::MAX).await;
    assert_eq!((error.unwrap_err().kind(), buffer.len()), (ErrorKind::InvalidInput, 10));
    // At its position.
    let (first, buffer) = file.read(Vec::with_capacity(4)).await;
    let (second, more) = file.read(Vec::with_capacity(4)).await;
    assert_eq!((first.unwrap(), second.unwrap()), (4, 4));
    assert_eq!([buffer, more].concat(), b"0123abc7");
    let (error, bytes) = RingFd::new(File::open("/proc/self/exe").unwrap()).write(bytes).await;
    assert_eq!((error.unwrap_err().raw_os_error(), &bytes[..]), (Some(libc::EBADF), &b"abc"[..]));
}

#[runtime::test]
async fn a_file_is_opened_by_its_path() {
    if !has_ring() {
        return;
    }
    let opened = std::env::temp_dir().join(format!("lull-ring-test-{}", std::process::id()));
    std::fs::write(&opened, "content").unwrap();
    let file = RingFd::open(&opened, libc::O_RDONLY, 0).await.unwrap();
    std::fs::remove_file(&opened).unwrap();
    let (read, bytes) = file.read_at(Vec::with_capacity(1 << 16), 0).await;
    assert_eq!((read.unwrap(), &bytes[..]), (7, &b"content"[..]));
    let flags = rustix::io::fcntl_getfd(file.get_ref()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let missing = RingFd::open("/nowhere/at all", libc::O_RDONLY, 0).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let invalid = RingFd::open("zero\0byte", libc::O_RDONLY, 0).await;
    assert_eq!(invalid.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[runtime::test]
async fn an_operation_waits_for_its_event() {
    if !has_ring() {
        return;
    }
    let (reader, mut writer) = pipe();
    let reader = RingFd::new(reader);
    let reading = runtime::spawn(async move {
        let events = reader.poll(libc::POLLIN).await.unwrap();
        (events, reader.read(Vec::with_capacity(16)).await.1)
    });
    runtime::sleep(Duration::from_millis(2)).await;
    assert!(!reading.is_finished());
    writer.write_all(b"hello").unwrap();
    let (events, bytes) = runtime::timeout(LIMIT, reading).await.unwrap().unwrap();
    assert_eq!((events, &bytes[..]), (libc::POLLIN, &b"hello"[..]));
}

#[runtime::test]
async fn a_dropped_operation_is_cancelled_and_its_memory_lives_until_it_has_ended() {
    if !has_ring() {
        return;
    }
    let count = Rc::new(Cell::new(0));
    let (mut reader, mut writer) = pipe();
    let mut reading = read(&reader, Counted::new(16, &count));
    // In flight.
    runtime::sleep(Duration::from_millis(2)).await;
    assert!(poll_once(&mut reading).is_pending());
    drop(reading);
    assert_eq!(count.get(), 1, "the kernel may still write to it");
    until_none_lives(&count).await;
    // Nobody takes this.
    writer.write_all(b"x").unwrap();
    runtime::sleep(Duration::from_millis(2)).await;
    let mut byte = [0];
    reader.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"x");
    // Not submitted yet when it is dropped.
    drop(read(&reader, Counted::new(16, &count)));
    assert_eq!(count.get(), 1);
    until_none_lives(&count).await;
}

#[runtime::test]
async fn operations_dropped_at_random_points_leave_nothing_behind() {
    if !has_ring() {
        return;
    }
    let count = Rc::new(Cell::new(0));
    let content: Vec<u8> = (0..=255).collect();
    let file = RingFd::new(memory_file(&content));
    let (silent, _writer) = pipe();
    let (mut finished, mut dropped) = (0, 0);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    // As in net's tests of cancellation.
    let rounds = std::env::var("DROPS").ok().and_then(|drops| drops.parse().ok()).unwrap_or(10_000);
    for round in 0..rounds {
        // It never completes by itself.
        let mut waiting = read(&silent, Counted::new(64, &count));
        let offset = random(256);
        let mut reading = Box::pin(file.read_at(Vec::with_capacity(64), offset));
        let polls = random(4);
        for turn in 0..polls {
            assert!(poll_once(&mut waiting).is_pending());
            if let Poll::Ready((read, bytes)) = poll_once(&mut reading) {
                let expected = &content[offset as usize..content.len().min(offset as usize + 64)];
                assert_eq!((read.unwrap(), &bytes[..]), (expected.len(), expected));
                finished += 1;
                break;
            }
            if turn + 1 < polls {
                end_turn(random(2) == 0).await;
            } else {
                dropped += 1;
            }
        }
        if random(2) == 0 {
            drop(waiting);
            drop(reading);
        } else {
            drop(reading);
            drop(waiting);
        }
        if round % 64 == 0 {
            runtime::sleep(Duration::from_micros(random(200))).await;
        }
    }
    until_none_lives(&count).await;
    eprintln!("{finished} reads were finished, {dropped} dropped");
    assert!(finished > 0 && dropped > 0);
}

#[runtime::test]
async fn more_operations_than_the_ring_holds_complete() {
    if !has_ring() {
        return;
    }
    // The queues hold 512 submissions and 4096 completions.
    for count in [513, 10_000] {
        let operations: Vec<_> = (0..count).map(|_| nop()).collect();
        for operation in operations {
            let (result, ()) = runtime::timeout(LIMIT, operation).await.expect("an operation is lost");
            assert_eq!(result.unwrap(), 0);
        }
    }
}

#[runtime::test]
async fn the_descriptor_of_a_dropped_open_is_closed() {
    if !has_ring() {
        return;
    }
    // Nobody else in this process opens it.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/ring_operations.rs");
    let open = || {
        let links = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| entry.ok()?.path().read_link().ok());
        links.filter(|link| link.ends_with("suite/ring_operations.rs")).count()
    };
    for polls in [1, 2, 3].into_iter().cycle().take(300) {
        let mut opening = Box::pin(RingFd::open(path, libc::O_RDONLY, 0));
        for _ in 0..polls {
            if poll_once(&mut opening).is_ready() {
                break;
            }
            end_turn(polls > 1).await;
        }
    }
    let end = Instant::now() + LIMIT;
    while open() > 0 {
        assert!(Instant::now() < end, "{} descriptors were left open", open());
        runtime::sleep(Duration::from_millis(1)).await;
    }
}

#[runtime::test]
async fn what_a_dropped_operation_has_brought_is_disposed_of() {
    if !has_ring() {
        return;
    }
    fn note(result: io::Result<u32>, seen: Rc<Cell<Option<u32>>>) {
        seen.set(result.ok());
    }
    let seen = Rc::new(Cell::new(None));
    // Completed before it is dropped, and not at all.
    for dispose in [true, false] {
        seen.set(None);
        // SAFETY: it uses nothing.
        let operation = unsafe { submit(bytes_of(opcode::Nop::new().build()), Rc::clone(&seen)) };
        let mut operation = operation.unwrap_or_else(|_| panic!("no ring")).on_abandoned(note);
        runtime::sleep(Duration::from_millis(2)).await;
        if !dispose {
            assert!(poll_once(&mut operation).is_ready());
        }
        drop(operation);
        assert_eq!(seen.get(), dispose.then_some(0));
    }
}

#[test]
fn the_end_of_the_runtime_waits_for_its_operations() {
    for driver in drivers().into_iter().filter(|driver| *driver != DriverKind::Epoll) {
        let runtime = one_worker(driver);
        let count = Rc::new(Cell::new(0));
        let (reader, _writer) = pipe();
        let mut outliving = None;
        runtime.block_on(async {
            let (in_task, count) = (reader.try_clone().unwrap(), Rc::clone(&count));
            outliving = Some(read(&reader, Counted::new(16, &count)));
            drop(runtime::spawn(async move {
                let _ = read(&in_task, Counted::new(16, &count)).await;
            }));
            runtime::sleep(Duration::from_millis(2)).await;
        });
        assert_eq!(count.get(), 2);
        drop(runtime);
        assert_eq!(count.get(), 1, "on {driver}: that of the task has ended, and is dropped");
        let Poll::Ready((result, _keep)) = poll_once(outliving.as_mut().unwrap()) else {
            panic!("on {driver}: pending")
        };
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    }
}

#[runtime::test]
async fn a_zero_copy_send_gives_its_buffer_back_after_the_notification() {
    if !has_ring() {
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    let bytes = vec![5; 100_000];
    let entry: squeue::Entry =
        opcode::SendZc::new(types::Fd(sender.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32).build();
    // SAFETY: the entry points to the vector's bytes, which are on the heap.
    let sending = unsafe { submit(bytes_of(entry), bytes) }.unwrap_or_else(|_| panic!("no ring"));
    let reading = std::thread::spawn(move || {
        let mut received = Vec::new();
        receiver.read_to_end(&mut received).unwrap();
        received
    });
    let (sent, bytes) = runtime::timeout(LIMIT, sending).await.expect("no notification");
    let sent = sent.unwrap() as usize;
    assert!(sent > 0 && bytes.len() == 100_000);
    drop(sender);
    assert_eq!(reading.join().unwrap(), bytes[..sent]);
}
