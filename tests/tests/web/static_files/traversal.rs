//! Paths that lead out of the root, in every encoding that has fooled a server.

use std::os::unix::fs::symlink;

use tests::web::{RawResponse, Web, split};

use crate::authority::Authority;
use crate::site::{Site, curl, succeed};
use crate::tls::serve_encrypted;

const SECRET: &str = "the-secret-beside-the-root";

/// Paths to `secret.txt` beside the root, or to `/etc/passwd`: OWASP's list of path traversals,
/// those of dotdotpwn and of nuclei's templates, and CVEs of web servers.
const ESCAPES: &[&str] = &[
    // Plain.
    "/../secret.txt",
    "/../../../../../../../../etc/passwd",
    "/folder/../../secret.txt",
    "/folder/deeper/../../../secret.txt",
    "/./../secret.txt",
    "/.//../secret.txt",
    "//../secret.txt",
    "///../../../../../etc/passwd",
    "/folder/./.././../secret.txt",
    "/folder//..//..//secret.txt",
    "/../served/../secret.txt",
    "/..",
    "/../",
    "..",
    "../secret.txt",
    // Encoded once.
    "/%2e%2e/secret.txt",
    "/%2E%2E/secret.txt",
    "/.%2e/secret.txt",
    "/%2e./secret.txt",
    "/..%2fsecret.txt",
    "/..%2Fsecret.txt",
    "/%2e%2e%2fsecret.txt",
    "/folder/..%2f..%2fsecret.txt",
    "/%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/%2f..%2fsecret.txt",
    "/%2fetc%2fpasswd",
    "//etc/passwd",
    "/%2f/etc/passwd",
    // Apache 2.4.49 and 2.4.50 (CVE-2021-41773, CVE-2021-42013).
    "/folder/.%2e/.%2e/.%2e/.%2e/etc/passwd",
    "/folder/%%32%65%%32%65/%%32%65%%32%65/secret.txt",
    "/icons/.%%32%65/.%%32%65/etc/passwd",
    // Encoded twice and three times.
    "/%252e%252e/secret.txt",
    "/%252e%252e%252fsecret.txt",
    "/..%252fsecret.txt",
    "/%25252e%25252e%25252fsecret.txt",
    "/%%2e%%2e/secret.txt",
    // Backslashes.
    "/..\\secret.txt",
    "/..\\..\\..\\etc\\passwd",
    "/folder\\..\\..\\secret.txt",
    "/..%5csecret.txt",
    "/..%5Csecret.txt",
    "/%2e%2e%5csecret.txt",
    "/..%255csecret.txt",
    "/%2e%2e\\secret.txt",
    "/..\\/secret.txt",
    "/..%5c/secret.txt",
    "\\..\\secret.txt",
    // Overlong UTF-8, and other ways to write a dot or a slash.
    "/%c0%ae%c0%ae/secret.txt",
    "/%c0%ae%c0%ae%c0%afsecret.txt",
    "/..%c0%afsecret.txt",
    "/..%c1%9csecret.txt",
    "/%e0%80%ae%e0%80%ae/secret.txt",
    "/%e0%80%ae%e0%80%ae%e0%80%afsecret.txt",
    "/%f0%80%80%ae%f0%80%80%ae/secret.txt",
    "/%fc%80%80%80%80%ae%fc%80%80%80%80%ae/secret.txt",
    "/%uff0e%uff0e/secret.txt",
    "/%u002e%u002e/secret.txt",
    "/%u002e%u002e%u2215secret.txt",
    "/..%u2215secret.txt",
    "/..%u2216secret.txt",
    "/%ef%bc%8e%ef%bc%8e/secret.txt",
    "/..%ef%bc%8fsecret.txt",
    "/..%e2%88%95secret.txt",
    "/..%bg%qfsecret.txt",
    "/0x2e0x2e0x2fsecret.txt",
    // Parameters of a segment, as Tomcat has them.
    "/..;/secret.txt",
    "/folder/..;/..;/secret.txt",
    "/..;a=b/secret.txt",
    "/.;/../secret.txt",
    "/%2e%2e;/secret.txt",
    "/..%3b/secret.txt",
    // NUL and other control characters.
    "/../secret.txt%00",
    "/../secret.txt%00.html",
    "/..%00/secret.txt",
    "/%00/../../secret.txt",
    "/.%00./secret.txt",
    "/..%0d/secret.txt",
    "/..%0a/secret.txt",
    "/..%09/secret.txt",
    "/..%20/secret.txt",
    // What naive filters leave behind once they have taken `../` out.
    "/....//secret.txt",
    "/....//....//secret.txt",
    "/..././secret.txt",
    "/...//secret.txt",
    "/....\\/secret.txt",
    "/..../secret.txt",
    "/.../.../secret.txt",
    // Other targets than paths.
    "http://x/../secret.txt",
    "http://x/../../etc/passwd",
    "http://x/%2e%2e/secret.txt",
    "http://../secret.txt",
    "file:///etc/passwd",
    "http:/../secret.txt",
    "x:/../secret.txt",
    "*/../../secret.txt",
    "@/../secret.txt",
    "?/../../secret.txt",
    "/?/../../secret.txt",
    "/#/../../secret.txt",
    "/folder?/../../../secret.txt",
    "/index.html/../../secret.txt",
    "/index.html%3f/../../secret.txt",
    "/missing/../../secret.txt",
    // Shells, homes and /proc.
    "/~root/../../../../etc/passwd",
    "/~/etc/passwd",
    "/$HOME/../etc/passwd",
    "/proc/self/root/etc/passwd",
    "/../../../../proc/self/environ",
    "/C:/../../etc/passwd",
    // Symbolic links out of the root.
    "/outside",
    "/outside/secret.txt",
    "/relative",
    "/absolute",
    "/absolute/passwd",
    "/magic/etc/passwd",
    "/inner/up/secret.txt",
    "/inner/up/served/../secret.txt",
];

