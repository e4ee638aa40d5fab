//! A static-file server with TLS and HTTP/2.
//! `cargo run -p lull-adapters --example static_files [ADDRESS FOLDER [CERTIFICATE KEY]]`
//!
//! With an address and a folder it serves until SIGINT or SIGTERM; over TLS if PEM files with a
//! certificate and its key follow. Without arguments it serves a temporary folder to itself, checks
//! the answers, and ends.

use std::error::Error;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use adapters::hyper::{Client, Connector, FileBody, MakeService, Serve};
use adapters::tls::{self, Acceptor, Certificates};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as UrlPath, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use axum::http::header::{IF_NONE_MATCH, IF_RANGE, LOCATION, RANGE};
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode, Uri, Version};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::{BodyExt, Empty};
use net::TcpListener;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// A folder whose files are served.
#[derive(Clone)]
pub struct Folder(Arc<OwnedFd>);

impl Folder {
    /// A folder by its path.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(Arc::new(rustix::fs::open(path, flags, Mode::empty())?)))
    }

    /// Opens a file. The kernel keeps the path within the folder: neither `..` nor a symbolic link
    /// leads out of it.
    async fn find(&self, path: &str) -> Result<File, Errno> {
        let open = |folder: &OwnedFd, path: &str, resolve| {
            // The open of a named pipe would wait for its other end.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            openat2(folder, path, flags, Mode::empty(), ResolveFlags::BENEATH | resolve).map(File::from)
        };
        match open(&self.0, path, ResolveFlags::CACHED) {
            // The kernel has to read the disk, for which this worker doesn't wait.
            Err(Errno::AGAIN) => {
                let (folder, path) = (Arc::clone(&self.0), path.to_owned());
                let opened = runtime::spawn_blocking(move || open(&folder, &path, ResolveFlags::empty()));
                opened.await.unwrap_or(Err(Errno::IO))
            }
            opened => opened,
        }
    }
}

/// A server of a folder, over TLS if there is an acceptor.
pub fn server(
    listener: TcpListener,
    folder: Folder,
    acceptor: Option<Acceptor>,
) -> Serve<TcpListener, impl MakeService> {
    let app = Router::new().route("/", get(get_file)).route("/{*path}", get(get_file)).with_state(folder);
    let patience = Some(Duration::from_secs(60));
    let server = adapters::axum::serve(listener.limit_connections(10_000), app)
        .idle_timeout(patience)
        .stall_timeout(patience)
        // What hyper reads of a file for a client of HTTP/2 that takes nothing yet.
        .configure(|builder| {
            builder.http2().max_send_buf_size(64 << 10);
        });
    match acceptor {
        Some(acceptor) => server.tls(acceptor),
        None => server,
    }
}

/// Answers GET and HEAD, for which axum leaves the body out.
async fn get_file(
    State(folder): State<Folder>,
    method: Method,
    uri: Uri,
    path: Option<UrlPath<String>>,
    headers: HeaderMap,
) -> Result<Response, StatusCode> {
    let mut path = path.map_or_else(String::new, |UrlPath(path)| path);
    if path.is_empty() || path.ends_with('/') {
        path.push_str("index.html");
    }
    let file = folder.find(&path).await.map_err(status_of)?;
    let metadata = file.metadata().map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    if metadata.is_dir() {
        // Links of its index are relative to the folder. Two slashes would begin another host.
        let folder = format!("/{}/", uri.path().trim_start_matches('/'));
        return Ok((StatusCode::MOVED_PERMANENTLY, [(LOCATION, folder)]).into_response());
    }
    if !metadata.is_file() {
        return Err(StatusCode::NOT_FOUND);
    }
    let length = metadata.len();
    let etag = format!("\"{:x}.{:x}-{length:x}\"", metadata.mtime(), metadata.mtime_nsec());
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let always = [(ETAG, etag.clone()), (ACCEPT_RANGES, "bytes".to_owned())];
    let is_known = |known: &str| known == "*" || known.trim_start_matches("W/") == etag;
    if text(IF_NONE_MATCH).is_some_and(|known| known.split(',').map(str::trim).any(is_known)) {
        return Ok((StatusCode::NOT_MODIFIED, always).into_response());
    }
    let is_same = text(IF_RANGE).is_none_or(|of| of == etag);
    let range = text(RANGE).filter(|_| method == Method::GET && is_same);
    let (status, range) = match range.and_then(|range| requested_range(range, length)) {
        None => (StatusCode::OK, 0..length),
        Some(range) if range.is_empty() => {
            let length = format!("bytes */{length}");
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, [(CONTENT_RANGE, length)]).into_response());
        }
        Some(range) => (StatusCode::PARTIAL_CONTENT, range),
    };
    // The kernel sends it on HTTP/1 without TLS (sendfile).
    let body = FileBody::new(Arc::new(file), range.start, range.end - range.start).sent_by_kernel();
    let mut response =
        (status, always, [(CONTENT_TYPE, content_type(&path))], Body::new(body)).into_response();
    if status == StatusCode::PARTIAL_CONTENT {
        let place = format!("bytes {}-{}/{length}", range.start, range.end - 1);
        response.headers_mut().extend(place.parse().map(|place| (CONTENT_RANGE, place)));
    }
    Ok(response)
}

