//! A line for each request.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::header::{HeaderValue, REFERER, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri, Version};
use rustix::fs::Access;
use rustix::io::Errno;

/// What the line says of a request, kept until its response has ended.
#[derive(Debug)]
pub struct LogLine {
    client: Option<SocketAddr>,
    method: Method,
    uri: Uri,
    version: Version,
    referer: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    pub status: StatusCode,
    pub bytes: u64,
}

impl LogLine {
    pub fn of<B>(request: &Request<B>, client: Option<SocketAddr>) -> Self {
        Self {
            client,
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            referer: request.headers().get(REFERER).cloned(),
            user_agent: request.headers().get(USER_AGENT).cloned(),
            status: StatusCode::OK,
            bytes: 0,
        }
    }

    /// `now` is in UTC, as the line says.
    pub fn write(&self, line: &mut String, now: SystemTime) {
        match self.client {
            Some(client) => drop(write!(line, "{}", client.ip().to_canonical())),
            None => line.push_str("unix:"),
        }
        line.push_str(" - - [");
        write_time(line, now);
        line.push_str("] \"");
        escape(line, self.method.as_str().as_bytes());
        line.push(' ');
        // A proxy's client names the whole URI, others the path.
        match self.uri.path_and_query() {
            Some(path) => escape(line, path.as_str().as_bytes()),
            None => escape(line, self.uri.to_string().as_bytes()),
        }
        let (status, bytes) = (self.status.as_u16(), self.bytes);
        let _ = write!(line, " {:?}\" {status} {bytes} \"", self.version);
        for (index, value) in [&self.referer, &self.user_agent].into_iter().enumerate() {
            line.push_str(if index == 0 { "" } else { "\" \"" });
            match value {
                Some(value) => escape(line, value.as_bytes()),
                None => line.push('-'),
            }
        }
        line.push_str("\"\n");
    }
}

/// What clients send must not look like another line or field.
fn escape(line: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | ..0x20 | 0x7f.. => drop(write!(line, "\\x{byte:02X}")),
            _ => line.push(byte.into()),
        }
    }
}

/// As `06/Nov/1994:08:49:37 +0000`, from the format of HTTP's headers, as
/// `Sun, 06 Nov 1994 08:49:37 GMT`.
fn write_time(line: &mut String, now: SystemTime) {
    let date = httpdate::fmt_http_date(now);
    let part = |range: std::ops::Range<usize>| date.get(range).unwrap_or_default();
    let _ = write!(line, "{}/{}/{}:{} +0000", part(5..7), part(8..11), part(12..16), part(17..25));
}

/// The size in bytes at which a worker's lines are written at once.
const WRITE_AT: usize = 64 << 10;
/// How often smaller amounts are written.
const INTERVAL: Duration = Duration::from_secs(1);
/// What a worker keeps at most while the disk is slow, in bytes; lines beyond are dropped and
/// counted.
const MAX_KEPT: usize = 4 << 20;

/// An access log. Each worker gathers its lines, and a thread of blocking work writes them.
#[derive(Debug)]
pub struct AccessLog {
    path: PathBuf,
    target: Mutex<Target>,
    workers: Box<[WorkerLines]>,
    dropped: AtomicU64,
    /// Of the first write that fails.
    warning: Once,
    /// It is dropped on a thread of blocking work.
    is_handed_over: bool,
}

#[derive(Debug)]
enum Target {
    /// Not opened yet.
    Nothing,
    File(LogFile),
    StandardOutput,
}

#[derive(Debug)]
struct LogFile {
    file: File,
    /// The last write has failed within a line, which the next one ends.
    in_line: bool,
}

impl LogFile {
    /// Writes whole lines. On an error returns how many were lost, too.
    fn write(&mut self, lines: &str) -> Result<(), (io::Error, usize)> {
        write_lines(&mut self.file, &mut self.in_line, lines)
    }
}

