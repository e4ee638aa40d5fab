//! A browser loads a page.

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
    let profile = site.beside("profile");
    let mut command = Command::new(chromium);
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--no-first-run", "--disable-background-networking", "--no-proxy-server"]);
    command.args(["--ignore-certificate-errors", "--virtual-time-budget=10000", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    let address = server.address();
    let dom = succeed(command.arg(format!("https://localhost:{}/", address.port())));
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next()).unwrap_or(&dom);
    // 100 images, the style and the script.
    assert_eq!(title, "images=100 h2=102 styled=true part=206 bytes=2000000", "{dom}");
    server.signal(rustix::process::Signal::TERM);
    assert!(server.child.wait().unwrap().success());
    let log = std::fs::read_to_string(log).unwrap();
    let count = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count(".gif HTTP/2.0\" 200 "), 100, "{log}");
    // The icon that every browser asks for is the only thing that is missing.
    assert_eq!(count("\" 404 "), count("/favicon.ico"), "{log}");
}
