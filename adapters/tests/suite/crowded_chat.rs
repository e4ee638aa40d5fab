//! A chat in which a hundred clients keep all channels full, beside ten thousand that say nothing
//! for most of the time.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::TcpStream;
use tokio::sync::{broadcast, mpsc};

use crate::common::listener;

const QUIET: usize = 10_000;
const BUSY: usize = 100;
const PINGS: usize = 2000;
/// Set in the process of the clients.
const CLIENTS_OF: &str = "LULL_TEST_CLIENTS_OF";
const TEST: &str = "crowded_chat::quiet_clients_are_answered_within_5_ms_while_channels_are_full";

/// What busy connections share: one task passes on what they say, and all of them hear it.
struct Room {
    said: mpsc::Sender<u8>,
    heard: broadcast::Sender<u8>,
    /// How many messages each busy connection has heard.
    counts: Vec<AtomicU64>,
    joined: AtomicU64,
    /// How often the channel was full.
    full: AtomicU64,
}

/// A client says with its first byte whether it is busy. A quiet one's bytes come back.
async fn serve(room: Arc<Room>, stream: TcpStream) -> std::io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let mut byte = [0];
    reader.read_exact(&mut byte).await?;
    if byte != *b"b" {
        loop {
            writer.write_all(&byte).await?;
            reader.read_exact(&mut byte).await?;
        }
    }
    let number = room.joined.fetch_add(1, Relaxed) as usize;
    let mut heard = room.heard.subscribe();
    let ended = Rc::new(Cell::new(false));
    let hearing = runtime::spawn({
        let (room, ended) = (room.clone(), ended.clone());
        async move {
            // Lagging is an answer, too.
            while !ended.get()
                && !matches!(
                    runtime::cooperative(heard.recv()).await,
                    Err(broadcast::error::RecvError::Closed)
                )
            {
                room.counts[number].fetch_add(1, Relaxed);
            }
        }
    });
    let mut bytes = [0; 64];
    while let Ok(length @ 1..) = reader.read(&mut bytes).await {
        for byte in &bytes[..length] {
            room.full.fetch_add(u64::from(room.said.capacity() == 0), Relaxed);
            if room.said.send(*byte).await.is_err() {
                break;
            }
        }
    }
    ended.set(true);
    hearing.abort();
    Ok(())
}

fn connect(address: SocketAddr, kind: u8) -> std::net::TcpStream {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(&[kind]).unwrap();
    stream
}

/// Prints the 99th percentile of quiet clients' round trips, in microseconds: alone, and beside
/// busy ones.
fn run_clients(address: SocketAddr) -> ! {
    let mut quiet: Vec<_> = (0..QUIET).map(|_| connect(address, b'q')).collect();
    quiet.iter_mut().for_each(|client| client.read_exact(&mut [0]).unwrap());
    let p99 = |times: &[Duration]| times[times.len() * 99 / 100].as_micros();
    let alone = p99(&ping(&mut quiet));
    let mut busy: Vec<_> = (0..BUSY).map(|_| connect(address, b'b')).collect();
    busy.iter().for_each(|client| client.set_nonblocking(true).unwrap());
    std::thread::spawn(move || {
        prefer_this_thread(0);
        loop {
            // What a full socket doesn't take is not said.
            busy.iter_mut().for_each(|client| drop(client.write(&[b'x'; 64])));
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    println!("\np99 {alone} {}", p99(&ping(&mut quiet)));
    std::process::exit(0)
}

/// What a client waits for a core while workers and busy clients occupy all of them is not the
/// server's. Where this needs a privilege that is missing, it counts.
fn prefer_this_thread(nice: i32) {
    let _ = rustix::process::setpriority_process(None, nice);
}

/// The round trips of quiet clients in turn, sorted.
fn ping(quiet: &mut [std::net::TcpStream]) -> Vec<Duration> {
    prefer_this_thread(-20);
    let mut times: Vec<_> = (0..PINGS)
        .map(|number| {
            let client = &mut quiet[number * 37 % QUIET];
            let begin = Instant::now();
            client.write_all(b"p").unwrap();
            client.read_exact(&mut [0]).unwrap();
            let time = begin.elapsed();
            std::thread::sleep(Duration::from_millis(1));
            time
        })
        .collect();
    times.sort();
    times
}

#[runtime::test(workers = 2)]
#[ignore = "timing"]
async fn quiet_clients_are_answered_within_5_ms_while_channels_are_full() {
    if cfg!(debug_assertions) {
        // It measures a limit that servers have in production.
        println!(
            "skipped: for an optimized program: cargo test --profile guest -p lull-adapters --test suite -- --ignored crowded"
        );
        return;
    }
    let Some(()) = requirements::descriptors((QUIET + BUSY + 200) as u64) else { return };
    if let Ok(address) = std::env::var(CLIENTS_OF) {
        run_clients(address.parse().unwrap());
    }
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let (said, mut pass_on) = mpsc::channel(100);
    let counts = (0..BUSY).map(|_| AtomicU64::new(0)).collect();
    let room = Arc::new(Room {
        said,
        heard: broadcast::channel(100).0,
        counts,
        joined: AtomicU64::new(0),
        full: AtomicU64::new(0),
    });
    let heard = room.heard.clone();
    runtime::spawn(async move {
        while let Some(byte) = runtime::cooperative(pass_on.recv()).await {
            let _ = heard.send(byte);
        }
    });
    let shared = room.clone();
    let serving = listener.serve(move |stream| {
        let room = shared.clone();
        async move { drop(serve(room, stream).await) }
    });
    // A process may have too few descriptors for both ends.
    let mut clients = std::process::Command::new(std::env::current_exe().unwrap());
    clients.args(["--exact", "--ignored", "--nocapture", TEST]).env(CLIENTS_OF, address.to_string());
    let output = runtime::spawn_blocking(move || clients.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8_lossy(&output.stdout);
    let p99 = output.lines().find_map(|line| line.strip_prefix("p99 ")?.split_once(' ')).unwrap();
    let (alone, crowded): (u64, u64) = (p99.0.parse().unwrap(), p99.1.parse().unwrap());
    let counts: Vec<u64> = room.counts.iter().map(|count| count.load(Relaxed)).collect();
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    let full = room.full.load(Relaxed);
    assert!(full > 1000, "the channel was full {full} times");
    eprintln!("p99 {alone} µs alone, {crowded} µs crowded; heard {least} to {most}");
    assert!(alone < 1000, "{alone} µs alone: the machine is not quiet, and says nothing of the limit");
    assert!(crowded < 5000, "{crowded} µs");
    assert!(*least > 0 && most / least.max(&1) < 4, "{least} to {most}");
    serving.unwrap().shutdown(Duration::from_secs(30)).await;
}
