//! The full-screen view, with keys for the sort order.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, style, terminal};

use super::sample::Sampler;
use super::table::{SortKey, render, sort};

/// The terminal's alternate screen in raw mode. Dropping it restores the terminal.
struct AlternateScreen;

impl AlternateScreen {
    fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = AlternateScreen;
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        // Errors are ignored: the terminal may be gone.
        let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// Shows samples until `q`, Esc or Ctrl-C is pressed, or `count` samples were shown.
pub fn show(
    mut sampler: Sampler<'_>,
    interval: Duration,
    count: Option<u64>,
    mut sort_key: SortKey,
) -> io::Result<()> {
    let _screen = AlternateScreen::open()?;
    let mut taken = 0;
    let mut sample = None;
    let mut next = Instant::now() + interval;
    draw("collecting the first sample …")?;
    loop {
        let wait = next.saturating_duration_since(Instant::now());
        if event::poll(wait)? {
            if let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Char('n') => sort_key = SortKey::Queue,
                    KeyCode::Char('i') => sort_key = SortKey::Interrupts,
                    KeyCode::Char('p') => sort_key = SortKey::Packets,
                    KeyCode::Char('c') => sort_key = SortKey::Core,
                    _ => continue,
                }
            }
        } else {
            match sampler.next_sample() {
                Ok(next_sample) => sample = Some(next_sample),
                // The link may be reopened or renamed at this moment; the next sample tries again.
                Err(error) => {
                    sample = None;
                    draw(&format!("{error}\n\nq: quit"))?;
                }
            }
            next = Instant::now() + interval;
            taken += 1;
            if count.is_some_and(|count| taken > count) {
                return Ok(());
            }
        }
        if let Some(sample) = &mut sample {
            sort(sample, sort_key);
            let keys = "sort by n: number, i: interrupts, p: packets, c: core    q: quit";
            draw(&format!("{}\n\n{keys}", render(sample)))?;
        }
    }
}

fn draw(text: &str) -> io::Result<()> {
    // Some terminals report a size of 0.
    let known = terminal::size().ok().filter(|&(width, height)| width > 0 && height > 0);
    let (width, height) = known.unwrap_or((80, 24));
    let mut out = io::stdout().lock();
    execute!(out, terminal::Clear(terminal::ClearType::All), cursor::MoveTo(0, 0))?;
    for (number, line) in text.lines().take(height.into()).enumerate() {
        let line: String = line.chars().take(width.into()).collect();
        execute!(out, cursor::MoveTo(0, number as u16), style::Print(line))?;
    }
    out.flush()
}
