//! What fast senders leave to the others of their worker, counted in its turns.

use std::cell::Cell;
use std::io::{IoSliceMut, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{AsyncBufReadExt, AsyncReadExt};
use net::{TcpStream, UnixStream};

use crate::common::with_std_peer;
use crate::drivers::{drivers, one_worker};

const SENDERS: usize = 6;

/// How the server reads what the senders send.
#[derive(Debug, Clone, Copy)]
enum Reads {
    /// By `AsyncRead`, into the task's buffer.
    Blocks,
    /// As that, into two pieces of memory.
    Vectored,
    /// By `AsyncBufRead`, from the worker's buffers.
    Borrowed,
}

fn turns() -> u64 {
    runtime::metrics()[0].turns
}

/// What a sender has got: in all, in the present turn, and in the turn in which it has got most.
#[derive(Default)]
struct Taken {
    all: Cell<usize>,
    turn: Cell<(u64, usize)>,
    most: Cell<usize>,
}

impl Taken {
    fn add(&self, length: usize) {
        self.all.set(self.all.get() + length);
        let (turn, before) = self.turn.get();
        let now = turns();
        let in_turn = length + if turn == now { before } else { 0 };
        self.turn.set((now, in_turn));
        self.most.set(self.most.get().max(in_turn));
    }
}

/// Reads for as long as somebody sends.
async fn read_all(mut stream: TcpStream, reads: Reads, taken: Rc<Taken>) {
    let mut memory = vec![0; 1 << 20];
    loop {
        let length = match reads {
            Reads::Blocks => stream.read(&mut memory).await.unwrap_or(0),
            Reads::Vectored => {
                let (first, second) = memory.split_at_mut(1 << 19);
                let mut both = [IoSliceMut::new(first), IoSliceMut::new(second)];
                stream.read_vectored(&mut both).await.unwrap_or(0)
            }
            Reads::Borrowed => {
                let length = stream.fill_buf().await.map_or(0, <[u8]>::len);
                stream.consume_unpin(length);
                length
            }
        };
        if length == 0 {
            return;
        }
        taken.add(length);
    }
}

struct Seen {
    /// The greatest number of turns after which a request beside fast senders was there.
    turns: u64,
    /// The most that a sender has got in one turn, in bytes.
    most: usize,
    /// What each sender has got.
    shares: Vec<usize>,
}

async fn beside_fast_senders(reads: Reads) -> Seen {
    let stop = Arc::new(AtomicBool::new(false));
    let (mut taken, mut threads) = (Vec::new(), Vec::new());
    for _ in 0..SENDERS {
        let (stream, mut peer) = with_std_peer().await;
        taken.push(Rc::new(Taken::default()));
        drop(runtime::spawn(read_all(stream, reads, Rc::clone(&taken[taken.len() - 1]))));
        let stop = Arc::clone(&stop);
        threads.push(std::thread::spawn(move || {
            let block = vec![1; 1 << 20];
            while !stop.load(Ordering::Relaxed) && peer.write_all(&block).is_ok() {}
        }));
    }
    // What is written to a Unix socket has come when the write returns.
    let (peer, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (mut stream, mut peer) = (UnixStream::from_std(other).unwrap(), peer);
    // Until all of them send.
    while taken.iter().any(|taken| taken.all.get() < 4 << 20) {
        runtime::yield_now().await;
    }
    let before: Vec<usize> = taken.iter().map(|taken| taken.all.get()).collect();
    let mut greatest = 0;
    for _ in 0..100 {
        let begun = turns();
        peer.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
        greatest = greatest.max(turns() - begun);
        for _ in 0..5 {
            runtime::yield_now().await;
        }
    }
    let shares = taken.iter().zip(before).map(|(taken, before)| taken.all.get() - before).collect();
    let most = taken.iter().map(|taken| taken.most.get()).max().unwrap();
    stop.store(true, Ordering::Relaxed);
    // Their writes end with the streams.
    drop(taken);
    runtime::spawn_blocking(move || threads.into_iter().for_each(|thread| drop(thread.join())))
        .await
        .unwrap();
    Seen { turns: greatest, most, shares }
}

#[test]
fn a_request_beside_fast_senders_waits_for_few_turns_and_none_of_them_gets_much_in_one() {
    for driver in drivers() {
        for reads in [Reads::Blocks, Reads::Vectored, Reads::Borrowed] {
            let Seen { turns, most, .. } = one_worker(driver).block_on(beside_fast_senders(reads));
            println!("{driver}, {reads:?}: {turns} turns, at most {most} bytes in one");
            // On a ring it may wait for buffers, in the worst case behind a receive of each sender.
            assert!(turns <= SENDERS as u64 + 2, "{driver}, {reads:?}: a request waited for {turns} turns");
            // A poll ends after 64 KiB, or a read of 512 KiB. A ring's first receive has all buffers.
            assert!(most <= 600 << 10, "{driver}, {reads:?}: a sender has got {most} bytes in a turn");
        }
    }
}

/// The senders' threads need cores to send as fast as they are read.
#[test]
#[ignore = "timing"]
fn fast_senders_get_equal_shares() {
    for driver in drivers() {
        for reads in [Reads::Blocks, Reads::Vectored, Reads::Borrowed] {
            let Seen { shares, .. } = one_worker(driver).block_on(beside_fast_senders(reads));
            println!("{driver}, {reads:?}: {shares:?}");
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(*most <= 2 * *least, "{driver}, {reads:?}: {shares:?}");
        }
    }
}
