//! The page of a report, looked at in a browser.

use std::process::Command;

use super::comparison::tests::page;

/// Runs before everything else in the page.
const BEFORE: &str = "<script>window.problems = []; addEventListener('error', event => problems.push('error: ' + \
                      (event.message || (event.target.src || event.target.href))), true); \
                      console.error = (...what) => problems.push('console: ' + what.join(' '));</script>";
const LOOK: &str = include_str!("look.js");
/// Names that distributions give it.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// What is wrong with a page in the dark scheme or in the light one, in a window of 1280 pixels.
fn look(browser: &str, html: &str, dark: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    let page = html.replacen("<head>", &format!("<head>{BEFORE}"), 1);
    std::fs::write(&file, page.replacen("</body>", &format!("<script>{LOOK}</script></body>"), 1)).unwrap();
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1280,900",
        ])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        // `PreferredColorScheme` of Blink.
        .arg(format!("--blink-settings=preferredColorScheme={}", if dark { 0 } else { 1 }))
        .arg("--dump-dom")
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let found = dom.rsplit_once("FOUND ").and_then(|(_, found)| found.split_once(" END"));
    let (found, _) = found.unwrap_or_else(|| panic!("{dom}\n{}", String::from_utf8_lossy(&output.stderr)));
    found.to_owned()
}

#[test]
fn the_page_is_legible_in_a_dark_browser_and_in_a_light_one() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&&str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let browser = requirements::require("a browser: chromium", BROWSERS.iter().find(is_there));
    let Some(browser) = browser else { return };
    let page = page();
    for (dark, scheme) in [(false, "light"), (true, "dark")] {
        assert_eq!(look(browser, &page, dark), format!("{scheme}, 1280 wide: "));
    }
    // It sees what a broken stylesheet does.
    let broken = page
        .replace("--text: #ddd", "--text: #222")
        .replace("figure svg { max-width: 100%; height: auto; }", "figure svg { width: 0; }")
        .replace("table { border-collapse", "table { width: 1400px; border-collapse")
        .replace("</h1>", "</h1><img src=\"nowhere.png\">");
    let found = look(browser, &broken, true);
    for problem in ["contrast 1.1", "a plot of 0 x ", " pixels wide in a window of ", "error: file://"] {
        assert!(found.contains(problem), "no {problem:?} in {found}");
    }
}
