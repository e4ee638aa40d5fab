//! What a web server is started with.

mod proxy;
mod size;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

pub use self::proxy::{HealthCheckConfig, ProxyConfig};

/// What a web server is started with; a TOML file has the same names.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Config {
    /// Addresses to serve HTTP/1.1 and HTTP/2 on. Port 0 takes any free port. Default:
    /// 127.0.0.1:8080.
    pub listen: Vec<SocketAddr>,
    /// Connections that may wait to be accepted. Default: 1024.
    pub backlog: i32,
    /// HTTPS, with the addresses to listen on for it. Default: none.
    pub tls: Option<TlsConfig>,
    /// The folder with the files. Default: none; then only proxies answer.
    pub files: Option<FilesConfig>,
    /// Requests that go to other servers. The longest `path` that fits is taken.
    pub proxy: Vec<ProxyConfig>,
    /// What clients may take.
    pub limits: Limits,
    /// A file that gets one line per request, in nginx's `combined` format; `-` is the standard
    /// output. Default: none.
    pub access_log: Option<PathBuf>,
    /// The path of a page with counters in Prometheus' format, as `/metrics`. Everybody who reaches
    /// the server can read it. Default: none.
    pub stats: Option<String>,
}

/// HTTPS.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TlsConfig {
    /// Addresses to serve HTTPS on.
    pub listen: Vec<SocketAddr>,
    /// The certificate chain, a PEM file: the server's certificate first.
    pub certificate: PathBuf,
    /// Its private key, a PEM file.
    pub key: PathBuf,
    /// Other certificates, for clients that ask for these names (SNI).
    #[serde(default)]
    pub names: Vec<NamedCertificate>,
    /// Whether TLS 1.2 is refused. Default: false.
    #[serde(default)]
    pub require_tls13: bool,
    /// Whether HTTP/3 is served, too: by QUIC, on the ports of `listen`. Needs the cargo feature
    /// `http3`. Default: false.
    #[serde(default)]
    pub http3: bool,
}

/// A certificate for one host name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NamedCertificate {
    /// The host name.
    pub name: String,
    /// The certificate chain, a PEM file.
    pub certificate: PathBuf,
    /// Its private key, a PEM file.
    pub key: PathBuf,
}

/// Static files.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FilesConfig {
    /// The folder. Nothing outside of it is served, whatever links are in it.
    pub root: PathBuf,
    /// What a folder is answered with. Default: `index.html`.
    #[serde(default = "index")]
    pub index: Vec<String>,
    /// Whether files and folders whose names begin with a dot are served. Default: false.
    #[serde(default)]
    pub dotfiles: bool,
    /// Whether `FILE.br`, `FILE.zst` and `FILE.gz` are sent in place of `FILE` to clients that can
    /// decode them. Default: true.
    #[serde(default = "yes")]
    pub precompressed: bool,
    /// For how long a file is served without a look whether it has changed. Default: 1 s.
    #[serde(default = "second", with = "humantime_serde")]
    pub cache_valid: Duration,
    /// Files up to this size, and up to an eighth of `cache_memory`, are kept in memory; larger
    /// ones are sent by the kernel (`sendfile(2)`), on HTTP/1.1 without TLS. Accepts the suffixes
    /// `k`, `m` and `g`. Default: 64k.
    #[serde(default = "cache_file_size", deserialize_with = "size::deserialize")]
    pub cache_file_size: u64,
    /// The memory for files of up to `cache_file_size`, for each worker; suffixes as `k`, `m` and
    /// `g` are accepted. Default: 32m.
    #[serde(default = "cache_memory", deserialize_with = "size::deserialize")]
    pub cache_memory: u64,
    /// Paths that each worker remembers. Those of files above `cache_file_size` keep a descriptor
    /// open, and up to three more if they are compressed beforehand. Default: 1024.
    #[serde(default = "cache_entries")]
    pub cache_entries: usize,
}

