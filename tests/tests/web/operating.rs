//! Starting and ending the server, and what it says of itself.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tests::memcached::{free_port, read_some, uninterrupted, wait_until};
use tests::web::{Web, binary, command, split};

use crate::site::{Site, run, text};

#[test]
fn what_cannot_be_started_ends_with_an_error_that_names_it() {
    let site = Site::new().with("file", "file");
    let root = site.root();
    let root = text(&root);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let config = |name: &str, content: &str| {
        let path = site.beside(name);
        std::fs::write(&path, content).unwrap();
        text(&path).to_owned()
    };
    let unknown = config("unknown.toml", "[files]\nroot = '/'\nrots = 'x'");
    let syntax = config("syntax.toml", "[files\n");
    let limit = config("limit.toml", "[files]\nroot = '/'\n[limits]\nheader-size = '1k'");
    let log = text(&site.beside("missing")).to_owned() + "/access.log";
    // 1: it can't run; 2: the command line is wrong, as clap has it.
    for (arguments, code, named) in [
        (&["-l", "127.0.0.1:0", "/nonexistent/root"][..], 1, "/nonexistent/root"),
        (&["-l", "127.0.0.1:0", "/etc/passwd"], 1, "/etc/passwd"),
        (&["-l", &taken, root], 1, &taken),
        (&["-l", "192.0.2.1:80", root], 1, "192.0.2.1:80"),
        (&["-l", "127.0.0.1", root], 2, "port is missing"),
        (&["-l", "nowhere", root], 2, "nowhere"),
        (&[], 1, "nothing to serve"),
        (&["--unknown", root], 2, "--unknown"),
        (&["-t", "0", root], 2, "0"),
        (&["-c", "/nonexistent.toml"], 1, "/nonexistent.toml"),
        (&["-c", &unknown], 1, "rots"),
        (&["-c", &unknown], 1, "unknown.toml"),
        (&["-c", &syntax], 1, "syntax.toml"),
        (&["-c", &limit], 1, "limits.header-size"),
        (&["--stats", "metrics", root], 1, "stats"),
        (&["-l", "127.0.0.1:0", "--access-log", &log, root], 1, &log),
        (&["-l", "127.0.0.1:0", "--user", "nobody-of-this-name", root], 1, "nobody-of-this-name"),
        (&["-l", "127.0.0.1:0", "-P", "/nonexistent/pid", root], 1, "/nonexistent/pid"),
        (&["--tls-listen", "127.0.0.1:0", root], 1, "--certificate"),
        (&["--proxy", "/api", root], 2, "PATH=URL"),
    ] {
        let printed = run(command().args(arguments));
        assert_eq!(printed.status.code(), Some(code), "{arguments:?}: {printed:?}");
        assert!(printed.stderr.contains(named), "{arguments:?} does not name {named}: {}", printed.stderr);
        assert!(!printed.stderr.contains("panicked") && !printed.stdout.contains("ready"), "{printed:?}");
    }
}

#[test]
fn a_check_reads_everything_and_serves_nothing() {
    let site = Site::new().with("file", "file");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = site.configure("", "[limits]\nconnections = 5");
    // The present server has the address.
    let printed = run(Command::new(binary()).args(["--check", "-l", &address, "-c", text(&config)]));
    assert!(printed.status.success() && printed.stdout.contains("can be used"), "{printed:?}");
    site.configure("", "[limits]\nconnections = 0");
    let printed = run(Command::new(binary()).args(["--check", "-l", &address, "-c", text(&config)]));
    assert!(printed.status.code() == Some(1) && printed.stderr.contains("limits.connections"), "{printed:?}");
    let printed = run(Command::new(binary()).args(["--check", "/nonexistent"]));
    assert!(printed.status.code() == Some(1) && printed.stderr.contains("/nonexistent"), "{printed:?}");
}

#[test]
fn help_and_version_are_printed() {
    let help = run(Command::new(binary()).arg("--help"));
    assert!(help.status.success() && help.stdout.contains("--access-log") && help.stdout.contains("HUP"));
    let version = run(Command::new(binary()).arg("--version"));
    assert!(version.status.success() && version.stdout.starts_with("web "), "{version:?}");
}

