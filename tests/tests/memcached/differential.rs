//! Random commands to this server and to the memcached that is installed: both answer the same.
//!
//! `LULL_SEQUENCES=10000 cargo test -p tests --test memcached random_` runs more of them,
//! `LULL_SEED=N` those from a seed on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use serial_test::parallel;
use tests::KillOnDrop;
use tests::memcached::{Memcached, free_port, wait_until};
use tests::random::{Random, seeds};

use crate::clients::comparable;

/// How many sequences run unless `LULL_SEQUENCES` is set.
const SEQUENCES: u64 = 100;
/// Commands of a sequence. They share few keys.
const COMMANDS: usize = 40;
/// The version that this server follows.
const FOLLOWED: [u32; 3] = [1, 6, 45];

/// What is not asked, as the answers differ. The first word of a text command, a part of it, and
/// why.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    ("mg", " T-1", "memcached's `t` wraps around when a request sets the lifetime to the past"),
    ("mg", " N-1", "as for T-1"),
    ("ma", " N-1", "as for mg"),
    ("ma", " T-1", "as for mg"),
    (
        "m",
        " O1234567890123456789012345678901234567890",
        "memcached executes a command before it refuses its long opaque token",
    ),
    ("get", " KKK", "memcached sends an empty line after the error for a key that is too long"),
    ("gat", " KKK", "as for get"),
    ("delete", " 5", "memcached takes a delay for nothing, which protocol.txt calls an error"),
];

/// What is not asked of memcached before 1.6.45, for example Debian 12's 1.6.18.
const DIFFERENCES_OF_OLDER: &[(&str, &str, &str)] = &[
    ("", " -1 ", "the data block of a line with invalid numbers is not discarded"),
    ("", " x ", "as above"),
    ("cas", " x", "as above"),
    (
        "",
        " KKK",
        "the data block is not discarded either after a line with a key that is too long, and `ma` answers otherwise",
    ),
    ("ms", " s", "the flag s is not returned"),
    ("md", " Tx", "the error names no token"),
    ("md", " Cx", "as above"),
    ("ma", " q", "a number that is created is answered in spite of q"),
    ("mg", " E", "the flag E (the new CAS unique) is unknown"),
    ("ms", " E", "the flag E is unknown"),
    ("md", " E", "the flag E is unknown"),
    ("ma", " E", "the flag E is unknown"),
    ("mg", " C", "the flag C of mg (no value if the CAS unique is this) is unknown"),
    ("md", " x", "the flag x (remove the value) is unknown"),
];

/// Makes commands of memcached's protocol from a seed.
struct Commands(Random);

impl Commands {
    fn key(&mut self) -> String {
        match self.0.below(60) {
            0 => "k".repeat(250),
            1 => "K".repeat(251),
            _ => self.0.of(&["a", "b", "c", "d"]).to_owned(),
        }
    }

    fn value(&mut self) -> String {
        let texts = ["", "0", "5", "99", "007", "abc", " 1", "18446744073709551615", "18446744073709551616"];
        match self.0.below(40) {
            0 => "v".repeat(40_000),
            1..10 => "v".repeat(self.0.below(300)),
            _ => self.0.of(&texts).to_owned(),
        }
    }

