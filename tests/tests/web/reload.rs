//! SIGHUP and SIGUSR1: a new configuration, new certificates, and the access log after its
//! rotation.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use rustix::process::Signal;
use tests::memcached::wait_until;
use tests::web::Web;

use crate::authority::Authority;
use crate::site::{Site, curl, run, text};

/// A site whose folder `one` is served, and `two` is beside it.
fn two_folders() -> (Site, Web) {
    let site = Site::new();
    for name in ["one", "two"] {
        std::fs::create_dir(site.beside(name)).unwrap();
        std::fs::write(site.beside(name).join("file"), name).unwrap();
    }
    write_config(&site, "one", "");
    let mut command = tests::web::command();
    let command = command.args(["-t", "2", "-l", "127.0.0.1:0", "-v", "-c"]).arg(site.beside("web.toml"));
    let server = Web::run(command);
    (site, server)
}

fn write_config(site: &Site, root: &str, rest: &str) {
    std::fs::write(site.beside("web.toml"), format!("[files]\nroot = '{root}'\n{rest}\n")).unwrap();
}

#[test]
fn sighup_takes_the_new_configuration_for_new_connections() {
    let (site, server) = two_folders();
    assert_eq!(server.get("/file", &[]).text(), "one");
    write_config(&site, "two", "");
    // Nothing happens by itself.
    assert_eq!(server.get("/file", &[]).text(), "one");
    server.signal(Signal::HUP);
    wait_until("the other folder is served", || server.get("/file", &[]).text() == "two");
    wait_until("it says so", || server.standard_error().contains("reloaded"));
}

#[test]
fn a_configuration_that_cannot_be_used_changes_nothing() {
    let (site, server) = two_folders();
    for (number, (content, named)) in [
        ("[files\nroot = 'two'", "web.toml"),
        ("[files]\nroot = 'two'\nroots = 'x'", "roots"),
        ("[files]\nroot = 'missing'", "missing"),
        ("", "nothing to serve"),
        ("[files]\nroot = 'two'\n[limits]\nheader-timeout = '1s'", "header-timeout"),
        ("listen = ['127.0.0.1:1']\n[files]\nroot = 'two'\n[tls]\nlisten = []\ncertificate = 'c'\nkey = 'k'", "tls"),
        ("access-log = 'missing/log'\n[files]\nroot = 'two'", "missing/log"),
    ]
    .into_iter()
    .enumerate()
    {
        std::fs::write(site.beside("web.toml"), content).unwrap();
        server.signal(Signal::HUP);
        let refusals = || {
            let errors = server.standard_error();
            errors.lines().filter(|line| line.contains("cannot reload")).count()
        };
        wait_until("the configuration is refused", || refusals() > number);
        let errors = server.standard_error();
        let after = errors.rsplit("cannot reload").next().unwrap();
        assert!(after.contains(named) && after.contains("stays in use"), "{content}: {after}");
        assert_eq!(server.get("/file", &[]).text(), "one", "{content}");
    }
    write_config(&site, "two", "");
    server.signal(Signal::HUP);
    wait_until("a good one is taken", || server.get("/file", &[]).text() == "two");
}

#[test]
fn many_reloads_lose_no_request() {
    let (site, server) = two_folders();
    std::thread::scope(|scope| {
        let requests = scope.spawn(|| {
            for _ in 0..300 {
                let answer = server.get("/file", &[]);
                assert!(answer.status() == 200 && ["one", "two"].contains(&answer.text()), "{answer:?}");
            }
        });
        let mut round = 0;
        while !requests.is_finished() {
            write_config(&site, ["one", "two"][round % 2], "");
            server.signal(Signal::HUP);
            std::thread::sleep(Duration::from_millis(5));
            round += 1;
        }
        assert!(round > 0);
    });
}

#[test]
fn sighup_takes_new_certificates() {
    let site = Site::new().with("file", "file");
    let (old, new) = (Authority::new(), Authority::new());
    let (chain, key) = (site.beside("chain.pem"), site.beside("key.pem"));
    old.certify_to(&chain, &key, "localhost");
    let mut command = tests::web::command();
    command.args(["-t", "2", "-v", "--tls-listen", "127.0.0.1:0", "--certificate", text(&chain)]);
    let server = Web::run(command.args(["--key", text(&key)]).arg(site.root()));
    let Some(_) = curl() else { return };
    let trusted_by = |authority: &Authority| {
        let (mut curl, port) = (curl().unwrap(), server.address().port());
        curl.arg("--cacert")
            .arg(authority.path())
            .args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
        run(curl.arg(format!("https://localhost:{port}/file"))).stdout == "file"
    };
    assert!(trusted_by(&old) && !trusted_by(&new));
    // A key that is not the certificate's changes nothing.
    let whole = std::fs::read(&key).unwrap();
    std::fs::write(&key, "").unwrap();
    server.signal(Signal::HUP);
    wait_until("the empty key is refused", || server.standard_error().contains("cannot reload"));
    assert!(trusted_by(&old));
    std::fs::write(&key, whole).unwrap();
    new.certify_to(&chain, &key, "localhost");
    server.signal(Signal::HUP);
    wait_until("the new certificate is used", || trusted_by(&new));
    assert!(!trusted_by(&old));
}

