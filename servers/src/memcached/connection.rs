//! One client's connection: bytes in, answers out.

use std::io;
use std::sync::Arc;

use futures_util::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use super::command::{self, Command, StoreCommand};
use super::server::Shared;
use super::stats::WorkerStats;
use super::store::{Condition, Counted, Item, Stored};
use super::{VERSION, report};

/// Answers are sent when the input is used up, or when so many bytes of them have gathered. With the
/// largest item, that bounds what a client that never reads can make the server hold.
const SEND_AT: usize = 64 << 10;
/// Room for answers that a connection keeps while it waits.
const KEEP: usize = 16 << 10;
/// A line of another command than a get that is longer closes the connection, as in memcached.
const LONGEST_LINE: usize = 2048;
/// Nor may a line of keys be longer.
const LONGEST_GET: usize = 1 << 20;
/// A value's memory is taken as it arrives, not as it is announced.
const FIRST_ROOM: usize = 64 << 10;
/// After so many buffers in a row from one client the others get a turn.
const TURN: usize = 4;

/// Serves a connection until the client closes it.
pub async fn run(
    mut reader: impl AsyncBufRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    shared: Arc<Shared>,
) -> io::Result<()> {
    let worker = runtime::current_worker();
    let mut session = Session::new(&shared, shared.stats.worker(worker));
    let mut carry: Vec<u8> = Vec::new();
    let mut in_a_row = 0;
    loop {
        let chunk = reader.fill_buf().await?;
        if chunk.is_empty() {
            return Ok(());
        }
        let length = chunk.len();
        session.stats.bytes_read.add(length as u64);
        let open = if carry.is_empty() {
            let (used, open) = session.answer(chunk, &mut writer).await?;
            carry.extend_from_slice(&chunk[used..]);
            open
        } else {
            carry.extend_from_slice(chunk);
            let (used, open) = session.answer(&carry, &mut writer).await?;
            carry.drain(..used);
            if carry.is_empty() {
                carry = Vec::new();
            }
            open
        };
        reader.consume_unpin(length);
        session.send(&mut writer).await?;
        if !open {
            return writer.close().await;
        }
        in_a_row += 1;
        if in_a_row == TURN {
            in_a_row = 0;
            runtime::yield_now().await;
        }
    }
}

/// What the next bytes are.
enum Expected {
    Line,
    /// The data block of a storing command.
    Block {
        pending: Pending,
        data: Vec<u8>,
    },
    /// A data block that will not be stored.
    Swallow(usize),
}

/// A storing command that waits for its data.
struct Pending {
    condition: Condition,
    key: Box<[u8]>,
    flags: u32,
    expiry: i64,
    length: usize,
    noreply: bool,
}

impl Pending {
    fn new(command: &StoreCommand<'_>) -> Self {
        let StoreCommand { condition, key, flags, expiry, length, noreply } = *command;
        Self { condition, key: key.into(), flags, expiry, length, noreply }
    }
}

/// Why [`Session::feed`] came back.
#[derive(PartialEq, Eq)]
enum Step {
    /// The input is used up, but for what is not a whole line yet.
    More,
    /// Enough answers have gathered.
    Send,
    Close,
}

struct Session<'a> {
    shared: &'a Shared,
    stats: &'a WorkerStats,
    expected: Expected,
    out: Vec<u8>,
    /// Bytes at the start of the input that are known to hold no end of line.
    searched: usize,
    /// Keys of the present line of a get that have been answered.
    answered: usize,
    now: u32,
}

impl<'a> Session<'a> {
    fn new(shared: &'a Shared, stats: &'a WorkerStats) -> Self {
        Self { shared, stats, expected: Expected::Line, out: Vec::new(), searched: 0, answered: 0, now: 0 }
    }

