//! Finds the file of a path, and remembers it.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quick_cache::Weighter;
use quick_cache::unsync::Cache;

use super::encoding::{ENCODINGS, Encoding};
use super::request_path::{RequestPath, is_plain};
use super::root::Root;
use super::served_file::{Found, ServedFile, examine};
use crate::web::config::FilesConfig;

/// How often paths are forgotten that were not looked up meanwhile: their files may be gone, and
/// use disk space while open.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// A file, and what was compressed of it.
#[derive(Debug)]
pub struct Entry {
    pub file: Arc<ServedFile>,
    /// By the order of [`ENCODINGS`].
    encoded: [Option<Arc<ServedFile>>; ENCODINGS.len()],
    looked_up: Instant,
}

impl Entry {
    pub fn encoded(&self, encoding: Encoding) -> Option<&Arc<ServedFile>> {
        let index = ENCODINGS.iter().position(|it| *it == encoding)?;
        self.encoded[index].as_ref()
    }

    /// Whether the response depends on the client's encodings.
    pub fn varies(&self) -> bool {
        self.encoded.iter().any(Option::is_some)
    }
}

/// What a path leads to.
#[derive(Debug)]
pub enum Lookup {
    File(Arc<Entry>),
    /// A folder whose path lacks the slash at its end.
    FolderWithoutSlash,
    /// A folder without an index, or something that may not be read.
    Forbidden,
    NotFound,
}

/// Weight of a path in bytes, with a minimum that limits the cache to `cache-entries` paths: each
/// may keep descriptors open.
#[derive(Debug, Clone)]
struct EntryWeight {
    least: u64,
}

impl Weighter<Box<[u8]>, Arc<Entry>> for EntryWeight {
    fn weight(&self, path: &Box<[u8]>, entry: &Arc<Entry>) -> u64 {
        let files = entry.encoded.iter().flatten().chain([&entry.file]);
        let content: usize = files.filter_map(|file| file.content()).map(bytes::Bytes::len).sum();
        ((path.len() + content) as u64).max(self.least)
    }
}

/// By the decoded path.
type EntryCache = Cache<Box<[u8]>, Arc<Entry>, EntryWeight>;

/// The files of a root, with a cache for each worker: their locks are never contended.
#[derive(Debug)]
pub struct Files {
    root: Root,
    index: Vec<String>,
    dotfiles: bool,
    precompressed: bool,
    valid: Duration,
    /// Files up to this length are kept in memory, in bytes.
    in_memory: u64,
    caches: Box<[Mutex<EntryCache>]>,
}

impl Files {
    pub fn new(root: Root, config: &FilesConfig) -> Self {
        let entries = config.cache_entries.max(1);
        let weight = EntryWeight { least: (config.cache_memory / entries as u64).max(1) };
        let cache = |_| Mutex::new(Cache::with_weighter(entries, config.cache_memory, weight.clone()));
        Self {
            root,
            index: config.index.clone(),
            dotfiles: config.dotfiles,
            precompressed: config.precompressed,
            valid: config.cache_valid,
            // The cache refuses an entry that takes nearly all of it, and an entry has up to four
            // files.
            in_memory: config.cache_file_size.min(config.cache_memory / 8),
            caches: (0..runtime::workers()).map(cache).collect(),
        }
    }

    /// Finds the file of a URI's path.
    ///
    /// # Errors
    /// If the kernel can't open or read what is there.
    pub async fn look_up(&self, path: &str) -> io::Result<Lookup> {
        if is_plain(path)
            && let Some(entry) = self.valid_entry(path.as_bytes())
        {
            return Ok(Lookup::File(entry));
        }
        // What is malformed is not there, and what is hidden isn't, either.
        let Ok(parsed) = RequestPath::parse(path, self.dotfiles) else { return Ok(Lookup::NotFound) };
        // One entry for a path, however it is encoded.
        let key = parsed.absolute();
        if let Some(entry) = self.valid_entry(&key) {
            return Ok(Lookup::File(entry));
        }
        let known = self.cache().get(&key[..]).map(Arc::clone);
        let found = self.find(&parsed, known.as_deref()).await;
        match &found {
            Ok(Lookup::File(entry)) => self.cache().insert(key.into(), Arc::clone(entry)),
            _ => {
                self.cache().remove(&key[..]);
            }
        }
        found
    }