/// A root with an index, a folder, and links out of it; beside it a secret and a folder whose name
/// begins as the root's.
fn site() -> Site {
    let site =
        Site::new().with("index.html", "index").with("folder/deeper/file", "file").with("inner/file", "file");
    let site = site.with(".env", "hidden").with(".git/config", "hidden").with("folder/.htpasswd", "hidden");
    std::fs::write(site.beside("secret.txt"), SECRET).unwrap();
    std::fs::create_dir(site.beside("served-too")).unwrap();
    std::fs::write(site.beside("served-too/secret.txt"), SECRET).unwrap();
    symlink("..", site.path("outside")).unwrap();
    symlink("../secret.txt", site.path("relative")).unwrap();
    symlink("/etc", site.path("absolute")).unwrap();
    symlink("/proc/self/root", site.path("magic")).unwrap();
    symlink("../..", site.path("inner/up")).unwrap();
    site
}

/// Sends a target as it is.
fn ask(server: &Web, target: &str, version: &str) -> Option<RawResponse> {
    let request = format!("GET {target} HTTP/{version}\r\nhost: x\r\nconnection: close\r\n\r\n");
    let answer = server.talk(request);
    (!answer.is_empty()).then(|| split(&answer))
}

fn assert_nothing_leaks(server: &Web, target: &str) {
    for version in ["1.1", "1.0"] {
        let Some(response) = ask(server, target, version) else { panic!("no answer to {target}") };
        let body = String::from_utf8_lossy(&response.body);
        assert!(!body.contains(SECRET) && !body.contains("root:"), "{target} leaks {body}");
        match response.status() {
            // Within the root after all: `/#/..` is the root's index with a fragment, for example.
            200 => assert!(body == "index" || body == "file", "{target}: {body}"),
            301 => {
                let location = response.header("location").unwrap();
                assert!(location.starts_with('/') && !location.starts_with("//"), "{target}: {location}");
            }
            status => assert!((400..500).contains(&status), "{target} gets {status}"),
        }
    }
}

