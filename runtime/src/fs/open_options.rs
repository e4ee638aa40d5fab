//! How a file is opened.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::file::File;
use crate::pool_call::pool_call;

/// How a file is opened: [`std::fs::OpenOptions`], whose defaults these have. All options are off
/// at first.
#[derive(Debug, Clone)]
#[must_use = "options do nothing until a file is opened with them"]
pub struct OpenOptions(std::fs::OpenOptions);

impl OpenOptions {
    /// No option is set: a file can't be opened without [`read`](Self::read),
    /// [`write`](Self::write) or [`append`](Self::append).
    #[expect(clippy::new_without_default, reason = "as in the standard library")]
    pub fn new() -> Self {
        Self(std::fs::OpenOptions::new())
    }

    /// The file can be read.
    pub fn read(mut self, read: bool) -> Self {
        self.0.read(read);
        self
    }

    /// The file can be written. What is in it stays, unless [`truncate`](Self::truncate) is set.
    pub fn write(mut self, write: bool) -> Self {
        self.0.write(write);
        self
    }

    /// Each write goes to the end of the file, [`File::write_at`] included: Linux ignores its
    /// offset then (`pwrite(2)`, BUGS).
    #[doc(alias = "O_APPEND")]
    pub fn append(mut self, append: bool) -> Self {
        self.0.append(append);
        self
    }

    /// A file that exists is cut to length 0. It needs [`write`](Self::write).
    #[doc(alias = "O_TRUNC")]
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.0.truncate(truncate);
        self
    }

    /// A file that does not exist is created. It needs [`write`](Self::write) or
    /// [`append`](Self::append).
    #[doc(alias = "O_CREAT")]
    pub fn create(mut self, create: bool) -> Self {
        self.0.create(create);
        self
    }

    /// The file is created, and must not have existed. [`create`](Self::create) and
    /// [`truncate`](Self::truncate) have no effect then.
    #[doc(alias = "O_EXCL")]
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.0.create_new(create_new);
        self
    }

    /// The permissions of a file that is created, less those of the umask. Default: 0o666.
    pub fn mode(mut self, mode: u32) -> Self {
        self.0.mode(mode);
        self
    }

    /// More flags of `open(2)`, for example `libc::O_DIRECT`. The access mode is not taken from
    /// them.
    pub fn custom_flags(mut self, flags: i32) -> Self {
        self.0.custom_flags(flags);
        self
    }

    /// Opens a file with these options, on a thread of the blocking pool.
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let (options, path) = (self.0.clone(), path.as_ref().to_owned());
        pool_call(move || options.open(path)).await.map(File::from_std)
    }
}

// Here, so that the two files don't import each other.
impl File {
    /// Opens a file to read it.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().read(true).open(path).await
    }

    /// Opens a file to write it: creates it, or truncates the one that there is.
    pub async fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path).await
    }

    /// The options of [`OpenOptions::new`].
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }
}

impl From<std::fs::OpenOptions> for OpenOptions {
    fn from(options: std::fs::OpenOptions) -> Self {
        Self(options)
    }
}
