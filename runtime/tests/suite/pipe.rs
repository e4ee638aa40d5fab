//! Named pipes. Those of child processes: `process`.

use std::io::ErrorKind;
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use runtime::pipe::{Receiver, Sender};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::io::Errno;

use crate::fs::Folder;

#[runtime::test]
async fn a_named_pipe_waits_for_its_writer_and_ends_with_it() {
    let folder = Folder::new();
    let path = folder.join("pipe");
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    let refused = Sender::open(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::NXIO.raw_os_error()), "nobody reads");
    let mut receiver = Receiver::open(&path).unwrap();
    let early = runtime::timeout(Duration::from_millis(10), receiver.read(&mut [0])).await;
    assert!(early.is_err(), "nobody has written: {early:?}");
    let mut sender = Sender::open(&path).unwrap();
    // More than a pipe holds.
    let sent: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
    let expected = sent.clone();
    let writing = runtime::spawn(async move { sender.write_all(&sent).await });
    let mut read = Vec::new();
    let ended = runtime::timeout(Duration::from_secs(30), receiver.read_to_end(&mut read)).await;
    ended.expect("it ends when the sender is dropped").unwrap();
    writing.await.unwrap().unwrap();
    assert!(read == expected);
}

#[runtime::test]
async fn what_is_not_a_named_pipe_is_refused_by_its_name() {
    let folder = Folder::new();
    let file = folder.join("file");
    std::fs::write(&file, "").unwrap();
    let error = Receiver::open(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), format!("{} is not a named pipe (mkfifo)", file.display()));
}

#[runtime::test]
async fn a_write_fails_once_nobody_reads() {
    let (mut sender, receiver) = runtime::pipe::pair().unwrap();
    drop(receiver);
    // A process that another test starts has the reading end until it runs its program. Until then
    // the pipe fills.
    let write = async {
        loop {
            if let Err(error) = sender.write_all(&[0; 100]).await {
                return error;
            }
        }
    };
    let error = runtime::timeout(Duration::from_secs(30), write).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}