#[test]
fn no_encoding_of_a_path_leads_out_of_the_root() {
    assert!(ESCAPES.len() >= 60);
    let site = site();
    for flags in [&[][..], &["--dotfiles"]] {
        let server = site.serve(flags);
        for target in ESCAPES {
            assert_nothing_leaks(&server, target);
        }
        // What the paths are after is there, and so is the server.
        assert_eq!(std::fs::read_to_string(site.beside("secret.txt")).unwrap(), SECRET);
        assert_eq!(server.get("/", &[]).text(), "index");
        let errors = server.standard_error();
        assert!(!errors.contains("cannot open"), "clients can fill the log: {errors}");
    }
}

#[test]
fn depths_and_encodings_combine_to_nothing_either() {
    let site = site();
    let server = site.serve(&["--dotfiles"]);
    for up in ["..", "%2e%2e", "%252e%252e", "..;", "%c0%ae%c0%ae", "..%00", "..."] {
        for slash in ["/", "%2f", "%252f", "\\", "%5c", "//", "/./", "%c0%af"] {
            for depth in [1, 2, 8] {
                let escape = format!("{up}{slash}").repeat(depth);
                assert_nothing_leaks(&server, &format!("/{escape}secret.txt"));
                assert_nothing_leaks(&server, &format!("/folder/{escape}etc{slash}passwd"));
            }
        }
    }
}

/// A target with bytes that no request has.
#[test]
fn raw_bytes_in_a_target_lead_nowhere() {
    let site = site();
    let server = site.serve(&[]);
    for target in [
        &b"/\xc0\xae\xc0\xae/secret.txt"[..],
        b"/..\xc0\xafsecret.txt",
        b"/..\x00/secret.txt",
        b"/../secret.txt\x00.html",
        b"/..\xef\xbc\x8fsecret.txt",
        b"/..\x7f/secret.txt",
        b"/.\x0b./secret.txt",
    ] {
        let request = [b"GET ", target, b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"].concat();
        let response = split(&server.talk(request));
        assert!(matches!(response.status(), 400 | 404), "{target:?}: {}", response.head);
        assert!(!String::from_utf8_lossy(&response.body).contains(SECRET));
    }
}

#[test]
fn names_that_begin_with_a_dot_are_served_only_if_asked_for() {
    let site = site();
    let hidden = [
        "/.env",
        "/.git/config",
        "/%2egit/config",
        "/%2eenv",
        "/folder/.htpasswd",
        "/folder/../.env",
        "//.env",
    ];
    let server = site.serve(&[]);
    for path in hidden {
        let response = server.get(path, &[]);
        assert!(response.status() == 404 && !response.text().contains("hidden"), "{path}: {}", response.head);
    }
    // The folder itself must not be served, either.
    assert_eq!(server.get("/.git", &[]).status(), 404);
    let server = site.serve(&["--dotfiles"]);
    for path in hidden {
        assert_eq!(server.get(path, &[]).text(), "hidden", "{path}");
    }
}

/// Over HTTP/2, which has the path in the pseudo-header `:path`.
#[test]
fn http_2_leads_no_further() {
    let Some(mut curl) = curl() else { return };
    let site = site();
    let server = serve_encrypted(&site, &Authority::new(), &["--dotfiles"]);
    curl.args(["--path-as-is", "--globoff", "--insecure", "--write-out", "\n%{http_version} %{http_code}\n"]);
    let paths: Vec<_> =
        ESCAPES.iter().filter(|path| path.starts_with('/') && !path.contains(['#', '?', '\\'])).collect();
    curl.args(paths.iter().map(|path| format!("{}{path}", server.urls[0])));
    let printed = succeed(&mut curl);
    assert!(!printed.contains(SECRET) && !printed.contains("root:"), "{printed}");
    let statuses: Vec<&str> = printed.lines().filter_map(|line| line.strip_prefix("2 ")).collect();
    assert_eq!(statuses.len(), paths.len(), "{printed}");
    assert!(statuses.iter().all(|status| ["400", "403", "404"].contains(status)), "{statuses:?}");
}
