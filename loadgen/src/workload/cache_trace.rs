//! Traces in the format of Twitter's cache traces: lines of `timestamp,key,key size,value size,client,
//! operation,TTL` (Yang, Yue and Rashmi, *A Large Scale Analysis of Hundreds of In-memory Cache Clusters at
//! Twitter*, 2020; github.com/twitter/cache-trace).

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use crate::error::Error;
use crate::workload::definition::KEY_MAX;
use crate::workload::operation::Operation;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceRequest {
    /// Time since the first request of the trace.
    pub(crate) time: Duration,
    pub(crate) operation: Operation,
    pub(crate) key: Box<[u8]>,
    /// Value size in bytes.
    pub(crate) size: u32,
    /// Seconds; 0 means that the record never expires.
    pub(crate) ttl: u32,
}

/// Parses a line into its timestamp and request. The error completes the sentence "line N has …".
fn parse(line: &str) -> Result<(u64, TraceRequest), &'static str> {
    let mut fields = line.split(',');
    let mut next = |missing| fields.next().ok_or(missing);
    let seconds = next("no time")?.parse().map_err(|_| "a time that is not a number of seconds")?;
    let key = next("no key")?.as_bytes();
    let key_size: usize = next("no key size")?.parse().map_err(|_| "a key size that is not a number")?;
    let size: u32 = next("no value size")?.parse().map_err(|_| "a value size that is not a number")?;
    next("no client")?;
    let operation = match next("no operation")? {
        "get" | "gets" => Operation::Get,
        "set" => Operation::Set,
        "add" => Operation::Add,
        "replace" => Operation::Replace,
        "append" => Operation::Append,
        "prepend" => Operation::Prepend,
        "cas" => Operation::Cas,
        "delete" => Operation::Delete,
        "incr" => Operation::Incr,
        "decr" => Operation::Decr,
        _ => return Err("an unknown operation"),
    };
    let ttl: u64 = next("no TTL")?.trim_end().parse().map_err(|_| "a TTL that is not a number")?;
    if key.is_empty() || key.iter().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
        return Err("a key that memcached doesn't accept");
    }
    if size > 1 << 30 {
        return Err("a value of more than a gigabyte");
    }
    // Published traces have anonymized keys, whose length differs from the original. Pad those that became
    // shorter. Longer ones stay as they are, because truncation could make two keys equal.
    let mut key = key[..key.len().min(KEY_MAX)].to_vec();
    let length = key.len().max(key_size.min(KEY_MAX));
    key.resize(length, b'~');
    Ok((
        seconds,
        TraceRequest {
            time: Duration::ZERO,
            operation,
            key: key.into(),
            size,
            ttl: ttl.min(LONGEST_TTL) as u32,
        },
    ))
}

/// Servers interpret a longer TTL as a date: thirty days, in seconds.
const LONGEST_TTL: u64 = 2_592_000;
/// The longest trace, in seconds: thirty years.
const LONGEST: u64 = 1_000_000_000;
/// Up to this number, the requests of one second are spread evenly over it; more are spread in chunks.
const SPREAD_MAX: usize = 1 << 20;

/// Requests that the reader thread hands over at once.
const BATCH: usize = 1024;
const BATCHES_AHEAD: usize = 16;

/// One worker's requests of a trace. A thread reads ahead, so that a slow file doesn't delay requests.
#[derive(Debug)]
pub(crate) struct CacheTrace {
    ready: VecDeque<TraceRequest>,
    batches: Receiver<Result<Vec<TraceRequest>, String>>,
    fault: Option<String>,
    /// Requests at the front whose times `next_time` has returned.
    scheduled: usize,
}

impl CacheTrace {
    /// Opens a trace. A worker takes the requests whose keys hash to it, so that requests for one key stay in
    /// order.
    pub(crate) fn open(path: &Path, worker: usize, workers: usize) -> Result<Self, Error> {
        let failed = |error: io::Error| Error::Config(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(failed)?;
        let (sender, batches) = sync_channel(BATCHES_AHEAD);
        let reader = Reader { path: path.to_owned(), worker, workers, sender };
        thread::Builder::new().name("trace".to_owned()).spawn(|| reader.run(file)).map_err(Error::Thread)?;
        let mut trace = Self { ready: VecDeque::new(), batches, fault: None, scheduled: 0 };
        // Wait for the first batch: an invalid file is reported before the run.
        trace.refill(true);
        match trace.fault.take() {
            Some(fault) => Err(Error::Config(fault)),
            None => Ok(trace),
        }
    }

    fn refill(&mut self, wait: bool) {
        let batch = match self.batches.try_recv() {
            Err(TryRecvError::Empty) if wait => self.batches.recv().map_err(|_| TryRecvError::Disconnected),
            batch => batch,
        };
        match batch {
            Ok(Ok(batch)) => self.ready.extend(batch),
            Ok(Err(fault)) => self.fault = self.fault.take().or(Some(fault)),
            Err(_) => {}
        }
    }

    /// The next request, or `None` at the end of the trace.
    pub(crate) fn next(&mut self) -> Option<TraceRequest> {
        if self.ready.is_empty() {
            // Waiting delays the worker, and is reported as its send lag.
            self.refill(true);
        }
        self.scheduled = self.scheduled.saturating_sub(1);
        self.ready.pop_front()
    }

    /// When the next request is due whose time has not been returned yet. `next` takes requests later, when a
    /// connection is free for them.
    pub(crate) fn next_time(&mut self) -> Option<Duration> {
        while self.scheduled >= self.ready.len() {
            let before = self.ready.len();
            self.refill(true);
            if self.ready.len() == before {
                return None;
            }
        }
        self.scheduled += 1;
        self.ready.get(self.scheduled - 1).map(|request| request.time)
    }

    /// The error that ended the trace early, if any.
    pub(crate) fn fault(&mut self) -> Option<String> {
        self.fault.take()
    }
}

struct Reader {
    path: PathBuf,
    worker: usize,
    workers: usize,
    sender: SyncSender<Result<Vec<TraceRequest>, String>>,
}

impl Reader {
    fn run(self, file: File) {
        if let Err(fault) = self.read(BufReader::with_capacity(1 << 20, file)) {
            // Fails if the run is over.
            let _ = self.sender.send(Err(fault));
        }
    }