    fn expiry(&mut self) -> &'static str {
        self.0.of(&["0", "0", "0", "1000", "100000", "-1", "2592000", "2592001", "99999999999", "x"])
    }

    /// A CAS unique: `{cas}` is the last that the server has shown.
    fn cas(&mut self) -> &'static str {
        self.0.of(&["{cas}", "{cas}", "{cas}", "1", "0", "18446744073709551615", "x"])
    }

    fn text_command(&mut self) -> String {
        if self.0.below(200) == 0 {
            // Near the largest. Not for other keys: memcached keeps it in chunks, which `incr`
            // refuses before it compares.
            let length = 1_048_400 + self.0.below(200);
            return format!("set large 7 0 {length}\r\n{}\r\nget large\r\n", "v".repeat(length));
        }
        let key = self.key();
        match self.0.below(18) {
            0..3 => {
                let verb = self.0.of(&["get", "gets"]);
                let more =
                    if self.0.below(3) == 0 { format!(" {} nosuch", self.key()) } else { String::new() };
                format!("{verb} {key}{more}\r\n")
            }
            3 => {
                let (verb, expiry) = (self.0.of(&["gat", "gats"]), self.0.of(&["0", "1000", "-1", "x"]));
                format!("{verb} {expiry} {key}\r\n")
            }
            4..9 => {
                let verb = self.0.of(&["set", "set", "add", "replace", "append", "prepend", "cas"]);
                let (value, expiry) = (self.value(), self.expiry());
                let flags = self.0.of(&["0", "0", "7", "4294967295", "-1", "x"]);
                let cas = if verb == "cas" { format!(" {}", self.cas()) } else { String::new() };
                let noreply = if self.0.below(5) == 0 { " noreply" } else { "" };
                format!("{verb} {key} {flags} {expiry} {}{cas}{noreply}\r\n{value}\r\n", value.len())
            }
            9 => {
                let noreply = self.0.of(&["", "", " 0", " noreply", " 5"]);
                format!("delete {key}{noreply}\r\n")
            }
            10 | 11 => {
                let verb = self.0.of(&["incr", "decr"]);
                let amount =
                    self.0.of(&["0", "1", "5", "18446744073709551615", "18446744073709551616", "-1", "x"]);
                let noreply = self.0.of(&["", "", "", " noreply"]);
                format!("{verb} {key} {amount}{noreply}\r\n")
            }
            12 => format!("touch {key} {}\r\n", self.0.of(&["0", "1000", "-1", "x"])),
            13 => self.0.of(&["flush_all\r\n", "bogus\r\n", "verbosity 0\r\n"]).to_owned(),
            _ => self.meta_command(&key),
        }
    }

    fn meta_command(&mut self, key: &str) -> String {
        let verb = self.0.of(&["mg", "mg", "ms", "ms", "md", "ma", "me"]);
        let value = self.value();
        let letters = match verb {
            "mg" => "vtcfskhOqNRTEuC",
            "ms" => "TFCEIMkOqscb",
            "md" => "CEITxkOq",
            "ma" => "NJDTMvtckOqCE",
            _ => "",
        };
        let mut flags = String::new();
        let mut left: Vec<char> = letters.chars().collect();
        for _ in 0..self.0.below(5).min(left.len()) {
            let letter = left.swap_remove(self.0.below(left.len()));
            let argument = match letter {
                'T' | 'N' => self.0.of(&["0", "1000", "100000", "-1", "x"]),
                'R' => self.0.of(&["0", "500", "5000"]),
                'C' => self.cas(),
                'E' => self.0.of(&["0", "77", "1000000"]),
                'F' => self.0.of(&["0", "9", "x"]),
                'O' => self.0.of(&["1", "opaque", "1234567890123456789012345678901234567890"]),
                'M' if verb == "ms" => self.0.of(&["S", "E", "A", "P", "R", "x"]),
                'M' => self.0.of(&["I", "D", "+", "-", "x"]),
                'J' | 'D' => self.0.of(&["0", "7", "18446744073709551615", "x"]),
                _ => "",
            };
            flags.push_str(&format!(" {letter}{argument}"));
        }
        match verb {
            "ms" => format!("ms {key} {}{flags}\r\n{value}\r\n", value.len()),
            _ => format!("{verb} {key}{flags}\r\n"),
        }
    }

    /// A packet of the binary protocol, without its CAS unique, and whether it gets the last that
    /// the server has shown.
    fn packet(&mut self) -> (Vec<u8>, bool) {
        const GETS: [u8; 4] = [0x00, 0x09, 0x0c, 0x0d];
        const STORES: [u8; 6] = [0x01, 0x02, 0x03, 0x11, 0x12, 0x13];
        const OTHERS: [u8; 16] =
            [0x04, 0x14, 0x05, 0x06, 0x15, 0x16, 0x0e, 0x0f, 0x19, 0x1a, 0x1c, 0x1d, 0x1e, 0x05, 0x06, 0x04];
        let opcode = match self.0.below(4) {
            0 => GETS[self.0.below(4)],
            1 => STORES[self.0.below(6)],
            _ => OTHERS[self.0.below(16)],
        };
        let expiry = [0u32, 1000, 100_000][self.0.below(3)].to_be_bytes();
        let amounts = [0u64, 1, 5, u64::MAX];
        let (extras, value) = match opcode {
            0x01..=0x03 | 0x11..=0x13 => ([[0, 0, 0, 5], expiry].concat(), self.value()),
            0x0e | 0x0f | 0x19 | 0x1a => (Vec::new(), self.value()),
            0x05 | 0x06 | 0x15 | 0x16 => {
                let numbers =
                    [amounts[self.0.below(4)].to_be_bytes(), amounts[self.0.below(4)].to_be_bytes()];
                let expiry = if self.0.below(3) == 0 { [0xff; 4] } else { expiry };
                ([&numbers.concat()[..], &expiry].concat(), String::new())
            }
            0x1c..=0x1e => (expiry.to_vec(), String::new()),
            _ => (Vec::new(), String::new()),
        };
        let key = self.key();
        let mut packet = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
        packet.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
        packet.extend_from_slice(&[1, 2, 3, self.0.below(256) as u8]);
        packet.extend_from_slice(&[0; 8]);
        packet.extend_from_slice(&[&extras, key.as_bytes(), value.as_bytes()].concat());
        (packet, self.0.below(4) == 0)
    }
}