    /// Answers all that is whole in `input`; returns how much that was, and whether to go on.
    async fn answer(
        &mut self,
        input: &[u8],
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<(usize, bool)> {
        self.now = self.shared.store.clock().now();
        let mut used = 0;
        loop {
            let (more, step) = self.feed(&input[used..]);
            used += more;
            match step {
                Step::More => return Ok((used, true)),
                Step::Close => return Ok((used, false)),
                Step::Send => self.send(writer).await?,
            }
        }
    }

    async fn send(&mut self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        if !self.out.is_empty() {
            writer.write_all(&self.out).await?;
            self.stats.bytes_written.add(self.out.len() as u64);
            self.out.clear();
            if self.out.capacity() > KEEP {
                self.out = Vec::new();
            }
        }
        Ok(())
    }

    fn feed(&mut self, input: &[u8]) -> (usize, Step) {
        let mut used = 0;
        loop {
            if self.out.len() >= SEND_AT {
                return (used, Step::Send);
            }
            let rest = &input[used..];
            if rest.is_empty() {
                return (used, Step::More);
            }
            match std::mem::replace(&mut self.expected, Expected::Line) {
                Expected::Swallow(left) => {
                    let now = left.min(rest.len());
                    used += now;
                    if now < left {
                        self.expected = Expected::Swallow(left - now);
                    }
                }
                Expected::Block { pending, data } => used += self.block(pending, data, rest),
                Expected::Line => {
                    let Some(end) = memchr::memchr(b'\n', &rest[self.searched..]) else {
                        self.searched = rest.len();
                        return (used, self.judge_unfinished(rest));
                    };
                    let end = self.searched + end;
                    let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
                    match self.line(line) {
                        Step::More => {
                            self.searched = 0;
                            used += end + 1;
                        }
                        // The line is not done: it is found again, and goes on where it was.
                        Step::Send => return (used, Step::Send),
                        Step::Close => return (used + end + 1, Step::Close),
                    }
                }
            }
        }
    }

    /// A line without an end so far may only be so long.
    fn judge_unfinished(&mut self, line: &[u8]) -> Step {
        if line.len() <= LONGEST_LINE {
            return Step::More;
        }
        let start = line.iter().position(|&byte| byte != b' ').unwrap_or(line.len());
        let command = &line[start..];
        let is_get = [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|get| command.starts_with(get));
        if start <= 100 && is_get && line.len() <= LONGEST_GET {
            return Step::More;
        }
        Step::Close
    }

    fn reply(&mut self, noreply: bool, answer: &[u8]) {
        if !noreply {
            self.out.extend_from_slice(answer);
        }
    }

    fn line(&mut self, line: &[u8]) -> Step {
        let (shared, stats, now) = (self.shared, self.stats, self.now);
        let store = &shared.store;
        match command::parse(line) {
            Command::Get { with_cas, touch, keys } => return self.get(with_cas, touch, keys),
            Command::Store(command) => self.begin_store(&command),
            Command::Delete { key, noreply } => {
                let found = store.delete(key, now);
                if found {
                    stats.delete_hits.add(1)
                } else {
                    stats.delete_misses.add(1)
                }
                self.reply(noreply, if found { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::Count { key, delta, up, noreply } => self.count(key, delta, up, noreply),
            Command::Touch { key, expiry, noreply } => {
                let found = store.touch(key, store.clock().expiry(expiry), now).is_some();
                stats.cmd_touch.add(1);
                if found {
                    stats.touch_hits.add(1)
                } else {
                    stats.touch_misses.add(1)
                }
                self.reply(noreply, if found { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" });
            }
            Command::Flush { delay, noreply } => {
                stats.cmd_flush.add(1);
                // As in memcached: a delay of 0 or one that is past means now.
                let at = store.clock().expiry(delay);
                store.flush((delay > 0 && at > now).then_some(at));
                self.reply(noreply, b"OK\r\n");
            }
            Command::Stats { section } => report::stats(shared, section, &mut self.out),
            Command::Version => {
                self.out.extend_from_slice(format!("VERSION {VERSION}\r\n").as_bytes());
            }
            Command::Verbosity { level, noreply } => {
                if let Some(level) = level {
                    shared.set_verbosity(level);
                }
                self.reply(noreply, b"OK\r\n");
            }
            Command::Quit => return Step::Close,
            Command::Refuse { answer, noreply } => self.reply(noreply, answer),
        }
        Step::More
    }

    fn get(&mut self, with_cas: bool, touch: Option<i64>, keys: &[u8]) -> Step {
        let store = &self.shared.store;
        for key in command::words(keys).skip(self.answered) {
            if self.out.len() >= SEND_AT {
                return Step::Send;
            }
            self.answered += 1;
            self.stats.cmd_get.add(1);
            let item = match touch {
                None => store.get(key, self.now),
                Some(expiry) => {
                    let item = store.touch(key, store.clock().expiry(expiry), self.now);
                    self.stats.cmd_touch.add(1);
                    if item.is_some() {
                        self.stats.touch_hits.add(1)
                    } else {
                        self.stats.touch_misses.add(1)
                    }
                    item
                }
            };
            match item {
                Some(item) => {
                    self.stats.get_hits.add(1);
                    self.value(key, &item, with_cas);
                }
                None => self.stats.get_misses.add(1),
            }
        }
        self.answered = 0;
        self.out.extend_from_slice(b"END\r\n");
        Step::More
    }

    fn value(&mut self, key: &[u8], item: &Item, with_cas: bool) {
        let mut digits = itoa::Buffer::new();
        let out = &mut self.out;
        out.reserve(key.len() + item.data.len() + 64);
        out.extend_from_slice(b"VALUE ");
        out.extend_from_slice(key);
        out.push(b' ');
        out.extend_from_slice(digits.format(item.flags).as_bytes());
        out.push(b' ');
        out.extend_from_slice(digits.format(item.data.len()).as_bytes());
        if with_cas {
            out.push(b' ');
            out.extend_from_slice(digits.format(item.cas).as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&item.data);
        out.extend_from_slice(b"\r\n");
    }

    fn count(&mut self, key: &[u8], delta: u64, up: bool, noreply: bool) {
        let stats = self.stats;
        let counted = self.shared.store.count(key, delta, up, self.now);
        match (counted == Counted::NotFound, up) {
            (false, true) => stats.incr_hits.add(1),
            (false, false) => stats.decr_hits.add(1),
            (true, true) => stats.incr_misses.add(1),
            (true, false) => stats.decr_misses.add(1),
        }
        match counted {
            Counted::Value(value) => {
                let mut digits = itoa::Buffer::new();
                self.reply(noreply, digits.format(value).as_bytes());
                self.reply(noreply, b"\r\n");
            }
            Counted::NotFound => self.reply(noreply, b"NOT_FOUND\r\n"),
            Counted::NotANumber => {
                self.reply(noreply, b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n")
            }
            Counted::OutOfMemory => {
                self.reply(noreply, b"SERVER_ERROR out of memory in incr\r\n");
            }
        }
    }

    fn begin_store(&mut self, command: &StoreCommand<'_>) {
        if self.shared.store.fits(command.key.len(), command.length) {
            self.expected = Expected::Block { pending: Pending::new(command), data: Vec::new() };
            return;
        }
        self.reply(command.noreply, b"SERVER_ERROR object too large for cache\r\n");
        if command.condition == Condition::Always {
            // The client believes the old value gone, so it must not be found any more.
            self.shared.store.delete(command.key, self.now);
        }
        self.expected = Expected::Swallow(command.length + 2);
    }

    /// Takes what there is of a data block; returns how much that was.
    fn block(&mut self, pending: Pending, mut data: Vec<u8>, rest: &[u8]) -> usize {
        let whole = pending.length + 2;
        let used = (whole - data.len()).min(rest.len());
        if data.is_empty() && used == whole {
            // All of it is here: no need to copy it first.
            self.store(&pending, &rest[..whole]);
            return used;
        }
        if data.capacity() == 0 {
            data.reserve(whole.min(FIRST_ROOM));
        }
        data.extend_from_slice(&rest[..used]);
        if data.len() == whole {
            self.store(&pending, &data);
        } else {
            self.expected = Expected::Block { pending, data };
        }
        used
    }

    fn store(&mut self, pending: &Pending, block: &[u8]) {
        let stats = self.stats;
        stats.cmd_set.add(1);
        let Some(data) = block.strip_suffix(b"\r\n") else {
            self.reply(pending.noreply, b"CLIENT_ERROR bad data chunk\r\n");
            return;
        };
        let store = &self.shared.store;
        let expiry = store.clock().expiry(pending.expiry);
        let stored = store.store(pending.condition, &pending.key, pending.flags, expiry, data, self.now);
        if let Condition::Unchanged(_) = pending.condition {
            match stored {
                Stored::Done => stats.cas_hits.add(1),
                Stored::Exists => stats.cas_badval.add(1),
                _ => stats.cas_misses.add(1),
            }
        }
        let answer: &[u8] = match stored {
            Stored::Done => b"STORED\r\n",
            Stored::Refused => b"NOT_STORED\r\n",
            Stored::Exists => b"EXISTS\r\n",
            Stored::NotFound => b"NOT_FOUND\r\n",
            Stored::TooLarge | Stored::OutOfMemory => b"SERVER_ERROR out of memory storing object\r\n",
        };
        self.reply(pending.noreply, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::{Config, Shared};
    use super::*;

    fn shared() -> Shared {
        Shared::new(&Config { memory: 8 << 20, ..Config::default() }, 1)
    }

    /// Feeds the input in pieces of a size, and returns the answers and whether it stayed open.
    fn talk(shared: &Shared, input: &[u8], piece: usize) -> (Vec<u8>, bool) {
        let mut session = Session::new(shared, shared.stats.worker(0));
        session.now = shared.store.clock().now();
        let (mut carry, mut answers) = (Vec::new(), Vec::new());
        for part in input.chunks(piece) {
            carry.extend_from_slice(part);
            loop {
                let (used, step) = session.feed(&carry);
                carry.drain(..used);
                answers.append(&mut session.out);
                match step {
                    Step::More => break,
                    Step::Send => {}
                    Step::Close => return (answers, false),
                }
            }
        }
        (answers, true)
    }

    #[test]
    fn the_answers_do_not_depend_on_how_the_input_was_cut() {
        let input = b"set a 5 0 3\r\nabc\r\nget a\r\nset b 0 0 0 noreply\r\n\r\ngets b a x\r\nappend a 0 0 2\r\nde\r\nget a b\r\nbogus\r\nset a 0 0 1\r\ntoolong\r\nincr a 1\r\ndelete a\r\nquit\r\n";
        let whole = talk(&shared(), input, input.len());
        assert!(!whole.1);
        for piece in 1..input.len() {
            assert_eq!(talk(&shared(), input, piece), whole, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_long_get_is_answered_in_parts_without_losing_or_doubling_keys() {
        let shared = shared();
        let value = vec![b'v'; 50_000];
        let set = [b"set k 0 0 50000\r\n".to_vec(), value, b"\r\n".to_vec()].concat();
        assert_eq!(talk(&shared, &set, 4096).0, b"STORED\r\n");
        let (answers, open) = talk(&shared, b"get k k k k k\r\nget k\r\n", 1024);
        assert!(open);
        assert_eq!(answers.windows(7).filter(|window| window == b"VALUE k").count(), 6);
        assert_eq!(answers.windows(5).filter(|window| window == b"END\r\n").count(), 2);
    }

    #[test]
    fn a_line_that_never_ends_closes_the_connection() {
        assert!(!talk(&shared(), &vec![b'x'; 4096], 100).1);
        assert!(!talk(&shared(), &[b"get ".to_vec(), vec![b'x'; 2 << 20]].concat(), 8192).1);
        assert!(talk(&shared(), &[b"get ".to_vec(), b"key ".repeat(25_000)].concat(), 8192).1);
    }

    #[test]
    fn a_value_that_is_too_large_is_swallowed_and_the_old_one_gone() {
        let shared = Shared::new(&Config { max_item: 2048, ..Config::default() }, 1);
        let large = [b"set k 0 0 3000\r\n".to_vec(), vec![b'x'; 3000], b"\r\nget k\r\n".to_vec()].concat();
        let input = [b"set k 0 0 1\r\nx\r\n".to_vec(), large].concat();
        let (answers, open) = talk(&shared, &input, 500);
        let expected = b"STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n";
        assert!(open);
        assert_eq!(String::from_utf8_lossy(&answers), String::from_utf8_lossy(expected));
    }
}
