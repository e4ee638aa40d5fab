//! Files on the threads of blocking work, and on the ring: `cargo bench -p lull-runtime --bench files`.
//!
//! One worker of the `uring` driver reads and writes files, one operation or 32 at a time. Each case runs in rounds, and in
//! each round once with every way, in turns: `pool` is one system call on a thread of `spawn_blocking`, `ring` a `RingFd`,
//! `fs` is `runtime::fs`. Another task sleeps for 1 ms in a loop; its lateness shows what the operations cost other tasks.
//!
//! Arguments: the number of rounds (9), the milliseconds of a turn (150), a folder (the one for temporary files), and the
//! beginning of the cases to measure, as they are printed (all).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs::File as StdFile;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use runtime::fs::File;
use runtime::io::RingFd;
use runtime::{Builder, DriverKind};
use rustix::fs::Advice;

/// The file that is read and written.
const FILE_SIZE: u64 = 128 << 20;
const SMALL_FILES: u64 = 512;
const SMALL_FILE: usize = 4 << 10;
const TIMER: Duration = Duration::from_millis(1);
const WAYS: [Way; 3] = [Way::Pool, Way::Ring, Way::Fs];
const CONCURRENCY: [usize; 2] = [1, 32];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Pool,
    Ring,
    Fs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// Opens, reads and closes a file of 4 KiB.
    Open,
}

#[derive(Clone, Copy)]
struct Case {
    kind: Kind,
    size: usize,
    cached: bool,
    concurrency: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Open => "open+read+close",
        };
        let cache = if self.cached { "cached" } else { "not cached" };
        write!(f, "{kind} {} KiB, {cache}, {} at a time", self.size >> 10, self.concurrency)
    }
}

struct Turn {
    /// Operations per second.
    rate: f64,
    /// CPU time of the process per operation in µs, those of the kernel's threads for it included: in user mode, in the
    /// kernel.
    user: f64,
    system: f64,
    /// The 99th percentile of how late the timer was, in µs.
    late: f64,
    operations: f64,
}

impl Turn {
    fn cpu(&self) -> f64 {
        self.user + self.system
    }
}

struct Files {
    folder: PathBuf,
    large: PathBuf,
    /// Bytes to write, as long as the longest operation.
    bytes: Bytes,
}