/// What clients may take. Beyond it a connection is closed, or a request refused.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Limits {
    /// Open connections, from their accept on. Beyond it those that are idle for longest are
    /// closed, or the new one. Default: 10,000.
    pub connections: usize,
    /// How long the head of a request may take, a TLS handshake, and how long a connection may be
    /// idle. Default: 30 s.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// How long a client may take nothing of a response. As with nginx's `send_timeout`, it is the
    /// time between two writes that the kernel takes. A stream of HTTP/2 is reset. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// The body of a request, in bytes; beyond it is 413. Default: 1m, as nginx's.
    #[serde(deserialize_with = "size::deserialize")]
    pub body_size: u64,
    /// The head of a request, in bytes; beyond it is 431. At least 8k. Default: 32k.
    #[serde(deserialize_with = "size::deserialize")]
    pub header_size: u64,
    /// Requests at the same time on one connection of HTTP/2 or HTTP/3. Default: 128.
    pub streams: u32,
    /// How long requests may go on at a shutdown. Default: 30 s.
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Duration,
}

impl Limits {
    /// How many bytes of a request a client of HTTP/2 or HTTP/3 may send before somebody reads
    /// them.
    pub const STREAM_WINDOW: u32 = 128 << 10;
    /// The same of all requests of its connection, at most: connections share what they have beside
    /// 65,535 bytes each.
    pub const CONNECTION_WINDOW: u32 = 384 << 10;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            header_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            body_size: 1 << 20,
            header_size: 32 << 10,
            streams: 128,
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))],
            backlog: 1024,
            tls: None,
            files: None,
            proxy: Vec::new(),
            limits: Limits::default(),
            access_log: None,
            stats: None,
        }
    }
}

impl FilesConfig {
    /// Serves the files of a folder, with the defaults.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            index: index(),
            dotfiles: false,
            precompressed: true,
            cache_valid: second(),
            cache_file_size: cache_file_size(),
            cache_memory: cache_memory(),
            cache_entries: cache_entries(),
        }
    }
}

fn index() -> Vec<String> {
    vec!["index.html".to_owned()]
}

fn yes() -> bool {
    true
}

fn second() -> Duration {
    Duration::from_secs(1)
}

fn cache_entries() -> usize {
    1024
}

fn cache_file_size() -> u64 {
    64 << 10
}

fn cache_memory() -> u64 {
    32 << 20
}

impl Config {
    /// Reads a TOML file. Relative paths in it are relative to its folder. The values are not
    /// validated, because flags may add what the file lacks: call [`check`](Self::check)
    /// afterwards.
    ///
    /// # Errors
    /// If it can't be read, or has something that is unknown.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |problem: String| ConfigError::File { path: path.to_owned(), problem };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let mut config: Self = toml::from_str(&text).map_err(|error| failed(error.to_string()))?;
        config.resolve_paths(path.parent().unwrap_or(Path::new("")));
        Ok(config)
    }

    fn resolve_paths(&mut self, folder: &Path) {
        let tls = self.tls.iter_mut().flat_map(|tls| {
            let named = tls.names.iter_mut().flat_map(|named| [&mut named.certificate, &mut named.key]);
            named.chain([&mut tls.certificate, &mut tls.key])
        });
        let log = self.access_log.iter_mut().filter(|path| path.as_os_str() != "-");
        for path in tls.chain(log).chain(self.files.iter_mut().map(|files| &mut files.root)) {
            *path = folder.join(&path);
        }
    }

    /// Whether the values are possible.
    ///
    /// # Errors
    /// What is wrong, and what would do.
    pub fn check(&self) -> Result<(), ConfigError> {
        let tls = self.tls.as_ref();
        let impossible = [
            (
                self.listen.is_empty() && tls.is_none_or(|tls| tls.listen.is_empty()),
                "listen: no address to listen on",
            ),
            (tls.is_some_and(|tls| tls.listen.is_empty()), "tls.listen: no address to serve HTTPS on"),
            (
                cfg!(not(feature = "http3")) && tls.is_some_and(|tls| tls.http3),
                "tls.http3: this program was built without HTTP/3 (cargo feature http3)",
            ),
            (
                self.files.is_none() && self.proxy.is_empty(),
                "nothing to serve: give a folder ([files] root) or servers to forward to ([[proxy]])",
            ),
            (self.backlog < 1, "backlog: has to be at least 1"),
            (self.limits.connections == 0, "limits.connections: has to be at least 1"),
            (self.limits.header_timeout.is_zero(), "limits.header-timeout: has to be longer than 0"),
            (self.limits.stall_timeout.is_zero(), "limits.stall-timeout: has to be longer than 0"),
            (
                !(8 << 10..=16 << 20).contains(&self.limits.header_size),
                "limits.header-size: has to be between 8k and 16m",
            ),
            (self.limits.streams == 0, "limits.streams: has to be at least 1"),
            (
                self.stats.as_ref().is_some_and(|path| !path.starts_with('/')),
                "stats: the path has to begin with a slash",
            ),
            (
                self.files.as_ref().is_some_and(|files| files.index.iter().any(|name| name.contains('/'))),
                "files.index: these are names in a folder, without a slash",
            ),
        ];
        match impossible.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, problem)) => Err(ConfigError::Impossible(problem)),
            None => Ok(()),
        }
    }
}