#[test]
fn sighup_takes_certificates_of_other_paths_and_names() {
    let site = Site::new().with("file", "file");
    let authority = Authority::new();
    for name in ["localhost", "other.example", "third.example"] {
        let [chain, key] = ["chain", "key"].map(|kind| site.beside(&format!("{name}.{kind}")));
        authority.certify_to(&chain, &key, name);
    }
    let certificate = |name: &str| format!("certificate = '{name}.chain'\nkey = '{name}.key'\n");
    let configure = |default: &str, named: &str| {
        let named = format!("[[tls.names]]\nname = '{named}'\n{}", certificate(named));
        let tls = format!("[tls]\nlisten = ['127.0.0.1:0']\n{}{named}", certificate(default));
        let files = format!("listen = []\n[files]\nroot = '{}'\n", text(&site.root()));
        std::fs::write(site.beside("web.toml"), files + &tls).unwrap();
    };
    configure("localhost", "other.example");
    let mut command = tests::web::command();
    let server = Web::run(command.args(["-t", "2", "-v", "-c"]).arg(site.beside("web.toml")));
    let Some(_) = curl() else { return };
    let serves = |name: &str| {
        let (mut curl, port) = (curl().unwrap(), server.address().port());
        curl.arg("--cacert").arg(authority.path()).args(["--resolve", &format!("{name}:{port}:127.0.0.1")]);
        run(curl.arg(format!("https://{name}:{port}/file"))).stdout == "file"
    };
    assert!(serves("localhost") && serves("other.example") && !serves("third.example"));
    configure("missing", "third.example");
    server.signal(Signal::HUP);
    wait_until("the missing files are refused", || server.standard_error().contains("missing"));
    assert!(serves("localhost") && !serves("third.example"));
    configure("localhost", "third.example");
    server.signal(Signal::HUP);
    wait_until("the certificate for another name is used", || serves("third.example"));
    assert!(serves("localhost") && !serves("other.example"));
}

#[test]
fn sigusr1_opens_the_access_log_again() {
    let site = Site::new().with("file", "file");
    let (log, moved) = (site.beside("access.log"), site.beside("access.log.1"));
    let server = site.serve(&["--access-log", text(&log), "-v"]);
    let lines = |path| std::fs::read_to_string(path).unwrap_or_default();
    server.get("/file?before", &[]);
    std::fs::rename(&log, &moved).unwrap();
    server.get("/file?between", &[]);
    server.signal(Signal::USR1);
    wait_until("the log is open again", || server.standard_error().contains("opened the access log again"));
    assert!(log.exists());
    // Both were gathered before the signal, so they belong to the old file.
    wait_until("the old lines are written", || lines(&moved).lines().count() == 2);
    server.get("/file?after", &[]);
    wait_until("the new line is written", || lines(&log).contains("/file?after"));
    assert!(lines(&moved).contains("?before") && lines(&moved).contains("?between"), "{}", lines(&moved));
    assert_eq!(lines(&log).lines().count(), 1, "{}", lines(&log));
    // Without a folder to make it in, the file that is open stays in use.
    std::fs::rename(&log, &moved).unwrap();
    std::fs::create_dir(&log).unwrap();
    server.signal(Signal::USR1);
    let failed = format!("cannot open the access log again: {}", log.display());
    wait_until("the failure is logged", || server.standard_error().contains(&failed));
    server.get("/file?kept", &[]);
    wait_until("the line is in the old file", || lines(&moved).contains("?kept"));
}

#[test]
fn an_access_log_line_has_the_fields_of_the_combined_format() {
    let site = Site::new().with("file", "12345").with("long", vec![b'x'; 100_000]);
    let log = site.beside("access.log");
    let mut server = site.serve(&["--access-log", text(&log)]);
    server.get("/file?a=b", &["referer: http://from.example/", "user-agent: agent/1.0"]);
    server.request("HEAD", "/long", &[]);
    server.get("/long", &["range: bytes=0-9"]);
    server.get("/missing", &["user-agent: a\" 200 0 \"-\" \"\\evil\u{e9}\t"]);
    server.get("/a%0Ab\"c", &[]);
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    // The end writes what is left.
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<(&str, &str)> = text.lines().map(|line| line.split_once("] ").unwrap()).collect();
    // Each worker gathers its own.
    let mut rests: Vec<&str> = lines.iter().map(|(_, rest)| *rest).collect();
    rests.sort_unstable();
    assert_eq!(
        rests,
        [
            "\"GET /a%0Ab\\x22c HTTP/1.1\" 404 14 \"-\" \"-\"",
            "\"GET /file?a=b HTTP/1.1\" 200 5 \"http://from.example/\" \"agent/1.0\"",
            "\"GET /long HTTP/1.1\" 206 10 \"-\" \"-\"",
            "\"GET /missing HTTP/1.1\" 404 14 \"-\" \"a\\x22 200 0 \\x22-\\x22 \\x22\\x5Cevil\\xC3\\xA9\"",
            "\"HEAD /long HTTP/1.1\" 200 0 \"-\" \"-\"",
        ]
    );
    for (start, _) in lines {
        // `127.0.0.1 - - [23/Nov/2026:06:37:59 +0000`
        let time = start.strip_prefix("127.0.0.1 - - [").expect(start);
        let (date, zone) = time.split_once(' ').unwrap();
        assert_eq!((date.len(), zone), ("23/Nov/2026:06:37:59".len(), "+0000"), "{start}");
        assert_eq!(date.matches('/').count() + date.matches(':').count(), 5);
    }
}

#[test]
fn the_access_log_may_be_the_standard_output() {
    let site = Site::new().with("file", "file");
    let mut server = site.serve(&["--access-log", "-"]);
    let lines = BufReader::new(server.child.stdout.take().unwrap());
    server.get("/file?first", &[]);
    server.get("/file?second", &[]);
    let lines: Vec<String> = lines.lines().take(2).map(Result::unwrap).collect();
    // Each worker gathers its own.
    let has = |path| lines.iter().any(|line| line.contains(path));
    assert!(has("/file?first") && has("/file?second"), "{lines:?}");
}
