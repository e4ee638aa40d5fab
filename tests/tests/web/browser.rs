//! A browser loads a page.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use crate::authority::Authority;
use crate::site::{Site, succeed, text};
use crate::tls::serve_encrypted;

/// An image of one pixel.
const PIXEL: &[u8] =
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01\x00\x00\x00\x00,\
    \x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;";

/// Counts what was loaded, with the protocol, and writes it into the page.
const COUNT: &str = "window.addEventListener('load', async () => {\
      const images = [...document.images].filter(image => image.complete && image.naturalWidth === 1).length;\
      const entries = performance.getEntriesByType('resource');\
      const h2 = entries.filter(entry => entry.nextHopProtocol === 'h2').length;\
      const styled = getComputedStyle(document.body).color === 'rgb(1, 2, 3)';\
      const part = await fetch('/data.json', { headers: { range: 'bytes=0-3' } });\
      const bytes = (await (await fetch('/large.bin')).arrayBuffer()).byteLength;\
      document.title = `images=${images} h2=${h2} styled=${styled} part=${part.status} bytes=${bytes}`;\
    });";

/// The title that the page at `/` has after its scripts have run.
fn title_in(chromium: &Path, site: &Site, address: SocketAddr) -> String {
    let mut command = Command::new(chromium);
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--no-first-run", "--disable-background-networking", "--no-proxy-server"]);
    command.args(["--ignore-certificate-errors", "--virtual-time-budget=10000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", site.beside("profile").display()));
    let dom = succeed(command.arg(format!("https://localhost:{}/", address.port())));
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    title.unwrap_or_else(|| panic!("no title in {dom}")).to_owned()
}

#[test]
fn chromium_loads_a_page_with_a_hundred_images_by_http_2() {
    let Some(chromium) = tests::program("chromium") else { return };
    let images: String = (0..100).map(|number| format!("<img src='/images/{number}.gif'>")).collect();
    let page = format!(
        "<!doctype html><title>none</title><link rel=stylesheet href=/style.css><body>{images}<script src=/count.js></script>"
    );
    let site = Site::new().with("index.html", page).with("style.css", "body { color: rgb(1, 2, 3) }");
    let site = site.with("count.js", COUNT).with("data.json", "[1]  ").with("large.bin", vec![0; 2_000_000]);
    let site = (0..100).fold(site, |site, number| site.with(&format!("images/{number}.gif"), PIXEL));
    let log = site.beside("access.log");
    let mut server = serve_encrypted(&site, &Authority::new(), &["--access-log", text(&log)]);
    let title = title_in(&chromium, &site, server.address());
    // 100 images, the style and the script.
    assert_eq!(title, "images=100 h2=102 styled=true part=206 bytes=2000000");
    server.signal(rustix::process::Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    let log = std::fs::read_to_string(log).unwrap();
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count(".gif HTTP/2.0\" 200 "), 100, "{log}");
    // The icon that every browser asks for is the only thing that is missing.
    assert_eq!(count("\" 404 "), count("/favicon.ico"), "{log}");
}

/// Sends three messages to the proxy's route, and writes the answers into the page. Chromium's
/// virtual time stands still for requests, but not for messages of a WebSocket: the requests wait
/// for those.
const CHAT: &str = "const socket = new WebSocket(`wss://${location.host}/chat`);\
    const answers = [];\
    socket.onopen = () => ['a', 'b', 'c'].forEach(text => socket.send(text));\
    socket.onmessage = event => {\
      answers.push(event.data);\
      document.title = answers.join(' ');\
      if (answers.length === 3) socket.close();\
    };\
    socket.onerror = () => { document.title = 'error'; };\
    const wait = async () => {\
      for (let number = 0; number < 2000 && answers.length < 3; number++) await fetch(`/chat.js?${number}`);\
    };\
    wait();";

#[test]
fn chromium_has_a_websocket_by_http_2() {
    let Some(chromium) = tests::program("chromium") else { return };
    let page = "<!doctype html><title>none</title><body><script src=/chat.js></script>";
    let site = Site::new().with("index.html", page).with("chat.js", CHAT);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("/chat=http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut socket = tungstenite::accept(listener.accept().unwrap().0).unwrap();
        while let Ok(message) = socket.read() {
            if message.is_text() {
                socket.send(format!("{message}!").into()).unwrap();
            }
        }
    });
    let log = site.beside("access.log");
    let options = ["--access-log", text(&log), "--proxy", &upstream];
    let mut server = serve_encrypted(&site, &Authority::new(), &options);
    assert_eq!(title_in(&chromium, &site, server.address()), "a! b! c!");
    server.signal(rustix::process::Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("\"CONNECT /chat HTTP/2.0\" 200 "), "{log}");
}
