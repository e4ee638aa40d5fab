//! What the page "Which crates work" says: crates that need no runtime, on each driver, between two
//! workers.

use std::time::Duration;

use adapters::Io;
use futures_util::{SinkExt, StreamExt};
use tokio::sync;
use tokio_util::codec::{Framed, LinesCodec};
use tokio_util::sync::CancellationToken;

use crate::common::pair;

/// Sums what a channel gives.
async fn sum<F: Future<Output = Option<u32>>>(mut next: impl FnMut() -> F) -> u32 {
    let mut sum = 0;
    while let Some(number) = next().await {
        sum += number;
    }
    sum
}

#[runtime::test(workers = 2)]
async fn tokios_channels_cross_workers() {
    let (sender, mut receiver) = sync::mpsc::channel(1);
    let (done, answer) = sync::oneshot::channel();
    let (announce, mut announced) = sync::watch::channel(0);
    let (broadcast, mut heard) = sync::broadcast::channel(10);
    drop(runtime::spawn_on(1, move || async move {
        for number in 0..100 {
            sender.send(number).await.unwrap();
        }
        done.send("done").unwrap();
        announce.send(7).unwrap();
        broadcast.send(8).unwrap();
        std::future::pending::<()>().await;
    }));
    let mut sum = 0;
    for _ in 0..100 {
        sum += receiver.recv().await.unwrap();
    }
    assert_eq!(sum, 4950);
    assert_eq!(answer.await, Ok("done"));
    announced.changed().await.unwrap();
    assert_eq!(*announced.borrow(), 7);
    assert_eq!(heard.recv().await, Ok(8));
}

#[runtime::test(workers = 2)]
async fn tokios_locks_hold_between_workers() {
    let lock = std::sync::Arc::new(sync::Mutex::new(0));
    let permits = std::sync::Arc::new(sync::Semaphore::new(1));
    let notify = std::sync::Arc::new(sync::Notify::new());
    let tasks: Vec<_> = (0..2)
        .map(|worker| {
            let (lock, permits, notify) = (lock.clone(), permits.clone(), notify.clone());
            runtime::spawn_on(worker, move || async move {
                for _ in 0..50 {
                    let _permit = permits.acquire().await.unwrap();
                    let mut value = lock.lock().await;
                    let before = *value;
                    runtime::yield_now().await;
                    *value = before + 1;
                }
                notify.notify_one();
            })
        })
        .collect();
    notify.notified().await;
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*lock.lock().await, 100);
}

#[runtime::test(workers = 2)]
async fn the_channels_of_flume_futures_and_async_channel_cross_workers() {
    let (flume_sender, flume_receiver) = flume::bounded(1);
    let (mut futures_sender, mut futures_receiver) = futures_channel::mpsc::channel(1);
    let (async_sender, async_receiver) = async_channel::bounded(1);
    drop(runtime::spawn_on(1, move || async move {
        for number in 0..50_u32 {
            flume_sender.send_async(number).await.unwrap();
            futures_sender.send(number).await.unwrap();
            async_sender.send(number).await.unwrap();
        }
    }));
    let drained = async { (&mut futures_receiver).fold(0, async |sum, number| sum + number).await };
    let sums = futures_util::join!(
        sum(|| async { flume_receiver.recv_async().await.ok() }),
        drained,
        sum(|| async { async_receiver.recv().await.ok() }),
    );
    assert_eq!(sums, (1225, 1225, 1225));
}

#[runtime::test]
async fn a_thread_of_its_own_wakes_a_worker() {
    let (sender, receiver) = futures_channel::oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        sender.send("from a thread").unwrap();
    });
    assert_eq!(receiver.await, Ok("from a thread"));
}

#[runtime::test]
async fn codecs_of_tokio_util_frame_a_stream() {
    let (client, server) = pair().await;
    let mut server = Framed::new(Io::new(server), LinesCodec::new());
    let echo = runtime::spawn(async move {
        while let Some(Ok(line)) = server.next().await {
            server.send(line.to_uppercase()).await.unwrap();
        }
    });
    let mut client = Framed::new(Io::new(client), LinesCodec::new());
    for line in ["one", "two"] {
        client.send(line).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), line.to_uppercase());
    }
    drop(client);
    echo.await.unwrap();
}

#[runtime::test(workers = 2)]
async fn a_cancellation_token_of_tokio_util_ends_tasks_of_other_workers() {
    let token = CancellationToken::new();
    let task = runtime::spawn_on(1, {
        let token = token.clone();
        move || async move { token.run_until_cancelled(std::future::pending::<()>()).await }
    });
    token.cancel();
    assert_eq!(task.await.unwrap(), None);
}

#[runtime::test]
async fn futures_util_selects_joins_and_limits_concurrency() {
    let doubled: Vec<_> = futures_util::stream::iter(0..20)
        .map(|number| async move {
            runtime::sleep(Duration::from_micros(100 * (20 - number))).await;
            number * 2
        })
        .buffered(5)
        .collect()
        .await;
    assert_eq!(doubled, (0..20).map(|number| number * 2).collect::<Vec<_>>());
    let fast = futures_util::future::select(
        Box::pin(runtime::sleep(Duration::from_secs(60))),
        std::future::ready("ready"),
    );
    assert!(matches!(fast.await, futures_util::future::Either::Right(("ready", _))));
}

#[runtime::test]
async fn what_needs_tokios_runtime_has_a_substitute() {
    use tower::{Service, ServiceExt};
    let tracker = tokio_util::task::TaskTracker::new();
    let task = runtime::spawn(tracker.track_future(async { 7 }));
    tracker.close();
    tracker.wait().await;
    assert_eq!(task.await.unwrap(), 7);
    // `Buffer::new` spawns on tokio's runtime.
    let double = tower::service_fn(async |number: u32| Ok::<_, std::convert::Infallible>(2 * number));
    let (mut buffer, worker) = tower::buffer::Buffer::pair(double, 8);
    let worker = runtime::spawn(worker);
    assert_eq!(buffer.ready().await.unwrap().call(21).await.unwrap(), 42);
    drop(buffer);
    worker.await.unwrap();
    // `IntervalStream`.
    let ticks: Vec<_> = runtime::interval(Duration::from_millis(1)).take(3).collect().await;
    assert!(ticks[2] - ticks[0] >= Duration::from_millis(2), "{ticks:?}");
}

/// A `DelayQueue`: each entry comes at its time, unless it was removed.
#[runtime::test]
async fn entries_that_wait_for_their_times_come_in_order_and_can_be_removed() {
    let mut queue = runtime::task::JoinSet::new();
    let start = runtime::time::now();
    let mut insert = |entry: u64| {
        queue.spawn(async move {
            runtime::sleep_until(start + Duration::from_millis(entry)).await;
            entry
        })
    };
    let entries: Vec<_> = [30, 10, 40, 20].map(&mut insert).into_iter().collect();
    entries[2].abort();
    let mut came = Vec::new();
    while let Some(entry) = queue.join_next().await {
        came.extend(entry.ok());
    }
    assert_eq!(came, [10, 20, 30]);
}