fn status_of(error: Errno) -> StatusCode {
    match error {
        Errno::ACCESS => StatusCode::FORBIDDEN,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO => StatusCode::SERVICE_UNAVAILABLE,
        // Also what would lead out of the folder.
        _ => StatusCode::NOT_FOUND,
    }
}

/// The bytes of a `Range` (RFC 9110, section 14.2), none if they begin beyond the end. `None`: it is
/// not one range of bytes, and so ignored.
fn requested_range(header: &str, length: u64) -> Option<Range<u64>> {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    };
    match header.strip_prefix("bytes=")?.split_once('-')? {
        ("", last) => Some(length.saturating_sub(number(last)?)..length),
        (first, "") => Some(number(first)?.min(length)..length),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then(|| first.min(length)..last.saturating_add(1).min(length))
        }
    }
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("jpg") => "image/jpeg",
        _ => "application/octet-stream",
    }
}

fn acceptor(certificate: &str, key: &str) -> Result<Acceptor, tls::Error> {
    Acceptor::builder(Certificates::new(certificate, key)).http().open()
}

#[runtime::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, folder, acceptor) = match &arguments[..] {
        [] => return serve_to_itself().await,
        [address, folder] => (address, folder, None),
        [address, folder, certificate, key] => (address, folder, Some(acceptor(certificate, key)?)),
        _ => return Err("usage: static_files [ADDRESS FOLDER [CERTIFICATE KEY]]".into()),
    };
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    let signal = runtime::signal::terminated();
    server(listener, Folder::open(folder.as_ref())?, acceptor).with_graceful_shutdown(signal).await?;
    Ok(())
}

async fn serve_to_itself() -> Result<(), Box<dyn Error>> {
    let outside = tempfile::tempdir()?;
    let [site, chain, key] = ["site", "chain.pem", "key.pem"].map(|name| outside.path().join(name));
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    std::fs::write(&chain, identity.cert.pem())?;
    std::fs::write(&key, identity.signing_key.serialize_pem())?;
    std::fs::create_dir(&site)?;
    std::fs::write(site.join("index.html"), "<p>hello")?;
    let large: Vec<u8> = (0..1_000_000_u32).map(|number| (number / 7) as u8).collect();
    std::fs::write(site.join("large.bin"), &large)?;

    let trusted = tls::Connector::builder().authorities(&chain).open()?;
    let client = Client::<Empty<Bytes>>::with_connector(Connector::new().tls(trusted), |_| ());
    let acceptor = acceptor(&chain.to_string_lossy(), &key.to_string_lossy())?;
    for (scheme, version, acceptor) in
        [("http", Version::HTTP_11, None), ("https", Version::HTTP_2, Some(acceptor))]
    {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let server = server(listener, Folder::open(&site)?, acceptor).start()?;
        let ask = async |method: Method, path: &str, header: (HeaderName, &str)| {
            let uri = format!("{scheme}://localhost:{port}{path}");
            let request = Request::builder().method(method).uri(uri).header(header.0, header.1);
            let response = client.get().request(request.body(Empty::new())?).await?;
            assert_eq!(response.version(), version);
            println!("{version:?} {path}: {}", response.status());
            let (head, body) = response.into_parts();
            Ok::<_, Box<dyn Error>>((head.status, head.headers, body.collect().await?.to_bytes()))
        };
        let (status, headers, body) = ask(Method::GET, "/", (IF_NONE_MATCH, "\"other\"")).await?;
        assert_eq!((status, &body[..]), (StatusCode::OK, &b"<p>hello"[..]));
        let etag = headers[ETAG].to_str()?;
        assert_eq!(ask(Method::GET, "/", (IF_NONE_MATCH, etag)).await?.0, StatusCode::NOT_MODIFIED);
        let (status, headers, body) = ask(Method::HEAD, "/large.bin", (RANGE, "bytes=5-")).await?;
        assert_eq!(
            (status, &headers["content-length"], body.len()),
            (StatusCode::OK, &"1000000".parse()?, 0)
        );
        let (_, _, body) = ask(Method::GET, "/large.bin", (IF_RANGE, "\"other\"")).await?;
        assert!(body == large);
        let (status, _, body) = ask(Method::GET, "/large.bin", (RANGE, "bytes=777-500776")).await?;
        assert!(status == StatusCode::PARTIAL_CONTENT && body == large[777..500_777]);
        for path in ["/missing", "/%2e%2e/key.pem", "/..%2fkey.pem"] {
            assert_eq!(ask(Method::GET, path, (RANGE, "")).await?.0, StatusCode::NOT_FOUND);
        }
        server.shutdown(Duration::from_secs(1)).await;
    }
    Ok(())
}