/// Requests a file that doesn't fit into the buffers on the way, and reads its beginning.
fn begin_download(server: &Web) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1]).unwrap();
    stream
}

const LARGE: usize = 48 << 20;

#[test]
fn sigterm_lets_a_download_finish_and_refuses_new_connections() {
    let site = Site::new().with("large", vec![b'x'; LARGE]);
    let mut server = site.serve(&[]);
    let mut download = begin_download(&server);
    let mut idle = server.connect();
    idle.write_all(b"GET /missing HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    assert_ne!(read_some(&mut idle, &mut [0; 1000]).unwrap(), 0);
    server.signal(Signal::TERM);
    wait_until("new connections are refused", || TcpStream::connect(server.address()).is_err());
    // An idle connection has nothing to finish.
    assert_eq!(idle.read(&mut [0; 1000]).unwrap_or(0), 0);
    assert!(server.child.try_wait().unwrap().is_none(), "it has not waited for the download");
    let mut answer = b"H".to_vec();
    download.read_to_end(&mut answer).unwrap();
    assert_eq!(split(&answer).body.len(), LARGE);
    drop(download);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn what_takes_longer_than_the_shutdown_timeout_is_broken_off() {
    let site = Site::new().with("large", vec![b'x'; LARGE]);
    let mut server = site.serve_configured("", "[limits]\nshutdown-timeout = '300ms'");
    let mut download = begin_download(&server);
    let start = Instant::now();
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    assert!(start.elapsed() >= Duration::from_millis(250), "{:?}", start.elapsed());
    let mut rest = Vec::new();
    let _ = download.read_to_end(&mut rest);
    assert!(rest.len() < LARGE);
    assert!(server.standard_error().contains("1 aborted"), "{}", server.standard_error());
}

#[test]
fn a_second_sigterm_ends_the_server_at_once() {
    let site = Site::new().with("large", vec![b'x'; LARGE]);
    let mut server = site.serve_configured("", "[limits]\nshutdown-timeout = '10m'");
    let _download = begin_download(&server);
    server.signal(Signal::TERM);
    wait_until("new connections are refused", || TcpStream::connect(server.address()).is_err());
    let start = Instant::now();
    server.signal(Signal::TERM);
    server.child.wait().unwrap();
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn the_page_with_counters_is_prometheus_s_and_counts() {
    let site = Site::new().with("file", "12345").with("dir/file", "x");
    let server = site.serve(&["--stats", "/metrics"]);
    for path in ["/file", "/file", "/file", "/dir", "/missing", "/missing2"] {
        server.get(path, &[]);
    }
    let page = server.get("/metrics", &[]);
    assert!(page.header("content-type").is_some_and(|it| it.starts_with("text/plain; version=0.0.4")));
    let value = |name: &str| -> u64 {
        let line = page.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {}", page.text())).parse().unwrap()
    };
    assert_eq!(value("web_responses_total{status=\"2xx\"}"), 3);
    assert_eq!(value("web_responses_total{status=\"3xx\"}"), 1);
    assert_eq!(value("web_responses_total{status=\"4xx\"}"), 2);
    assert_eq!(value("web_responses_total{status=\"5xx\"}"), 0);
    assert_eq!(value("web_response_body_bytes_total"), 15 + 22 + 2 * 14);
    assert_eq!(value("web_connections_total"), 7);
    assert_eq!(value("web_connections_refused_total"), 0);
    assert!(value("web_connections") >= 1);
    for line in page.text().lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let number = line.rsplit(' ').next().unwrap();
        assert!(number.parse::<f64>().is_ok(), "no sample: {line}");
    }
    assert_eq!(site.serve(&[]).get("/metrics", &[]).status(), 404);
}

#[test]
fn a_socket_from_systemd_is_served_and_readiness_notified() {
    let Some(python) = tests::program("python3") else { return };
    let site = Site::new().with("file", "file");
    let notices = UnixDatagram::bind(site.beside("notify")).unwrap();
    notices.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let port = free_port();
    let mut command = tests::with_inherited_socket(&python, &binary(), port);
    // The flag's address, which can't be listened on, is not used.
    command.args(["-u", "root", "-t", "2", "-l", "192.0.2.1:1"]);
    let mut server = Web::run(command.arg(site.root()).env("NOTIFY_SOCKET", site.beside("notify")));
    let notice = || {
        let mut notice = [0; 100];
        let length = uninterrupted(|| notices.recv(&mut notice)).unwrap();
        String::from_utf8_lossy(&notice[..length]).into_owned()
    };
    assert!(notice().contains("READY=1"));
    assert_eq!(server.urls, [format!("http://127.0.0.1:{port}")]);
    assert_eq!(server.get("/file", &[]).text(), "file");
    server.signal(Signal::TERM);
    assert!(notice().contains("STOPPING=1"));
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn a_server_started_by_root_runs_as_the_user_of_its_flag() {
    let Some(()) = tests::root() else { return };
    let site = Site::new().with("file", "file");
    let server = site.serve(&["--user", "nobody"]);
    assert_eq!(server.get("/file", &[]).text(), "file");
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    for task in std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap() {
        // One that waited for work of the ring may have ended meanwhile.
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let words = |name: &str| -> Vec<String> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(words("Uid:"), std::array::from_fn::<_, 4, _>(|_| nobody.uid.to_string()));
        assert_eq!(words("Gid:"), std::array::from_fn::<_, 4, _>(|_| nobody.gid.to_string()));
        assert!(!words("Groups:").contains(&"0".to_owned()), "it is still in root's group");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(words(set)[0].trim_start_matches('0'), "", "capabilities are left in {set}");
        }
    }
}

#[test]
fn root_is_refused_without_a_user_but_may_check() {
    let Some(()) = tests::root() else { return };
    let site = Site::new().with("file", "file");
    let root = site.root();
    let printed = run(Command::new(binary()).args(["-l", "127.0.0.1:0", text(&root)]));
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    assert!(printed.stderr.contains("can't run as root without the -u switch"), "{printed:?}");
    let printed = run(Command::new(binary()).args(["--check", text(&root)]));
    assert!(printed.status.success(), "{printed:?}");
}

#[test]
fn what_the_user_of_the_flag_may_not_use_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let Some(()) = tests::root() else { return };
    let site = Site::new().with("file", "file");
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(site.root().parent().unwrap(), 0o755);
    let (root, log) = (site.root(), site.beside("access.log"));
    let arguments = ["-u", "nobody", "-l", "127.0.0.1:0", "--access-log", text(&log), text(&root)];
    let check = || run(Command::new(binary()).arg("--check").args(arguments));
    let refused = check();
    assert!(refused.status.code() == Some(1) && refused.stderr.contains("access.log"), "{refused:?}");
    assert!(!log.exists(), "a check makes no file");
    std::fs::write(&log, "").unwrap();
    open(&log, 0o666);
    assert!(check().status.success());
    open(&root, 0o700);
    for printed in [check(), run(Command::new(binary()).args(arguments))] {
        assert!(printed.status.code() == Some(1) && printed.stderr.contains(text(&root)), "{printed:?}");
    }
}

#[test]
fn the_pid_file_is_there_while_the_server_runs() {
    let site = Site::new().with("file", "file");
    let pidfile = site.beside("pid");
    let mut server = site.serve(&["--pidfile", text(&pidfile)]);
    assert_eq!(std::fs::read_to_string(&pidfile).unwrap().trim(), server.child.id().to_string());
    server.signal(Signal::INT);
    assert!(server.child.wait().unwrap().success());
    assert!(!pidfile.exists());
}

#[test]
fn several_addresses_are_served_by_both_families() {
    let site = Site::new().with("file", "file");
    let mut command = command();
    command.args(["-t", "2", "-l", "127.0.0.1:0", "-l", "127.0.0.2:0", "-l", "[::1]:0"]);
    let server = Web::run(command.arg(site.root()));
    assert_eq!(server.urls.len(), 3);
    for url in &server.urls {
        let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(b"GET /file HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(split(&answer).text(), "file", "{url}");
    }
}
