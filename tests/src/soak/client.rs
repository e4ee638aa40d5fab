//! The clients: one operation at a time, on connections that come and go.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::model::Model;

const CONNECTIONS: usize = 16;
pub(super) const KEYS: u64 = 2_000;
/// Sizes drift from the smallest to the largest and back, in bytes and over this time.
const SIZES: (f64, f64) = (20.0, 100_000.0);
const DRIFT: Duration = Duration::from_secs(600);
const LIFETIME: u64 = 90;
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Client {
    server: SocketAddr,
    connections: Vec<BufReader<TcpStream>>,
    random: SmallRng,
    pub model: Model,
    pub operations: u64,
    pub flushes: u64,
    pub reconnects: u64,
}

fn broken(error: std::io::Error) -> String {
    format!("a connection failed: {error}")
}

fn open(server: SocketAddr) -> Result<BufReader<TcpStream>, String> {
    let stream = TcpStream::connect(server).map_err(|error| format!("cannot connect: {error}"))?;
    stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE))).map_err(broken)?;
    Ok(BufReader::new(stream))
}

impl Client {
    pub fn connect(server: SocketAddr, seed: u64) -> Result<Self, String> {
        let connections = (0..CONNECTIONS).map(|_| open(server)).collect::<Result<_, _>>()?;
        let (random, model) = (SmallRng::seed_from_u64(seed), Model::default());
        let mut client =
            Self { server, connections, random, model, operations: 0, flushes: 0, reconnects: 0 };
        // The server has accepted a connection once it answers.
        (0..CONNECTIONS).try_for_each(|connection| client.ask(connection, b"mn\r\n", "MN"))?;
        Ok(client)
    }

    pub fn connections(&self) -> u64 {
        self.connections.len() as u64
    }

    pub fn operate(&mut self, since_start: Duration) -> Result<(), String> {
        self.operations += 1;
        let key = self.random.random_range(0..KEYS);
        let connection = self.random.random_range(0..self.connections()) as usize;
        match self.random.random_range(0..1000) {
            0..450 => self.get(connection, key),
            450..850 => self.set(connection, key, since_start),
            850..910 => self.delete(connection, key),
            910..960 => self.touch(connection, key),
            960..999 => self.reconnect(connection, key),
            // Once in ten of these, as everything is gone afterwards.
            _ if self.random.random_range(0..10) == 0 => {
                self.flushes += 1;
                self.ask(connection, b"flush_all\r\n", "OK")?;
                self.model.flushed();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn size(&mut self, since_start: Duration) -> usize {
        let turn = since_start.as_secs_f64() / DRIFT.as_secs_f64() * std::f64::consts::TAU;
        // Starts in the middle, so that a short run has some of all.
        let position = 0.5 + 0.5 * turn.sin();
        let mean = SIZES.0 * (SIZES.1 / SIZES.0).powf(position);
        (mean * (0.25 + self.random.random_range(0..1500) as f64 / 1000.0)) as usize
    }

    /// Half of the values live for ever.
    fn lifetime(&mut self) -> u32 {
        match self.random.random_range(0..2) {
            0 => 0,
            _ => self.random.random_range(0..LIFETIME) as u32 + 1,
        }
    }

    fn set(&mut self, connection: usize, key: u64, since_start: Duration) -> Result<(), String> {
        let (size, lifetime) = (self.size(since_start), self.lifetime());
        let (version, value) = self.model.next_value(key, size);
        let request = [format!("set {key} 0 {lifetime} {size}\r\n").as_bytes(), &value, b"\r\n"].concat();
        self.ask(connection, &request, "STORED")?;
        self.model.stored(key, version, size, lifetime);
        Ok(())
    }

    fn get(&mut self, connection: usize, key: u64) -> Result<(), String> {
        let asked = Instant::now();
        let line = self.send(connection, format!("get {key}\r\n").as_bytes())?;
        if line == "END" {
            self.model.missed(key);
            return Ok(());
        }
        let size = line.strip_prefix(&format!("VALUE {key} 0 ")).and_then(|size| size.parse::<usize>().ok());
        let size = size.ok_or_else(|| format!("a get of key {key} was answered by {line:?}"))?;
        let mut value = vec![0; size + b"\r\nEND\r\n".len()];
        self.connections[connection].read_exact(&mut value).map_err(broken)?;
        let found = value.strip_suffix(b"\r\nEND\r\n").ok_or("a value has no end")?;
        self.model.verify(key, found, asked)
    }

    fn delete(&mut self, connection: usize, key: u64) -> Result<(), String> {
        let asked = Instant::now();
        match self.send(connection, format!("delete {key}\r\n").as_bytes())?.as_str() {
            "DELETED" => self.model.may_have(key, asked)?,
            "NOT_FOUND" => self.model.missed(key),
            other => return Err(format!("a delete was answered by {other:?}")),
        }
        self.model.removed(key);
        Ok(())
    }

    fn touch(&mut self, connection: usize, key: u64) -> Result<(), String> {
        let (asked, lifetime) = (Instant::now(), self.lifetime());
        match self.send(connection, format!("touch {key} {lifetime}\r\n").as_bytes())?.as_str() {
            "TOUCHED" => self.model.may_have(key, asked)?,
            "NOT_FOUND" => self.model.missed(key),
            other => return Err(format!("a touch was answered by {other:?}")),
        }
        self.model.touched(key, lifetime);
        Ok(())
    }

    /// Ends a connection, often in the middle of a request, which must then have no effect, and opens another.
    fn reconnect(&mut self, connection: usize, key: u64) -> Result<(), String> {
        let half: &[u8] = match self.random.random_range(0..3) {
            0 => b"",
            1 => b"get nothing\r\nget noth",
            _ => &format!("set {key} 0 0 5000\r\nhalf a value").into_bytes(),
        };
        self.connections[connection].get_mut().write_all(half).map_err(broken)?;
        self.connections[connection] = open(self.server)?;
        self.reconnects += 1;
        Ok(())
    }

    fn ask(&mut self, connection: usize, request: &[u8], expected: &str) -> Result<(), String> {
        let line = self.send(connection, request)?;
        if line == expected {
            return Ok(());
        }
        let begin = String::from_utf8_lossy(&request[..request.len().min(40)]).into_owned();
        Err(format!("{begin:?} was answered by {line:?} instead of {expected}"))
    }

    fn send(&mut self, connection: usize, request: &[u8]) -> Result<String, String> {
        let stream = &mut self.connections[connection];
        stream.get_mut().write_all(request).map_err(broken)?;
        let mut line = String::new();
        let length = stream.read_line(&mut line).map_err(broken)?;
        line.truncate(line.trim_end().len());
        if length == 0 { Err("the server has closed a connection".to_owned()) } else { Ok(line) }
    }
}
