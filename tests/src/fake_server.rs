//! A server that answers as a test tells it to.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    pub text: &'a str,
    /// The connection's number, from 0.
    pub connection: usize,
    /// How many lines came before it on its connection.
    pub index: usize,
}

/// A server whose answers, delays and failures are known. It runs until the process ends, on a
/// thread for each connection.
#[derive(Debug)]
pub struct FakeServer {
    pub address: SocketAddr,
    lines: RecordedLines,
}

/// Connection and arrival time of each line, if the server records them.
type RecordedLines = Arc<Mutex<Vec<(usize, Instant)>>>;

/// A pause at the end of each period, in which the server does nothing.
#[derive(Debug, Clone, Copy)]
pub struct Stall {
    pub length: Duration,
    /// The time from one pause's end to the next one's.
    pub period: Duration,
}

/// What a memcached server without records answers to a get.
pub const MISS: &[u8] = b"END\r\n";

impl FakeServer {
    /// Answers each line with what `answer` returns.
    pub fn answering(answer: impl Fn(Line<'_>) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::serve(None, None, move |line| Some(answer(line)))
    }

    /// Answers each line with a miss, or closes the connection.
    pub fn closing(closes: impl Fn(Line<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self::serve(None, None, move |line| (!closes(line)).then(|| MISS.to_vec()))
    }

    pub fn missing() -> Self {
        Self::answering(|_| MISS.to_vec())
    }

    /// Answers each line with a miss, except during its stalls.
    pub fn stalling(stall: Stall) -> Self {
        Self::serve(Some(stall), None, |_| Some(MISS.to_vec()))
    }

    /// Answers each line with a miss, and records when it came; see [`FakeServer::lines`].
    pub fn recording() -> Self {
        let lines = RecordedLines::default();
        let server = Self::serve(None, Some(Arc::clone(&lines)), |_| Some(MISS.to_vec()));
        Self { lines, ..server }
    }

    pub fn closing_after(time: Duration) -> Self {
        let (listener, address) = listen();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::sleep(time);
                drop(stream);
            }
        });
        Self { address, lines: Arc::default() }
    }

    /// Answers each datagram with those that `answer` returns for it and its index.
    pub fn datagrams(answer: impl Fn(&[u8], usize) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("an address");
        std::thread::spawn(move || {
            let mut buffer = [0; 2000];
            for index in 0.. {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { break };
                for datagram in answer(&buffer[..length], index) {
                    // Fails where the client has gone.
                    let _ = socket.send_to(&datagram, from);
                }
            }
        });
        Self { address, lines: Arc::default() }
    }

    /// The recorded lines in order of arrival: the connection's number, from 0, and the time.
    pub fn lines(&self) -> Vec<(usize, Instant)> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lines.sort_unstable_by_key(|(_, at)| *at);
        lines
    }

    fn serve(
        stall: Option<Stall>,
        lines: Option<RecordedLines>,
        answer: impl Fn(Line<'_>) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let (listener, address) = listen();
        let start = Instant::now();
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                let (answer, lines) = (Arc::clone(&answer), lines.clone());
                std::thread::spawn(move || {
                    serve_connection(&stream, number, |line| {
                        if let Some(lines) = &lines {
                            let arrival = (number, Instant::now());
                            lines.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
                        }
                        if let Some(stall) = stall {
                            stall.wait(start);
                        }
                        answer(line)
                    });
                });
            }
        });
        Self { address, lines: Arc::default() }
    }
}

impl Stall {
    /// Waits for the end of the stall, where the server that began at `start` is in one.
    fn wait(self, start: Instant) {
        let into_period = start.elapsed().as_nanos() % self.period.as_nanos();
        if into_period > (self.period - self.length).as_nanos() {
            std::thread::sleep(Duration::from_nanos((self.period.as_nanos() - into_period) as u64));
        }
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Until an answer is `None`.
fn serve_connection(
    stream: &TcpStream,
    connection: usize,
    mut answer: impl FnMut(Line<'_>) -> Option<Vec<u8>>,
) {
    stream.set_nodelay(true).expect("a TCP connection");
    let mut reader = BufReader::new(stream);
    let (mut line, mut out) = (String::new(), Vec::new());
    for index in 0.. {
        line.clear();
        if !reader.read_line(&mut line).is_ok_and(|length| length > 0) {
            break;
        }
        let Some(answer) = answer(Line { text: line.trim_end(), connection, index }) else { break };
        out.extend(answer);
        // What came together is answered together, as servers do.
        if reader.buffer().is_empty() {
            let sent = (&mut &*stream).write_all(&out);
            out.clear();
            if sent.is_err() {
                break;
            }
        }
    }
}