    fn valid_entry(&self, key: &[u8]) -> Option<Arc<Entry>> {
        let cache = self.cache();
        cache.get(key).filter(|entry| entry.looked_up.elapsed() < self.valid).map(Arc::clone)
    }

    fn cache(&self) -> MutexGuard<'_, EntryCache> {
        self.caches[runtime::current_worker()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes files that nobody has asked for lately, as long as the files are served.
    pub fn start_sweeps(self: &Arc<Self>) {
        let files = Arc::downgrade(self);
        drop(runtime::spawn(async move {
            loop {
                runtime::sleep(SWEEP_INTERVAL).await;
                let Some(files) = files.upgrade() else { return };
                let kept = SWEEP_INTERVAL.max(files.valid);
                for cache in &files.caches {
                    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                    cache.retain(|_, entry| entry.looked_up.elapsed() < kept);
                }
            }
        }));
    }

    async fn find(&self, path: &RequestPath, known: Option<&Entry>) -> io::Result<Lookup> {
        let found = self.open(path, None, known.map(|known| &known.file)).await?;
        match found {
            Opened::Nothing => Ok(Lookup::NotFound),
            Opened::Forbidden | Opened::Found(Found::Other) => Ok(Lookup::Forbidden),
            // A file is not a folder.
            Opened::Found(Found::File(_)) if path.is_folder() => Ok(Lookup::NotFound),
            Opened::Found(Found::File(file)) => self.entry(path, file, known).await,
            Opened::Found(Found::Folder) if !path.is_folder() => Ok(Lookup::FolderWithoutSlash),
            Opened::Found(Found::Folder) => {
                for name in &self.index {
                    let path = path.join(name);
                    let opened = self.open(&path, None, known.map(|known| &known.file)).await?;
                    if let Opened::Found(Found::File(file)) = opened {
                        return self.entry(&path, file, known).await;
                    }
                }
                Ok(Lookup::Forbidden)
            }
        }
    }

    async fn entry(
        &self,
        path: &RequestPath,
        file: Arc<ServedFile>,
        known: Option<&Entry>,
    ) -> io::Result<Lookup> {
        let mut encoded = [None, None, None];
        if self.precompressed {
            for (slot, encoding) in encoded.iter_mut().zip(ENCODINGS) {
                let known = known.and_then(|known| known.encoded(encoding));
                // A broken one is as good as none.
                let opened = self.open(path, Some(encoding), known).await;
                if let Ok(Opened::Found(Found::File(file))) = opened {
                    *slot = Some(file);
                }
            }
        }
        Ok(Lookup::File(Arc::new(Entry { file, encoded, looked_up: Instant::now() })))
    }

    async fn open(
        &self,
        path: &RequestPath,
        encoding: Option<Encoding>,
        known: Option<&Arc<ServedFile>>,
    ) -> io::Result<Opened> {
        let name = path.relative();
        let opened = match encoding {
            Some(encoding) => self.root.open_beneath(path.with_suffix(encoding.suffix()).relative()).await,
            None => self.root.open_beneath(name).await,
        };
        match opened {
            Ok(file) => Ok(Opened::Found(examine(file, name, self.in_memory, encoding, known).await?)),
            Err(error) => refused(error, name),
        }
    }
}

enum Opened {
    Found(Found),
    Forbidden,
    Nothing,
}

fn refused(error: io::Error, path: &Path) -> io::Result<Opened> {
    match error.raw_os_error() {
        // Not a folder on the way, a name that is too long, links that lead in a circle, or out of
        // the root.
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG | libc::ELOOP | libc::EXDEV) => {
            Ok(Opened::Nothing)
        }
        // Sockets can't be opened.
        Some(libc::EACCES | libc::EPERM | libc::ENXIO | libc::ENODEV) => Ok(Opened::Forbidden),
        _ => {
            tracing::warn!("cannot open {}: {error}", path.display());
            Err(error)
        }
    }
}
