//! A file as it is served: what its headers say, and its bytes if they are few.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use adapters::hyper::FileBody;
use bytes::Bytes;
use hyper::body::Body;
use hyper::header::HeaderValue;

use super::encoding::Encoding;

/// Bytes of a file that are read before other tasks have their turn.
const READ_AT_A_TIME: usize = 128 << 10;

/// What changes when a file does: device, inode, length, modification and change in seconds and
/// nanoseconds.
type Identity = (u64, u64, u64, i64, i64, i64, i64);

/// An open file.
#[derive(Debug)]
pub struct ServedFile {
    identity: Identity,
    pub length: u64,
    pub source: Source,
    /// In whole seconds, as headers have it.
    pub modified: SystemTime,
    pub etag: HeaderValue,
    pub last_modified: HeaderValue,
    pub content_type: HeaderValue,
    pub content_length: HeaderValue,
    pub encoding: Option<Encoding>,
}

/// Where the bytes are.
#[derive(Debug)]
pub enum Source {
    /// In memory: the file is short, and not kept open.
    Memory(Bytes),
    File(Arc<File>),
}

impl ServedFile {
    /// Its bytes, if they are in memory.
    pub fn content(&self) -> Option<&Bytes> {
        match &self.source {
            Source::Memory(bytes) => Some(bytes),
            Source::File(_) => None,
        }
    }
}

/// What is at a path.
#[derive(Debug)]
pub enum Found {
    File(Arc<ServedFile>),
    Folder,
    /// A socket, a pipe or a device.
    Other,
}

/// What is open, for a request for `name`. Files of up to `in_memory` bytes are read. `known`: what
/// was found before, which is returned if nothing has changed.
pub async fn examine(
    file: File,
    name: &Path,
    in_memory: u64,
    encoding: Option<Encoding>,
    known: Option<&Arc<ServedFile>>,
) -> io::Result<Found> {
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Ok(Found::Folder);
    }
    if !metadata.is_file() {
        return Ok(Found::Other);
    }
    let identity = identity(&metadata);
    if let Some(known) = known.filter(|known| known.identity == identity) {
        return Ok(Found::File(Arc::clone(known)));
    }
    let file = Arc::new(file);
    let mut length = metadata.len();
    let mut source = Source::File(Arc::clone(&file));
    if length <= in_memory {
        let bytes = read(&file, length as usize).await?;
        // Cut meanwhile: the next look finds the other length.
        length = bytes.len() as u64;
        source = Source::Memory(bytes);
    }
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(metadata.mtime()).unwrap_or(0));
    let etag = etag(&metadata, encoding);
    let ascii = |text: String| HeaderValue::try_from(text).map_err(io::Error::other);
    Ok(Found::File(Arc::new(ServedFile {
        identity,
        length,
        source,
        modified,
        etag: ascii(etag)?,
        last_modified: ascii(httpdate::fmt_http_date(modified))?,
        content_type: ascii(content_type(name))?,
        content_length: length.into(),
        encoding,
    })))
}

fn identity(metadata: &Metadata) -> Identity {
    (
        metadata.dev(),
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    )
}

/// Modification and length, as nginx has them, with nanoseconds: two versions within a second
/// differ.
fn etag(metadata: &Metadata, encoding: Option<Encoding>) -> String {
    let suffix = encoding.map_or("", Encoding::suffix);
    format!("\"{:x}.{:x}-{:x}{suffix}\"", metadata.mtime(), metadata.mtime_nsec(), metadata.len())
}

/// By the ending of the name. Text is UTF-8.
fn content_type(name: &Path) -> String {
    let guess = mime_guess::from_path(name).first_or_octet_stream();
    let is_text = guess.type_() == "text" || matches!(guess.subtype().as_str(), "javascript" | "json");
    let charset = if is_text && guess.get_param("charset").is_none() { "; charset=utf-8" } else { "" };
    format!("{guess}{charset}")
}

/// Reads a whole file; less if it was cut meanwhile.
async fn read(file: &Arc<File>, length: usize) -> io::Result<Bytes> {
    let mut bytes = Vec::with_capacity(length);
    let mut yielded = 0;
    // It doesn't hold the worker up for the disk.
    let mut body = FileBody::new(Arc::clone(file), 0, length as u64);
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        match frame {
            Ok(frame) => {
                bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
                if bytes.len() >= yielded + READ_AT_A_TIME {
                    yielded = bytes.len();
                    runtime::yield_now().await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    Ok(bytes.into())
}