    fn read(&self, mut file: impl BufRead) -> Result<(), String> {
        let (mut line, mut number) = (String::new(), 0_u64);
        let (mut first, mut second) = (None, Vec::<TraceRequest>::new());
        let (mut now, mut last) = (0, Duration::ZERO);
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            line.clear();
            number += 1;
            let length =
                file.read_line(&mut line).map_err(|error| format!("{}: {error}", self.path.display()))?;
            let parsed = match line.trim_end() {
                "" if length == 0 => None,
                "" => continue,
                text => Some(parse(text).map_err(|fault| {
                    format!(
                        "{}, line {number} has {fault}; a trace has lines of TIME,KEY,KEY SIZE,VALUE SIZE,CLIENT,OPERATION,TTL",
                        self.path.display()
                    )
                })?),
            };
            if let Some((seconds, _)) = &parsed
                && seconds.saturating_sub(*first.get_or_insert(*seconds)) > LONGEST
            {
                return Err(format!(
                    "{}, line {number} has a time more than thirty years after the first",
                    self.path.display()
                ));
            }
            let start = *first.get_or_insert_with(|| parsed.as_ref().map_or(0, |(seconds, _)| *seconds));
            let is_over = parsed.as_ref().is_none_or(|(seconds, _)| *seconds > now + start);
            if is_over || second.len() == SPREAD_MAX {
                // Timestamps are whole seconds: spread the requests of one second evenly over it.
                let all = second.len().max(1) as f64;
                for (index, mut request) in second.drain(..).enumerate() {
                    let time = Duration::from_secs(now) + Duration::from_secs_f64(index as f64 / all);
                    last = time.max(last);
                    request.time = last;
                    if crc32fast::hash(&request.key) as usize % self.workers == self.worker {
                        batch.push(request);
                    }
                    if batch.len() == BATCH && self.sender.send(Ok(std::mem::take(&mut batch))).is_err() {
                        return Ok(());
                    }
                }
            }
            match parsed {
                // Lines that are out of order belong to the current second.
                Some((seconds, request)) => {
                    now = now.max(seconds.saturating_sub(start));
                    second.push(request);
                }
                None => {
                    let _ = self.sender.send(Ok(batch));
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(lines: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        file
    }

    fn all(path: &Path, worker: usize, workers: usize) -> Vec<TraceRequest> {
        let mut trace = CacheTrace::open(path, worker, workers).unwrap();
        std::iter::from_fn(|| trace.next()).collect()
    }

    #[test]
    fn a_trace_keeps_its_sizes_and_spreads_its_requests_over_each_second() {
        let file =
            write("7,ab,5,100,1,get,0\n7,cd,2,20,1,set,60\n9,ab,5,0,2,delete,0\n\n9,ab,1,3,2,incr,0\n");
        let traced = all(file.path(), 0, 1);
        let at: Vec<f64> = traced.iter().map(|it| it.time.as_secs_f64()).collect();
        assert_eq!(at, [0.0, 0.5, 2.0, 2.5]);
        assert_eq!(
            (&*traced[0].key, &*traced[1].key, &*traced[3].key),
            (&b"ab~~~"[..], &b"cd"[..], &b"ab"[..])
        );
        assert_eq!((traced[1].size, traced[1].ttl, traced[1].operation), (20, 60, Operation::Set));
    }

    #[test]
    fn workers_divide_a_trace_by_keys_and_keep_its_order() {
        let lines: String =
            (0..5000).map(|at| format!("{},k{},4,{at},1,set,0\n", at / 1000, at % 37)).collect();
        let file = write(&lines);
        let shares: Vec<Vec<TraceRequest>> = (0..3).map(|worker| all(file.path(), worker, 3)).collect();
        assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 5000);
        for share in &shares {
            assert!(share.is_sorted_by_key(|it| it.size) && share.is_sorted_by_key(|it| it.time));
        }
        let mut keys: Vec<_> = shares
            .iter()
            .flat_map(|share| share.iter().map(|it| it.key.clone()).collect::<std::collections::HashSet<_>>())
            .collect();
        keys.sort_unstable();
        assert_eq!(keys.len(), 37, "a key belongs to one worker");
    }

    #[test]
    fn an_invalid_trace_is_rejected_with_its_line_number() {
        for (lines, fault) in [
            ("1,k,1,1,1,get,0\nnonsense\n", "line 2 has a time that is not a number"),
            ("1,k,1,1,1,fetch,0\n", "an unknown operation"),
            ("1,k k,1,1,1,get,0\n", "a key"),
            ("1,k,1,1,1,get\n", "no TTL"),
            ("1,k,1,9999999999,1,get,0\n", "a value size"),
        ] {
            let error = CacheTrace::open(write(lines).path(), 0, 1).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
        }
        assert!(CacheTrace::open(Path::new("/nowhere"), 0, 1).unwrap_err().to_string().contains("/nowhere"));
    }
}
