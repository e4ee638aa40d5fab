//! Files on the threads of blocking work.

use std::fs::OpenOptions;
use std::future::Future;
use std::io::{ErrorKind, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use runtime::fs::{self, File};
use runtime::{Builder, DriverKind, Handle, Runtime};
use rustix::io::Errno;

use crate::drivers::drivers;

const LIMIT: Duration = Duration::from_secs(30);

/// A new temporary folder. Dropping this removes it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lull-fs-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[runtime::test]
async fn a_file_is_written_read_renamed_and_removed() {
    let folder = Folder::new();
    let (nested, renamed) = (folder.join("a/b/c"), folder.join("renamed"));
    fs::create_dir_all(&nested).await.unwrap();
    fs::create_dir_all(&nested).await.unwrap();
    let file = nested.join("file");
    fs::write(&file, "first").await.unwrap();
    fs::write(&file, vec![b'x', b'y', b'z']).await.unwrap();
    assert_eq!(fs::read(&file).await.unwrap(), b"xyz");
    assert_eq!(fs::read_to_string(&file).await.unwrap(), "xyz");
    assert_eq!(fs::metadata(&file).await.unwrap().len(), 3);
    assert!(fs::metadata(&nested).await.unwrap().is_dir());
    fs::rename(&file, &renamed).await.unwrap();
    assert_eq!(fs::metadata(&file).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs::copy(&renamed, &file).await.unwrap(), 3);
    assert_eq!(fs::read(&file).await.unwrap(), b"xyz");
    fs::remove_file(&renamed).await.unwrap();
    assert!(!renamed.exists());
}

#[runtime::test]
async fn folders_and_links_are_made_looked_at_and_removed() {
    let folder = Folder::new();
    let (inner, file) = (folder.join("inner"), folder.join("inner/file"));
    fs::create_dir(&inner).await.unwrap();
    assert_eq!(fs::create_dir(&inner).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    fs::write(&file, "content").await.unwrap();
    assert_eq!(fs::remove_dir(&inner).await.unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    let (second, link) = (folder.join("second"), folder.join("link"));
    fs::hard_link(&file, &second).await.unwrap();
    fs::symlink("inner/file", &link).await.unwrap();
    assert_eq!(fs::read_link(&link).await.unwrap(), PathBuf::from("inner/file"));
    assert!(fs::symlink_metadata(&link).await.unwrap().is_symlink());
    assert!(fs::metadata(&link).await.unwrap().is_file());
    assert_eq!(fs::canonicalize(&link).await.unwrap(), fs::canonicalize(&file).await.unwrap());
    fs::set_permissions(&link, std::fs::Permissions::from_mode(0o640)).await.unwrap();
    assert_eq!(fs::metadata(&second).await.unwrap().permissions().mode() & 0o777, 0o640);
    assert!(fs::try_exists(&link).await.unwrap());
    fs::remove_dir_all(&inner).await.unwrap();
    // The link points nowhere now, and the content has its second name.
    assert!(!fs::try_exists(&link).await.unwrap() && !fs::try_exists(&inner).await.unwrap());
    assert!(fs::try_exists(second.join("below a file")).await.is_err());
    assert_eq!(fs::read(&second).await.unwrap(), b"content");
    let empty = folder.join("empty");
    fs::create_dir(&empty).await.unwrap();
    fs::remove_dir(&empty).await.unwrap();
    assert!(!empty.exists());
}

#[runtime::test]
async fn a_file_is_a_stream_with_a_position_of_its_own() {
    let folder = Folder::new();
    let path = folder.join("file");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let mut file = File::open_with(&path, &options).await.unwrap();
    file.write_all(b"one\ntwo\nthree\n").await.unwrap();
    // A read sees what was written before it, without a flush; it begins after it.
    assert_eq!(file.read(&mut [0; 8]).await.unwrap(), 0);
    assert_eq!(file.seek(SeekFrom::Start(0)).await.unwrap(), 0);
    let mut line = String::new();
    file.read_line(&mut line).await.unwrap();
    assert_eq!((line.as_str(), file.stream_position().await.unwrap()), ("one\n", 4));
    // An operation with an offset leaves the position alone.
    assert_eq!(file.read_exact_at([0; 3], 0).await.unwrap(), *b"one");
    // What was read ahead is not lost, and not what is written over.
    file.write_all(b"TWO").await.unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "\nthree\n");
    assert_eq!(file.seek(SeekFrom::End(-6)).await.unwrap(), 8);
    assert_eq!(file.seek(SeekFrom::Current(-4)).await.unwrap(), 4);
    assert_eq!(file.seek(SeekFrom::Current(-5)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut four = [0; 4];
    file.read_exact(&mut four).await.unwrap();
    assert_eq!(&four, b"TWO\n");
    // More than one call moves.
    let long: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
    file.seek(SeekFrom::Start(20)).await.unwrap();
    file.write_all(&long).await.unwrap();
    file.close().await.unwrap();
    let content = fs::read(&path).await.unwrap();
    assert_eq!((&content[14..20], content[20..] == long), (&[0; 6][..], true));
    let mut copied = futures_util::io::Cursor::new(Vec::new());
    let copied_length =
        futures_util::io::copy_buf(File::open(&path).await.unwrap(), &mut copied).await.unwrap();
    assert_eq!((copied_length, copied.into_inner() == content), (300_020, true));
    assert!(file.try_into_std().is_ok());
}

#[runtime::test]
async fn the_error_of_a_write_is_that_of_the_next_operation_and_then_gone() {
    let folder = Folder::new();
    let path = folder.join("file");
    fs::write(&path, "content").await.unwrap();
    // Opened to be read only.
    let mut file = File::open(&path).await.unwrap();
    file.write_all(b"x").await.unwrap();
    let error = file.flush().await.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::BADF.raw_os_error()));
    file.flush().await.unwrap();
    assert_eq!(file.stream_position().await.unwrap(), 0, "where the write began");
    let mut content = String::new();
    file.read_to_string(&mut content).await.unwrap();
    assert_eq!(content, "content");
    file.write_all(b"x").await.unwrap();
    let mut file = file.try_into_std().expect_err("nobody has been told of the error");
    file.flush().await.unwrap_err();
    assert!(file.try_into_std().is_ok());
}

#[test]
fn what_asks_for_the_length_or_the_disk_waits_for_a_write_before() {
    for driver in drivers() {
        let folder = Folder::new();
        // With one thread calls are made one after the other anyway.
        let runtime = Builder::new().ignore_environment().workers(1).driver(driver).build().unwrap();
        runtime.block_on(async {
            let mut file = File::create(folder.join("file")).await.unwrap();
            for round in 0..200 {
                file.write_all(&[7; 10_000]).await.unwrap();
                let length = (round + 1) * 10_000;
                assert_eq!(file.metadata().await.unwrap().len(), length, "on {driver}");
            }
            file.write_all(&[7; 10_000]).await.unwrap();
            file.sync_data().await.unwrap();
            assert_eq!(std::fs::metadata(folder.join("file")).unwrap().len(), 2_010_000, "on {driver}");
            file.write_all(&[7; 10_000]).await.unwrap();
            file.set_len(0).await.unwrap();
            assert_eq!(std::fs::metadata(folder.join("file")).unwrap().len(), 0, "on {driver}");
        });
    }
}

#[test]
fn a_sync_that_was_cancelled_does_not_wait_for_a_later_write() {
    for driver in drivers() {
        let folder = Folder::new();
        let runtime = with_one_blocking_thread(driver);
        runtime.block_on(async {
            let path = folder.join("file");
            let mut file = File::create(&path).await.unwrap();
            let (release, occupied) = occupy_the_pool();
            begin_and_cancel(file.sync_all()).await;
            file.write_all(b"later").await.unwrap();
            release.send(()).unwrap();
            occupied.await.unwrap();
            runtime::timeout(LIMIT, file.flush()).await.expect("the pool is stuck").unwrap();
            assert_eq!(fs::read(&path).await.unwrap(), b"later", "on {driver}");
        });
    }
}

#[runtime::test]
async fn a_seek_drops_what_was_read_ahead_and_refuses_what_no_file_has() {
    let folder = Folder::new();
    let path = folder.join("file");
    fs::write(&path, "old").await.unwrap();
    let options = OpenOptions::new().read(true).write(true).clone();
    let mut file = File::open_with(&path, &options).await.unwrap();
    assert_eq!(file.fill_buf().await.unwrap(), b"old");
    file.consume_unpin(1_000);
    assert_eq!(file.stream_position().await.unwrap(), 3, "as much as there was");
    file.seek(SeekFrom::Start(0)).await.unwrap();
    file.fill_buf().await.unwrap();
    file.write_all_at("new", 0).await.unwrap();
    file.seek(SeekFrom::Start(0)).await.unwrap();
    assert_eq!(file.fill_buf().await.unwrap(), b"new");
    for to in [SeekFrom::Start(u64::MAX), SeekFrom::Current(-1), SeekFrom::End(i64::MAX)] {
        assert_eq!(file.seek(to).await.unwrap_err().kind(), ErrorKind::InvalidInput, "{to:?}");
    }
}

#[test]
fn a_read_of_a_stream_that_is_cancelled_loses_no_byte() {
    for driver in drivers() {
        let folder = Folder::new();
        let runtime = with_one_blocking_thread(driver);
        runtime.block_on(async {
            let path = folder.join("file");
            fs::write(&path, "0123456789").await.unwrap();
            let mut file = File::open(&path).await.unwrap();
            let (release, occupied) = occupy_the_pool();
            begin_and_cancel(file.read(&mut [0; 6])).await;
            assert_eq!(file.stream_position().await.unwrap(), 0);
            release.send(()).unwrap();
            occupied.await.unwrap();
            let mut bytes = [0; 4];
            file.read_exact(&mut bytes).await.unwrap();
            assert_eq!(&bytes, b"0123", "on {driver}");
            // Of the cancelled read two are left.
            assert_eq!((file.read(&mut bytes).await.unwrap(), &bytes[..2]), (2, &b"45"[..]), "on {driver}");
            let mut rest = String::new();
            file.read_to_string(&mut rest).await.unwrap();
            assert_eq!(rest, "6789", "on {driver}");
        });
    }
}

#[runtime::test]
async fn errors_are_those_of_the_system_calls() {
    let folder = Folder::new();
    let missing = folder.join("missing");
    let not_found = [
        fs::read(&missing).await.unwrap_err(),
        fs::read_to_string(&missing).await.unwrap_err(),
        fs::metadata(&missing).await.unwrap_err(),
        fs::remove_file(&missing).await.unwrap_err(),
        fs::rename(&missing, folder.join("other")).await.unwrap_err(),
        fs::write(missing.join("file"), "").await.unwrap_err(),
        File::open(&missing).await.unwrap_err(),
        File::create(missing.join("file")).await.unwrap_err(),
    ];
    for error in not_found {
        assert_eq!(
            (error.kind(), error.raw_os_error()),
            (ErrorKind::NotFound, Some(Errno::NOENT.raw_os_error()))
        );
    }
    let file = folder.join("file");
    fs::write(&file, [0xff]).await.unwrap();
    assert_eq!(fs::read_to_string(&file).await.unwrap_err().kind(), ErrorKind::InvalidData);
    let exists = File::open_with(&file, OpenOptions::new().write(true).create_new(true)).await.unwrap_err();
    assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::create_dir_all(&file).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let file = File::open(&file).await.unwrap();
    assert_eq!(file.read_exact_at([0; 2], 0).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    // It was opened to be read only.
    assert!(file.write_at("x", 0).await.is_err() && file.set_len(0).await.is_err());
}

#[runtime::test]
async fn reads_and_writes_are_at_their_offsets_and_return_the_buffer() {
    let folder = Folder::new();
    let path = folder.join("file");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = File::open_with(&path, &options).await.unwrap();
    let (written, buffer) = file.write_at(b"hello".to_vec(), 3).await.unwrap();
    assert_eq!((written, &buffer[..]), (5, &b"hello"[..]));
    assert_eq!(file.write_all_at("J", 3).await.unwrap(), "J");
    // As long as the buffer, not as its capacity.
    let mut buffer = Vec::with_capacity(64);
    buffer.resize(4, 0);
    let (read, buffer) = file.read_at(buffer, 2).await.unwrap();
    assert_eq!((read, &buffer[..]), (4, &b"\0Jel"[..]));
    let (read, buffer) = file.read_at([0; 16], 6).await.unwrap();
    assert_eq!(&buffer[..read], b"lo");
    assert_eq!(file.read_at(vec![1], 8).await.unwrap(), (0, vec![1]));
    assert_eq!(file.read_exact_at([0; 5], 3).await.unwrap(), *b"Jello");
    file.sync_data().await.unwrap();
    file.set_len(4).await.unwrap();
    file.sync_all().await.unwrap();
    assert_eq!(file.metadata().await.unwrap().len(), 4);
    assert_eq!(file.metadata().await.unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read(&path).await.unwrap(), b"\0\0\0J");
    file.try_into_std().expect("no operation goes on").set_len(1).unwrap();
    let appended = File::open_with(&path, OpenOptions::new().append(true)).await.unwrap();
    appended.write_all_at("end", 0).await.unwrap();
    assert_eq!(fs::read(&path).await.unwrap(), b"\0end");
    File::create(&path).await.unwrap();
    assert_eq!(fs::read(&path).await.unwrap(), b"");
}

#[runtime::test(workers = 2)]
async fn a_file_is_shared_by_the_tasks_of_several_workers() {
    let folder = Folder::new();
    let path = folder.join("file");
    let file = std::sync::Arc::new(File::create(&path).await.unwrap());
    let tasks: Vec<_> = (0..64_u64)
        .map(|number| {
            let file = std::sync::Arc::clone(&file);
            runtime::spawn_on(number as usize % 2, move || async move {
                file.write_all_at(vec![number as u8; 1000], number * 1000).await.map(drop)
            })
        })
        .collect();
    for task in tasks {
        runtime::timeout(LIMIT, task).await.expect("a write was lost").unwrap().unwrap();
    }
    let content = fs::read(&path).await.unwrap();
    assert_eq!(content.len(), 64_000);
    assert!(content.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / 1000));
}

async fn begin_and_cancel(operation: impl Future) {
    let mut operation = Box::pin(operation);
    std::future::poll_fn(|context| {
        assert!(operation.as_mut().poll(context).is_pending(), "there was a thread for it");
        Poll::Ready(())
    })
    .await;
}

/// Keeps the only thread of a pool until something is sent.
fn occupy_the_pool() -> (mpsc::Sender<()>, runtime::JoinHandle<()>) {
    let (begin, begun) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let occupied = runtime::spawn_blocking(move || {
        begin.send(()).unwrap();
        let _ = released.recv_timeout(LIMIT);
    });
    begun.recv_timeout(LIMIT).unwrap();
    (release, occupied)
}

fn with_one_blocking_thread(driver: DriverKind) -> Runtime {
    Builder::new().ignore_environment().workers(1).driver(driver).max_blocking_threads(1).build().unwrap()
}

#[test]
fn an_operation_that_is_cancelled_before_a_thread_has_begun_it_is_done_all_the_same() {
    for driver in drivers() {
        let folder = Folder::new();
        let runtime = with_one_blocking_thread(driver);
        runtime.block_on(async {
            let (first, second) = (folder.join("first"), folder.join("second"));
            fs::write(&first, "0123456789").await.unwrap();
            let file = File::open_with(&first, OpenOptions::new().write(true)).await.unwrap();
            let (release, occupied) = occupy_the_pool();
            begin_and_cancel(file.write_all_at(b"cancelled".to_vec(), 1)).await;
            begin_and_cancel(fs::write(&second, "cancelled")).await;
            let never_polled = fs::remove_file(&first);
            drop(never_polled);
            assert_eq!(Handle::current().blocking_metrics().queued, 2, "on {driver}");
            release.send(()).unwrap();
            occupied.await.unwrap();
            // The only thread takes one after the other.
            assert_eq!(fs::read(&first).await.unwrap(), b"0cancelled", "on {driver}");
            assert_eq!(fs::read(&second).await.unwrap(), b"cancelled", "on {driver}");
            assert!(file.try_into_std().is_ok());
        });
    }
}

#[test]
fn a_dropped_file_stays_open_until_its_operation_has_ended() {
    for driver in drivers() {
        let folder = Folder::new();
        let runtime = with_one_blocking_thread(driver);
        runtime.block_on(async {
            let (first, second) = (folder.join("first"), folder.join("second"));
            let file = File::create(&first).await.unwrap();
            let (release, occupied) = occupy_the_pool();
            begin_and_cancel(file.write_all_at("cancelled", 0)).await;
            let file = file.try_into_std().expect_err("the operation has the file, too");
            drop(file);
            // Would get the number of a descriptor that was closed.
            let other = std::fs::File::create(&second).unwrap();
            release.send(()).unwrap();
            occupied.await.unwrap();
            assert_eq!(fs::read(&first).await.unwrap(), b"cancelled", "on {driver}");
            assert_eq!(other.metadata().unwrap().len(), 0, "on {driver}");
        });
    }
}

#[runtime::test]
async fn a_call_leaves_the_worker_to_other_tasks() {
    let folder = Folder::new();
    let path = folder.join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    // Opening one end blocks until the other end is opened, which only another task does.
    let (reading, writing) = (path.clone(), path);
    let reader = runtime::spawn(async move { fs::read(reading).await });
    let writer = runtime::spawn(async move { fs::write(writing, "through").await });
    let read = runtime::timeout(LIMIT, reader).await.expect("the worker was blocked").unwrap().unwrap();
    assert_eq!(read, b"through");
    writer.await.unwrap().unwrap();
}