struct Side {
    stream: TcpStream,
    cas: u64,
    closed: bool,
}

impl Side {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, cas: 0, closed: false }
    }

    /// Reads until the answer is complete, or the server has closed the connection.
    fn read_until(&mut self, is_complete: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let (mut answer, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while !is_complete(&answer) {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(length) => answer.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // What it had sent before may be lost then.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => self.closed = true,
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&answer)),
            }
            if self.closed {
                answer.clear();
                break;
            }
        }
        answer
    }

    /// Sends a text command and `mn`, and returns what precedes the answer to that.
    fn ask_text(&mut self, command: &str) -> Vec<u8> {
        let command = command.replace("{cas}", &self.cas.to_string());
        self.stream.write_all(&[command.as_bytes(), b"mn\r\n"].concat()).unwrap();
        let answer = self.read_until(|answer| answer.ends_with(b"MN\r\n"));
        for line in answer.split(|byte| *byte == b'\n').filter(|line| line.len() < 1000) {
            let line = String::from_utf8_lossy(line).into_owned();
            let words: Vec<&str> = line.split_whitespace().collect();
            let shown = match words[..] {
                ["VALUE", _, _, _, cas] => cas.parse().ok(),
                ["VA" | "HD", ..] => words.iter().find_map(|word| word.strip_prefix('c')?.parse().ok()),
                _ => None,
            };
            self.cas = shown.unwrap_or(self.cas);
        }
        answer
    }

    fn ask_binary(&mut self, mut packet: Vec<u8>, with_cas: bool) -> Vec<u8> {
        const NOOP: [u8; 24] = [0x80, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0];
        const END: [u8; 24] = [0x81, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0];
        if with_cas {
            packet[16..24].copy_from_slice(&self.cas.to_be_bytes());
        }
        packet.extend_from_slice(&NOOP);
        self.stream.write_all(&packet).unwrap();
        let answer = self.read_until(|answer| answer.ends_with(&END));
        let shown = answer.get(16..24).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
        self.cas = if shown == 0 { self.cas } else { shown };
        answer
    }
}