fn write_lines(file: &mut impl Write, in_line: &mut bool, lines: &str) -> Result<(), (io::Error, usize)> {
    let mut left = lines.as_bytes();
    let mut written = Ok(());
    if *in_line {
        written = file.write_all(b"\n");
        *in_line = written.is_err();
    }
    while written.is_ok() && !left.is_empty() {
        match file.write(left) {
            Ok(0) => written = Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => {
                *in_line = left[length - 1] != b'\n';
                left = &left[length..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => written = Err(error),
        }
    }
    written.map_err(|error| (error, left.iter().filter(|&&byte| byte == b'\n').count()))
}

#[derive(Debug, Default)]
struct WorkerLines {
    lines: Mutex<String>,
    /// Whether a thread is writing this worker's lines.
    writing: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(path: &Path) -> io::Result<Target> {
    match path.as_os_str() == "-" {
        true => Ok(Target::StandardOutput),
        false => {
            let file = File::options().append(true).create(true).open(path)?;
            Ok(Target::File(LogFile { file, in_line: false }))
        }
    }
}

impl AccessLog {
    /// A log that keeps its lines until it is [opened](Self::reopen).
    pub fn new(path: &Path) -> Arc<Self> {
        let workers = (0..runtime::workers()).map(|_| WorkerLines::default()).collect();
        let (path, target) = (path.to_owned(), Mutex::new(Target::Nothing));
        let (dropped, warning) = (AtomicU64::new(0), Once::new());
        Arc::new(Self { path, target, workers, dropped, warning, is_handed_over: false })
    }

    /// Whether the log could be opened, without making the file.
    ///
    /// # Errors
    /// Those of `access(2)`.
    pub fn check_access(path: &Path) -> io::Result<()> {
        let named = |error| io::Error::new(error, format!("{}: {error}", path.display()));
        if path.as_os_str() == "-" {
            return Ok(());
        }
        match rustix::fs::access(path, Access::WRITE_OK) {
            Err(Errno::NOENT) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                rustix::fs::access(folder.unwrap_or(Path::new(".")), Access::WRITE_OK | Access::EXEC_OK)
            }
            result => result,
        }
        .map_err(|error| named(io::Error::from(error).kind()))
    }

    /// Writes the lines of all workers at intervals, as long as the log exists.
    pub fn start_writing(self: &Arc<Self>) {
        let log = Arc::downgrade(self);
        drop(runtime::spawn(async move {
            loop {
                runtime::sleep(INTERVAL).await;
                let Some(log) = log.upgrade() else { return };
                (0..log.workers.len()).for_each(|worker| log.write_soon(worker));
            }
        }));
    }

    /// The path; `-` is the standard output.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a request's line.
    pub fn record(self: &Arc<Self>, line: &LogLine) {
        let worker = runtime::current_worker();
        let mut lines = lock(&self.workers[worker].lines);
        if lines.len() >= MAX_KEPT {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        line.write(&mut lines, SystemTime::now());
        let full = lines.len() >= WRITE_AT;
        drop(lines);
        if full {
            self.write_soon(worker);
        }
    }

    /// Opens the path, to append to the file, on a thread of blocking work; also again, when what
    /// rotates logs has moved the file away.
    ///
    /// # Errors
    /// Those of `open(2)`, with the path; the file that is open stays in use.
    pub async fn reopen(self: &Arc<Self>) -> io::Result<()> {
        let log = Arc::clone(self);
        let reopened = runtime::spawn_blocking(move || {
            // Lines that were gathered before belong to the file that was moved.
            log.write_all();
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", log.path.display()));
            *lock(&log.target) = open(&log.path).map_err(named)?;
            Ok(())
        });
        reopened.await.map_err(io::Error::other)?
    }

    /// Lines that were dropped, because the disk was slow or full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn write_soon(self: &Arc<Self>, worker: usize) {
        let lines = &self.workers[worker];
        if lock(&lines.lines).is_empty() || lines.writing.swap(true, Ordering::AcqRel) {
            return;
        }
        let log = Arc::clone(self);
        drop(runtime::spawn_blocking(move || {
            log.write(worker);
            log.workers[worker].writing.store(false, Ordering::Release);
        }));
    }

    fn write(&self, worker: usize) {
        let mut target = lock(&self.target);
        if matches!(*target, Target::Nothing) {
            return;
        }
        let lines = std::mem::take(&mut *lock(&self.workers[worker].lines));
        let written = match &mut *target {
            Target::Nothing => Ok(()),
            Target::File(file) => file.write(&lines),
            Target::StandardOutput => {
                let written = io::stdout().lock().write_all(lines.as_bytes());
                written.map_err(|error| (error, lines.lines().count()))
            }
        };
        if let Err((error, lost)) = written {
            self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
            self.warning.call_once(|| {
                tracing::warn!("cannot write to the access log {}: {error}", self.path.display());
            });
        }
    }

    /// Writes everything that is gathered, on the calling thread.
    pub fn write_all(&self) {
        (0..self.workers.len()).for_each(|worker| self.write(worker));
    }
}

impl Drop for AccessLog {
    /// After a reload with another path the last connection of the old site drops its log, on a
    /// worker.
    fn drop(&mut self) {
        let runtime = if self.is_handed_over { None } else { runtime::Handle::try_current() };
        let Some(runtime) = runtime else {
            self.write_all();
            return;
        };
        if self.workers.iter().all(|worker| lock(&worker.lines).is_empty()) {
            return;
        }
        let rest = Self {
            path: std::mem::take(&mut self.path),
            target: Mutex::new(std::mem::replace(&mut *lock(&self.target), Target::Nothing)),
            workers: std::mem::take(&mut self.workers),
            dropped: AtomicU64::new(0),
            warning: Once::new(),
            is_handed_over: true,
        };
        // Dropped there, or here if the runtime ends.
        drop(runtime.spawn_blocking(move || drop(rest)));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_has_nginx_s_fields_and_nothing_that_a_client_could_forge() {
        let request = Request::get("/a?b=c")
            .version(Version::HTTP_11)
            .header(USER_AGENT, HeaderValue::from_bytes(b"evil\" 200 \\ \xff\t").unwrap())
            .body(())
            .unwrap();
        let mut line = LogLine::of(&request, Some("10.1.2.3:4".parse().unwrap()));
        (line.status, line.bytes) = (StatusCode::NOT_FOUND, 14);
        let mut text = String::new();
        line.write(&mut text, SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777));
        assert_eq!(
            text,
            "10.1.2.3 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b=c HTTP/1.1\" 404 14 \"-\" \
             \"evil\\x22 200 \\x5C \\xFF\\x09\"\n"
        );
    }

    /// A disk with room for so many bytes.
    struct Disk {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = bytes.len().min(self.room - self.bytes.len());
            if length == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_after_one_that_was_cut_off_begins_on_its_own_line() {
        let mut disk = Disk { bytes: Vec::new(), room: 8 };
        let mut in_line = false;
        let (error, lost) = write_lines(&mut disk, &mut in_line, "first\nsecond\nthird\n").unwrap_err();
        assert_eq!((error.kind(), lost), (io::ErrorKind::StorageFull, 2));
        assert!(write_lines(&mut disk, &mut in_line, "fourth\n").is_err());
        disk.room = 100;
        write_lines(&mut disk, &mut in_line, "fifth\n").unwrap();
        assert_eq!(String::from_utf8(disk.bytes).unwrap(), "first\nse\nfifth\n");
    }

    #[test]
    fn what_a_dropped_log_has_gathered_is_written_also_when_the_runtime_ends() {
        let folder = tempfile::tempdir().unwrap();
        let gather = async |name: &str| {
            let path = folder.path().join(name);
            let log = AccessLog::new(&path);
            log.reopen().await.unwrap();
            lock(&log.workers[0].lines).push_str("line\n");
            (log, path)
        };
        let mut runtime = runtime::Builder::new().ignore_environment().workers(1).build().unwrap();
        let (before, at_the_end) = runtime.block_on(async {
            let (log, before) = gather("before").await;
            drop(log);
            let (log, at_the_end) = gather("at the end").await;
            drop(runtime::spawn(async move {
                std::future::pending::<()>().await;
                drop(log);
            }));
            (before, at_the_end)
        });
        // Waits for blocking work.
        drop(runtime);
        assert_eq!(std::fs::read_to_string(before).unwrap(), "line\n");
        assert_eq!(std::fs::read_to_string(at_the_end).unwrap(), "line\n");
    }
}