/// A configuration can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read, or says something that is not understood.
    #[error("{path}: {problem}")]
    File {
        /// The TOML file.
        path: PathBuf,
        /// Where, and what is wrong.
        problem: String,
    },
    /// A value, or a combination of values, is impossible.
    #[error("{0}")]
    Impossible(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.toml");
        std::fs::write(&path, text).unwrap();
        Config::read(&path)
    }

    #[test]
    fn a_file_sets_what_it_names_and_leaves_the_defaults() {
        let config = read(
            "listen = ['[::1]:80']\naccess-log = 'access.log'\n[files]\nroot = '/srv'\ncache-memory = '2m'\n\
             cache-file-size = '8k'\n[[proxy]]\npath = '/api'\nupstreams = ['http://127.0.0.1:9000']\nresponse-timeout = '90s'\n\
             [proxy.health-check]\npath = '/health'\n[limits]\nbody-size = 5_000\nheader-timeout = '500ms'",
        )
        .unwrap();
        assert_eq!(config.listen, ["[::1]:80".parse().unwrap()]);
        assert!(config.access_log.unwrap().parent().unwrap().is_absolute());
        let files = config.files.unwrap();
        assert_eq!((files.root, files.index), ("/srv".into(), index()));
        assert_eq!((files.cache_memory, files.cache_file_size), (2 << 20, 8 << 10));
        assert_eq!(config.proxy[0].response_timeout, Duration::from_secs(90));
        assert_eq!(config.proxy[0].health_check.as_ref().unwrap().interval, Duration::from_secs(5));
        assert_eq!((config.limits.body_size, config.limits.connections), (5000, 10_000));
        assert_eq!(config.limits.header_timeout, Duration::from_millis(500));
    }

    #[test]
    fn what_is_unknown_or_impossible_is_named() {
        for (text, named) in [
            ("lisen = []", "lisen"),
            ("[files]\nroot = '/srv'\ncache-memory = '2x'", "2x"),
            ("listen = []\n[files]\nroot = '/srv'", "listen"),
            ("", "nothing to serve"),
            ("[files]\nroot = '/srv'\n[limits]\nheader-timeout = '0s'", "header-timeout"),
            ("stats = 'metrics'\n[files]\nroot = '/srv'", "stats"),
            ("[files]\nroot = '/srv'\nindex = ['a/b']", "files.index"),
        ] {
            let error = read(text).and_then(|config| config.check()).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        let error = Config::read(Path::new("/nonexistent.toml")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent.toml"), "{error}");
    }
}