/// Makes lifetimes equal that were looked at in different seconds.
fn rounded(answer: &[u8]) -> String {
    let text = comparable(answer);
    let rounded = |word: &str| -> Option<String> {
        let seconds: u64 = word.strip_prefix('t')?.parse().ok()?;
        Some(format!("t{}", (seconds + 50) / 100 * 100))
    };
    let lines = text.lines().map(|line| {
        // Not values.
        let is_meta = ["VA ", "HD "].iter().any(|start| line.starts_with(start));
        let words = line.split(' ').map(|word| rounded(word).filter(|_| is_meta).unwrap_or(word.to_owned()));
        let words: Vec<String> =
            words.map(|word| if word.starts_with("exp=") { "exp".to_owned() } else { word }).collect();
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn is_different(command: &str, differences: &[(&str, &str, &str)]) -> bool {
    let line = command.lines().next().unwrap_or_default();
    differences.iter().any(|(verb, part, _)| line.starts_with(verb) && line.contains(part))
}

fn start_installed() -> Option<(KillOnDrop, SocketAddr, bool)> {
    let program = tests::program("memcached")?;
    let version = Command::new(&program).arg("-V").output().unwrap().stdout;
    let version = String::from_utf8_lossy(&version).into_owned();
    let numbers: Vec<u32> = version
        .trim()
        .rsplit(' ')
        .next()
        .unwrap()
        .split('.')
        .flat_map(|number| number.parse().ok())
        .collect();
    // A build of a working copy has no number.
    let is_older = !numbers.is_empty() && numbers.as_slice() < &FOLLOWED[..];
    println!("compared with {}", version.trim());
    let port = free_port();
    let mut command = Command::new(program);
    command.args(["-u", "root", "-l", "127.0.0.1", "-t", "1", "-p", &port.to_string()]);
    // Its maintainer holds items at times, and then `incr` and `decr` don't pad numbers that become
    // shorter.
    command.args(["-o", "no_lru_maintainer,no_lru_crawler"]);
    let child = KillOnDrop::from(command.stderr(Stdio::null()).spawn().unwrap());
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    wait_until("memcached listens", || TcpStream::connect(address).is_ok());
    Some((child, address, is_older))
}

/// Runs sequences against both servers. `ask` makes a command, asks both, and returns it with the
/// answers.
fn compare(ask: impl Fn(&mut Commands, bool, &mut [Side; 2]) -> Option<(String, [Vec<u8>; 2])>) {
    let Some((_child, address, is_older)) = start_installed() else { return };
    let server = Memcached::start(&["-t", "1"]);
    for seed in seeds(SEQUENCES) {
        let mut random = Commands(Random::new(seed));
        let mut sides = [server.address, address].map(Side::connect);
        sides.iter_mut().for_each(|side| assert_eq!(side.ask_text("flush_all\r\n"), b"OK\r\nMN\r\n"));
        // The protocol is that of a connection's first byte.
        sides = [server.address, address].map(Side::connect);
        let mut asked = Vec::new();
        for _ in 0..COMMANDS {
            let Some((command, [ours, theirs])) = ask(&mut random, is_older, &mut sides) else { continue };
            asked.push(command.chars().take(120).collect::<String>());
            let (ours, theirs) = (rounded(&ours), rounded(&theirs));
            let short = |text: &str| text.chars().take(300).collect::<String>();
            assert!(
                ours == theirs && sides[0].closed == sides[1].closed,
                "LULL_SEED={seed}, after {asked:#?}\nours:   {:?}\ntheirs: {:?}",
                short(&ours),
                short(&theirs)
            );
            if sides[0].closed {
                break;
            }
        }
    }
}

#[test]
#[parallel]
fn random_text_commands_are_answered_as_by_memcached() {
    compare(|random, is_older, sides| {
        let command = random.text_command();
        if is_different(&command, DIFFERENCES) || is_older && is_different(&command, DIFFERENCES_OF_OLDER) {
            return None;
        }
        let [ours, theirs] = sides;
        let answers = [ours.ask_text(&command), theirs.ask_text(&command)];
        Some((command, answers))
    });
}

#[test]
#[parallel]
fn random_packets_are_answered_as_by_memcached() {
    compare(|random, _, sides| {
        let (packet, with_cas) = random.packet();
        let shown = format!("{:02x?}, CAS unique: {with_cas}", &packet[..packet.len().min(60)]);
        let [ours, theirs] = sides;
        let answers = [ours.ask_binary(packet.clone(), with_cas), theirs.ask_binary(packet, with_cas)];
        Some((shown, answers))
    });
}
