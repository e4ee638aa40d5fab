//! No change is lost and none happens twice, whatever happens at the same time: eviction, flushes,
//! and a memory limit that changes.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serial_test::serial;
use tests::memcached::Memcached;

const CLIENTS: u64 = 4;
const KEYS: u64 = 3;

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(server: &Memcached) -> Self {
        let stream = server.connect();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, request: &str) -> String {
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.line()
    }

    fn store(&mut self, command: &str, value: &str) -> String {
        let (verb, rest) = command.split_once(' ').unwrap();
        let (key, cas) = rest.split_once(' ').unwrap_or((rest, ""));
        self.ask(&format!("{verb} {key} 0 0 {} {cas}\r\n{value}\r\n", value.len()))
    }

    /// An item's value and CAS unique.
    fn gets(&mut self, key: &str) -> Option<(String, u64)> {
        let line = self.ask(&format!("gets {key}\r\n"));
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "END" {
            return None;
        }
        let mut value = vec![0; words[3].parse::<usize>().unwrap() + 2];
        self.0.read_exact(&mut value).unwrap();
        assert_eq!(self.line(), "END");
        value.truncate(value.len() - 2);
        Some((String::from_utf8(value).unwrap(), words[4].parse().unwrap()))
    }
}

/// The numbers that were in a key's item after a change: every change has one of its own.
type Seen = HashMap<String, HashSet<u64>>;

fn record(seen: &mut Seen, key: &str, number: u64) {
    assert!(seen.entry(key.to_owned()).or_default().insert(number), "{key}: two changes led to {number}");
}

/// Each token of a log is `client.number;`. A client numbers the tokens of a key that were stored.
fn check_log(log: &str) {
    let mut last: HashMap<u64, u64> = HashMap::new();
    for token in log.split_terminator(';') {
        let (client, number) = token.split_once('.').unwrap();
        let (client, number): (u64, u64) = (client.parse().unwrap(), number.parse().unwrap());
        if let Some(before) = last.insert(client, number) {
            assert_eq!(number, before + 1, "client {client} in {log}");
        }
    }
}

fn change_items(server: &Memcached, client: u64, incarnations: &AtomicU64, over: &AtomicBool) -> (Seen, u64) {
    let mut connection = Client::connect(server);
    let (mut seen, mut logged, mut changes) = (Seen::new(), [1; KEYS as usize], 0);
    // A number that no other item has begun with.
    let fresh = || incarnations.fetch_add(1, Ordering::Relaxed) << 32;
    for turn in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let index = (turn + client) % KEYS;
        let counter = format!("counter-{index}");
        match connection.ask(&format!("incr {counter} 1\r\n")).parse() {
            Ok(number) => record(&mut seen, &counter, number),
            Err(_) => drop(connection.store(&format!("add {counter}"), &fresh().to_string())),
        }
        let compared = format!("compared-{index}");
        match connection.gets(&compared) {
            Some((value, cas)) => {
                let number = value.parse::<u64>().unwrap() + 1;
                if connection.store(&format!("cas {compared} {cas}"), &number.to_string()) == "STORED" {
                    record(&mut seen, &compared, number);
                }
            }
            None => drop(connection.store(&format!("add {compared}"), &fresh().to_string())),
        }
        let log = format!("log-{index}");
        let token = format!("{client}.{};", logged[index as usize]);
        if connection.store(&format!("append {log}"), &token) == "STORED" {
            logged[index as usize] += 1;
            changes += 1;
        } else {
            connection.store(&format!("add {log}"), "");
        }
        match connection.gets(&log) {
            // Small enough to be evicted with the others.
            Some((value, _)) if value.len() > 3000 => drop(connection.ask(&format!("delete {log}\r\n"))),
            Some((value, _)) => check_log(&value),
            None => {}
        }
    }
    let numbers: usize = seen.values().map(HashSet::len).sum();
    (seen, changes + numbers as u64)
}

#[test]
#[serial]
fn no_change_is_lost_or_made_twice_under_eviction_flushes_and_a_changing_limit() {
    let server = Memcached::start(&["-m", "16"]);
    let (over, incarnations) = (AtomicBool::new(false), AtomicU64::new(1));
    let (mut all, mut changes) = (Seen::new(), 0);
    std::thread::scope(|scope| {
        let changing: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn({
                    let (server, incarnations, over) = (&server, &incarnations, &over);
                    move || change_items(server, client, incarnations, over)
                })
            })
            .collect();
        let disturbing = scope.spawn(|| {
            let mut connection = Client::connect(&server);
            let value = "f".repeat(2000);
            let start = std::time::Instant::now();
            for round in 0_u64.. {
                // Some flushes and changes of the limit, and as many items as the test looks for.
                let enough = round > 800 && incarnations.load(Ordering::Relaxed) > 2 * KEYS;
                if enough || start.elapsed() > Duration::from_secs(60) {
                    break;
                }
                let mut batch = String::new();
                for index in 0..50 {
                    batch.push_str(&format!("set filler-{round}-{index} 0 0 2000 noreply\r\n{value}\r\n"));
                }
                assert_eq!(connection.ask(&(batch + "mn\r\n")), "MN");
                match round % 400 {
                    250 => assert_eq!(connection.ask("cache_memlimit 12\r\n"), "OK"),
                    350 => assert_eq!(connection.ask("cache_memlimit 16\r\n"), "OK"),
                    399 => assert_eq!(connection.ask("flush_all\r\n"), "OK"),
                    _ => {}
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        disturbing.join().unwrap();
        for client in changing {
            let (seen, made) = client.join().unwrap();
            changes += made;
            for (key, numbers) in seen {
                numbers.into_iter().for_each(|number| record(&mut all, &key, number));
            }
        }
    });
    // Within each incarnation the numbers have no gaps: an acknowledged change is in its
    // successors.
    for (key, numbers) in &all {
        for number in numbers.iter().filter(|number| *number & 0xffff_ffff > 1) {
            assert!(numbers.contains(&(number - 1)), "{key}: no change led to {}", number - 1);
        }
    }
    let begun = incarnations.load(Ordering::Relaxed);
    println!("{changes} changes, {begun} items begun, {} evictions", server.stat("evictions"));
    assert!(changes > 0 && begun > 2 * KEYS && server.stat("evictions") > 0, "{changes} {begun}");
}
