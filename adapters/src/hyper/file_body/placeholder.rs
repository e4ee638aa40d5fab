//! Bytes that stand for those of a file until the kernel sends them.
//!
//! hyper writes the bytes that a body gives it, and doesn't look at them. So a body may give it
//! bytes that are only an address: a part of a reserved region of memory, which nobody ever reads
//! or writes. When the stream is to write bytes of that region, it sends the file instead.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ::hyper::body::Bytes;
use memmap2::{Mmap, MmapOptions};
use slab::Slab;

/// How many bytes of a file one part of the region stands for.
pub(super) const SLOT: usize = 256 << 10;
/// How many parts may be waiting to be written at the same time, in the whole process: one for each
/// client that receives a file, seldom more.
const SLOTS: usize = 4096;

struct Region {
    /// Reserved address space. Nothing here touches its pages. It is mapped readable, because safe
    /// code that gets a body's bytes may read them. All of it would be the kernel's page of zeros,
    /// which takes no memory but page tables (2 MiB).
    bytes: Mmap,
    files: Mutex<Slab<FilePart>>,
}

/// From where on the file's bytes are sent.
#[derive(Debug, Clone)]
pub(crate) struct FilePart {
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
}

/// Reserved for the first file.
static REGION: OnceLock<Option<Region>> = OnceLock::new();

fn region() -> Option<&'static Region> {
    let reserve = || {
        // Refused where the address space is limited (ulimit -v): then files are read.
        let mapped = MmapOptions::new().len(SLOT * SLOTS).no_reserve_swap().map_anon().ok()?;
        Some(Region { bytes: mapped.make_read_only().ok()?, files: Mutex::default() })
    };
    REGION.get_or_init(reserve).as_ref()
}

impl Region {
    fn files(&self) -> MutexGuard<'_, Slab<FilePart>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of the region, in use until it is dropped.
struct Slot {
    region: &'static Region,
    index: usize,
    length: usize,
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        &self.region.bytes[self.index * SLOT..][..self.length]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The file is closed outside of the lock.
        let _part = self.region.files().try_remove(self.index);
    }
}

/// Bytes that stand for `length` bytes, at most [`SLOT`], of a file. `None`: there are none left.
pub(super) fn placeholder(file: &Arc<File>, offset: u64, length: usize) -> Option<Bytes> {
    let region = region()?;
    let index = {
        let mut files = region.files();
        if files.len() >= SLOTS {
            return None;
        }
        files.insert(FilePart { file: Arc::clone(file), offset })
    };
    Some(Bytes::from_owner(Slot { region, index, length: length.min(SLOT) }))
}

/// What bytes stand for, if they are of the region.
pub(crate) fn file_part(bytes: &[u8]) -> Option<FilePart> {
    let region = REGION.get()?.as_ref()?;
    let position = bytes.as_ptr().addr().checked_sub(region.bytes.as_ptr().addr())?;
    if position >= region.bytes.len() {
        return None;
    }
    let mut part = region.files().get(position / SLOT)?.clone();
    part.offset += (position % SLOT) as u64;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_found_by_its_address_until_it_is_dropped() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let first = placeholder(&file, 1000, 10).unwrap();
        let second = placeholder(&file, 5000, SLOT).unwrap();
        assert_eq!((first.len(), second.len()), (10, SLOT));
        assert_eq!(file_part(&first[3..]).unwrap().offset, 1003);
        assert_eq!(file_part(&second[SLOT - 1..]).unwrap().offset, 5000 + SLOT as u64 - 1);
        assert!(file_part(b"elsewhere").is_none());
        assert_eq!(Arc::strong_count(&file), 3);
        drop(first);
        assert_eq!(Arc::strong_count(&file), 2);
        assert_eq!(file_part(&second).unwrap().offset, 5000);
        // Not where it is to be sent, but nobody can be kept from it.
        assert!(second.iter().all(|byte| *byte == 0));
    }
}
