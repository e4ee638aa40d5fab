//! The entries of a folder.

use std::collections::VecDeque;
use std::fs::DirEntry;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;

use crate::pool_call::pool_call;

/// How many entries one call on a thread reads: a folder of some files takes one.
const ENTRIES: usize = 64;

/// The entries of a folder, in no order. Each comes with the calls of [`DirEntry`], of which
/// `metadata` blocks: give it to [`spawn_blocking`](crate::spawn_blocking).
pub struct ReadDir {
    /// `None` after the last entry, and while it is read.
    rest: Option<std::fs::ReadDir>,
    read: VecDeque<io::Result<DirEntry>>,
    /// Kept, so that a dropped future of [`ReadDir::next_entry`] loses nothing.
    reading: Option<Reading>,
}

type Batch = (Option<std::fs::ReadDir>, VecDeque<io::Result<DirEntry>>);
type Reading = Pin<Box<dyn Future<Output = io::Result<Batch>> + Send>>;

/// Opens a folder, to read its entries.
pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref().to_owned();
    let (rest, read) = pool_call(move || Ok(read_some(std::fs::read_dir(path)?))).await?;
    Ok(ReadDir { rest, read, reading: None })
}

impl ReadDir {
    /// The next entry, or `None` after the last. A dropped wait loses no entry.
    ///
    /// # Errors
    /// That of reading the folder.
    pub async fn next_entry(&mut self) -> io::Result<Option<DirEntry>> {
        if self.read.is_empty()
            && let Some(rest) = self.rest.take()
        {
            self.reading = Some(Box::pin(pool_call(move || Ok(read_some(rest)))));
        }
        if let Some(reading) = &mut self.reading {
            let result = reading.await;
            self.reading = None;
            (self.rest, self.read) = result?;
        }
        self.read.pop_front().transpose()
    }
}

opaque_debug!(ReadDir, "ReadDir", |it| "read" = it.read);

/// Reads some entries. Also returns the folder, if it may have more.
fn read_some(mut folder: std::fs::ReadDir) -> Batch {
    let read: VecDeque<_> = folder.by_ref().take(ENTRIES).collect();
    ((read.len() == ENTRIES).then_some(folder), read)
}
