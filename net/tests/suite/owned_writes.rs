//! Writes that take ownership of their bytes: they arrive, and their memory is freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{AsyncReadExt, AsyncWriteExt};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::common::pair;
use crate::drivers::{drivers, one_worker};

struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    fn bytes(bytes: Vec<u8>, count: &Arc<AtomicUsize>) -> Bytes {
        count.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Self(bytes, Arc::clone(count)))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // A send that reads it later sends wrong bytes.
        self.0.fill(0xdb);
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

#[runtime::test]
async fn owned_writes_arrive_whole_and_in_order_among_others_and_are_freed() {
    let (mut client, mut server) = pair().await;
    client.set_send_buffer_size(64 << 10).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&count);
    let writing = runtime::spawn(async move {
        let mut random = SmallRng::seed_from_u64(6);
        let mut next = 0u32;
        for _ in 0..60 {
            let length = [3, 5000, 20_000, 50_000][random.random_range(0..4)];
            let bytes: Vec<u8> = (next..next + length).flat_map(u32::to_le_bytes).collect();
            next += length;
            if random.random() {
                client.write_owned(Counted::bytes(bytes, &theirs)).await.unwrap();
            } else {
                client.write_all(&bytes).await.unwrap();
            }
        }
        client.close().await.unwrap();
        next
    });
    let mut all = Vec::new();
    server.read_to_end(&mut all).await.unwrap();
    let sent = writing.await.unwrap();
    let (numbers, rest) = all.as_chunks::<4>();
    assert!(rest.is_empty() && numbers.len() == sent as usize);
    assert!(numbers.iter().map(|number| u32::from_le_bytes(*number)).eq(0..sent));
    // In a turn after the last byte was read.
    let freed = async {
        while count.load(Ordering::Relaxed) > 0 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
    };
    runtime::timeout(Duration::from_secs(30), freed).await.expect("bytes are kept");
}

async fn assert_ends_after<K: 'static>(
    (mut client, mut server): (net::Stream<K>, net::Stream<K>),
    length: usize,
) {
    let writing = runtime::spawn(async move { client.write_owned(Bytes::from(vec![5; length])).await });
    let mut all = Vec::new();
    let reading = runtime::timeout(Duration::from_secs(30), server.read_to_end(&mut all));
    reading.await.expect("no end came").unwrap();
    writing.await.unwrap().unwrap();
    assert!(all.len() == length && all.iter().all(|&byte| byte == 5));
}

#[runtime::test]
async fn a_stream_dropped_after_an_owned_write_ends_after_its_last_byte() {
    for length in [10, 100_000, 3_000_000] {
        assert_ends_after(pair().await, length).await;
        assert_ends_after(net::UnixStream::pair().unwrap(), length).await;
    }
}

#[test]
fn the_memory_of_an_owned_write_that_nobody_reads_is_freed_with_the_runtime() {
    for driver in drivers() {
        let count = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&count);
        let kept = one_worker(driver).block_on(async move {
            let (mut client, server) = pair().await;
            let write = client.write_owned(Counted::bytes(vec![9; 8 << 20], &theirs));
            assert!(runtime::timeout(Duration::from_millis(50), write).await.is_err(), "nobody has read");
            // The peer outlives the runtime, so that the send can't complete.
            (client, server)
        });
        assert_eq!(count.load(Ordering::Relaxed), 0, "on {driver}");
        drop(kept);
    }
}