impl Files {
    fn create(folder: &Path) -> io::Result<Self> {
        let folder = folder.join(format!("lull-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let files = Self { large: folder.join("large"), folder, bytes: vec![b'x'; 1 << 20].into() };
        let large = StdFile::create(&files.large)?;
        for offset in (0..FILE_SIZE).step_by(files.bytes.len()) {
            large.write_all_at(&files.bytes, offset)?;
        }
        large.sync_all()?;
        for number in 0..SMALL_FILES {
            std::fs::write(files.small(number), &files.bytes[..SMALL_FILE])?;
        }
        Ok(files)
    }

    fn small(&self, number: u64) -> PathBuf {
        self.folder.join(format!("small-{number}"))
    }

    /// The same state of the page cache before each turn.
    fn prepare(&self, case: Case) -> io::Result<()> {
        let large = StdFile::open(&self.large)?;
        // What is dirty can't be dropped, and would be written back during the next turns.
        large.sync_data()?;
        if case.cached {
            let mut buffer = vec![0; 1 << 20];
            for offset in (0..FILE_SIZE).step_by(buffer.len()) {
                large.read_exact_at(&mut buffer, offset)?;
            }
        } else {
            rustix::fs::fadvise(&large, 0, None, Advice::DontNeed)?;
            for number in 0..SMALL_FILES {
                rustix::fs::fadvise(StdFile::open(self.small(number))?, 0, None, Advice::DontNeed)?;
            }
        }
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The blocks of a file in an order without a pattern, each of them once; then again from the first.
struct Blocks {
    next: Cell<u64>,
    count: u64,
}

impl Blocks {
    /// A number of a block, and whether it is the last one.
    fn next(&self) -> (u64, bool) {
        let next = self.next.get();
        self.next.set(next + 1);
        // An odd factor permutes the numbers below a power of two.
        (next.wrapping_mul(0x9e37_79b1) % self.count, next + 1 >= self.count)
    }
}

/// The open file, in the form that a way needs.
#[derive(Clone)]
enum Opened {
    Pool(Arc<StdFile>),
    Ring(RingFd<StdFile>),
    Fs(Rc<File>),
}

async fn operate(case: Case, way: Way, opened: &Opened, files: &Files, block: u64) -> io::Result<()> {
    let offset = block * case.size as u64;
    match (case.kind, opened) {
        (Kind::Read, Opened::Pool(file)) => {
            let (file, mut buffer) = (Arc::clone(file), vec![0; case.size]);
            let read = runtime::spawn_blocking(move || file.read_at(&mut buffer, offset).map(|_| buffer));
            read.await.map_err(io::Error::other)?.map(drop)
        }
        (Kind::Read, Opened::Ring(file)) => {
            file.read_at(Vec::with_capacity(case.size), offset).await.0.map(drop)
        }
        (Kind::Read, Opened::Fs(file)) => file.read_at(vec![0; case.size], offset).await.map(drop),
        (Kind::Write, Opened::Pool(file)) => {
            let (file, bytes) = (Arc::clone(file), files.bytes.slice(..case.size));
            let written = runtime::spawn_blocking(move || file.write_at(&bytes, offset));
            written.await.map_err(io::Error::other)?.map(drop)
        }
        (Kind::Write, Opened::Ring(file)) => {
            file.write_at(files.bytes.slice(..case.size), offset).await.0.map(drop)
        }
        (Kind::Write, Opened::Fs(file)) => {
            file.write_at(files.bytes.slice(..case.size), offset).await.map(drop)
        }
        (Kind::Open, _) => open_and_read(way, files.small(block)).await,
    }
}

async fn open_and_read(way: Way, path: PathBuf) -> io::Result<()> {
    let content = match way {
        Way::Pool => {
            runtime::spawn_blocking(move || std::fs::read(path)).await.map_err(io::Error::other)??
        }
        Way::Ring => {
            let file = RingFd::open(path, 0, 0).await?;
            let (read, content) = file.read_at(Vec::with_capacity(SMALL_FILE + 1), 0).await;
            read?;
            content
        }
        Way::Fs => runtime::fs::read(path).await?,
    };
    assert_eq!(content.len(), SMALL_FILE);
    Ok(())
}

/// Runs operations of a case for a time, or, where each block may be touched once only, until all have been.
async fn turn(case: Case, way: Way, files: Rc<Files>, duration: Duration) -> io::Result<Turn> {
    let file = StdFile::options().read(true).write(true).open(&files.large)?;
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    let opened = match way {
        Way::Pool => Opened::Pool(Arc::new(file)),
        Way::Ring => Opened::Ring(RingFd::new(file)),
        Way::Fs => Opened::Fs(Rc::new(file.into())),
    };
    let count = if case.kind == Kind::Open { SMALL_FILES } else { FILE_SIZE / case.size as u64 };
    let blocks = Rc::new(Blocks { next: Cell::new(0), count });
    let operations = Rc::new(Cell::new(0_u64));
    let late = Rc::new(RefCell::new(Vec::new()));
    let lateness = Rc::clone(&late);
    let timing = runtime::spawn(async move {
        loop {
            let begun = Instant::now();
            runtime::sleep(TIMER).await;
            lateness.borrow_mut().push(begun.elapsed().saturating_sub(TIMER).as_secs_f64() * 1e6);
        }
    });
    let (begun, before) = (Instant::now(), cpu_time());
    let tasks: Vec<_> = (0..case.concurrency)
        .map(|_| {
            let (opened, files) = (opened.clone(), Rc::clone(&files));
            let (blocks, operations) = (Rc::clone(&blocks), Rc::clone(&operations));
            runtime::spawn(async move {
                while begun.elapsed() < duration {
                    let (block, last) = blocks.next();
                    operate(case, way, &opened, &files, block).await?;
                    operations.set(operations.get() + 1);
                    if last && !case.cached {
                        break;
                    }
                }
                Ok::<_, io::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(io::Error::other)??;
    }
    let (elapsed, after) = (begun.elapsed(), cpu_time());
    timing.abort();
    let operations = operations.get() as f64;
    Ok(Turn {
        rate: operations / elapsed.as_secs_f64(),
        user: (after.0 - before.0) / operations,
        system: (after.1 - before.1) / operations,
        late: percentile_99(late.take()),
        operations,
    })
}

fn percentile_99(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get((values.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0)
}

/// The CPU time of this process in µs: in user mode, in the kernel.
fn cpu_time() -> (f64, f64) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills one `rusage`, a local of this function.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(result, 0, "getrusage knows the calling process");
    // SAFETY: it has numbers only, for which zeroes are valid, and the call has filled it.
    let usage = unsafe { usage.assume_init() };
    let micros = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    (micros(usage.ru_utime), micros(usage.ru_stime))
}

/// The median, and the interval that holds the true median in 95 % of cases (order statistics; six values or more).
fn median(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    let middle = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
    // Leaves out as many values at each end as a fair coin shows heads at most that often with 2.5 %.
    let (mut outside, mut term, mut below) = (0, 0.5_f64.powi(count as i32), 0.0);
    for number in 0..count / 2 {
        below += term;
        if below > 0.025 {
            break;
        }
        outside = number + 1;
        term *= (count - number) as f64 / (number + 1) as f64;
    }
    if outside == 0 {
        return format!("{middle:.2}");
    }
    format!("{middle:.2} [{:.2}, {:.2}]", values[outside - 1], values[count - outside])
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for concurrency in CONCURRENCY {
        for cached in [true, false] {
            for kind in [Kind::Read, Kind::Write] {
                cases.extend([4 << 10, 16 << 10, 64 << 10, 1 << 20].map(|size| Case {
                    kind,
                    size,
                    cached,
                    concurrency,
                }));
            }
            cases.push(Case { kind: Kind::Open, size: SMALL_FILE, cached, concurrency });
        }
    }
    cases
}

fn report(turns: &[Vec<Turn>]) {
    let column = |way: usize, value: fn(&Turn) -> f64| turns.iter().map(move |round| value(&round[way]));
    let middle = |way, value| {
        let mut values: Vec<f64> = column(way, value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    for (number, way) in ["pool", "ring", "fs"].into_iter().enumerate() {
        let ratio = |value: fn(&Turn) -> f64| {
            median(column(number, value).zip(column(0, value)).map(|(one, pool)| one / pool).collect())
        };
        // The kernel counts the two modes by its tick, so their share is right only over many turns.
        let sum = |value: fn(&Turn) -> f64| column(number, value).sum::<f64>();
        let share = sum(|turn| turn.system * turn.operations) / sum(|turn| turn.cpu() * turn.operations);
        print!(
            "  {way:4} {:>8.0}/s  CPU {:>7.1} µs ({:>3.0} % in the kernel)  timer p99 {:>6.0} µs late",
            middle(number, |turn| turn.rate),
            middle(number, Turn::cpu),
            share * 100.0,
            middle(number, |turn| turn.late),
        );
        if number > 0 {
            print!(
                "  to pool: rate {}, CPU {}, timer {}",
                ratio(|turn| turn.rate),
                ratio(Turn::cpu),
                ratio(|turn| turn.late)
            );
        }
        println!();
    }
}

/// Milliseconds that a hypervisor has taken from all cores.
fn steal() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.split_whitespace().nth(8).and_then(|ticks| ticks.parse::<u64>().ok());
    ticks.unwrap_or(0) * 10
}

fn main() -> io::Result<()> {
    // Cargo adds `--bench`, and the tests of all targets run this without it.
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        println!("this only measures: cargo bench -p lull-runtime --bench files");
        return Ok(());
    }
    arguments.retain(|argument| !argument.starts_with("--"));
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let rounds = number(0, 9).map_err(io::Error::other)?;
    let duration = Duration::from_millis(number(1, 150).map_err(io::Error::other)?);
    let folder = arguments.get(2).map_or_else(std::env::temp_dir, PathBuf::from);
    let selected = arguments.get(3).map_or("", String::as_str);
    let files = Rc::new(Files::create(&folder)?);
    let mut runtime = Builder::new()
        .ignore_environment()
        .workers(1)
        .driver(DriverKind::Uring)
        .build()
        .map_err(io::Error::other)?;
    println!(
        "{rounds} rounds, turns of {} ms; medians, and ratios with 95 % intervals",
        duration.as_millis()
    );
    for case in cases().into_iter().filter(|case| case.to_string().starts_with(selected)) {
        let (begun, stolen) = (Instant::now(), steal());
        let mut turns: Vec<Vec<Turn>> = Vec::new();
        for round in 0..rounds {
            let mut measured = Vec::new();
            for position in 0..WAYS.len() {
                // Each way is first, second and last equally often.
                let at = (position + round as usize) % WAYS.len();
                files.prepare(case)?;
                measured.push((at, runtime.block_on(turn(case, WAYS[at], Rc::clone(&files), duration))?));
            }
            measured.sort_by_key(|(at, _)| *at);
            turns.push(measured.into_iter().map(|(_, turn)| turn).collect());
        }
        let stolen = (steal() - stolen) as f64 / begun.elapsed().as_millis() as f64;
        println!("{case} (stolen {:.1} % of a core)", stolen * 100.0);
        report(&turns);
    }
    Ok(())
}
