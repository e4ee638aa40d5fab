//! The wakes of a worker's turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::thread::Thread;

use runtime::io::{WorkerState, worker_state};

/// The threads that a worker wakes when the tasks of its turn have run. One task of each worker does that: it is queued
/// behind the tasks that fill the batch.
#[derive(Debug, Default)]
struct Batch {
    threads: RefCell<Vec<Thread>>,
    task: RefCell<Option<Waker>>,
    /// Whether there is such a task.
    has_task: Cell<bool>,
    /// Connections on this worker: without any the task ends.
    users: Cell<usize>,
    /// At most this many are woken before the worker yields its core to them; 0: no limit, and it does not yield.
    size: Cell<usize>,
}

/// A connection's share in its worker's batch.
#[derive(Debug)]
pub(crate) struct BatchUser(Rc<Batch>);

impl BatchUser {
    /// The calling worker's batch. `size`: at most this many threads are woken before the worker yields its core to them;
    /// 0: no limit, and it does not yield.
    pub(crate) fn join(size: usize) -> Self {
        let batch = worker_state::<Batch>();
        batch.size.set(size);
        batch.users.set(batch.users.get() + 1);
        if !batch.has_task.replace(true) {
            let task = WakingTask(Rc::clone(&batch));
            drop(runtime::spawn(async move {
                std::future::poll_fn(|context| task.0.poll(context.waker())).await;
            }));
        }
        Self(batch)
    }

    /// Wakes a thread when the batch is full, or the tasks of this turn have run.
    pub(crate) fn wake(&self, thread: Thread) {
        let length = {
            let mut threads = self.0.threads.borrow_mut();
            threads.push(thread);
            threads.len()
        };
        let size = self.0.size.get();
        // A dispatcher with smaller batches may have joined since.
        if size > 0 && length >= size {
            self.0.hand_out();
        } else {
            self.0.wake_task();
        }
    }
}

impl Drop for BatchUser {
    fn drop(&mut self) {
        self.0.users.set(self.0.users.get() - 1);
        if self.0.users.get() == 0 {
            self.0.wake_task();
        }
    }
}

/// Held by the task, so that a worker that shuts down leaves nobody asleep.
struct WakingTask(Rc<Batch>);

impl Drop for WakingTask {
    fn drop(&mut self) {
        self.0.has_task.set(false);
        self.0.wake_all();
    }
}

impl WorkerState for Batch {
    /// The task that wakes them is not polled before the next `block_on`.
    fn pause(&self) {
        self.wake_all();
    }
}

impl Batch {
    fn wake_task(&self) {
        if !self.has_task.get() {
            self.wake_all();
            return;
        }
        let task = self.task.borrow_mut().take();
        task.into_iter().for_each(Waker::wake);
    }

    /// Wakes the threads. Returns whether there were any.
    fn wake_all(&self) -> bool {
        let mut threads = self.threads.take();
        let any = !threads.is_empty();
        threads.drain(..).for_each(|thread| thread.unpark());
        // Its memory is used again.
        self.threads.replace(threads);
        any
    }

    /// Wakes the threads, and lets them run while their bytes and sockets are in the core's caches. The time that they take is
    /// part of the poll that calls this.
    fn hand_out(&self) {
        if self.wake_all() && self.size.get() > 0 {
            std::thread::yield_now();
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<()> {
        self.hand_out();
        if self.users.get() == 0 {
            return Poll::Ready(());
        }
        *self.task.borrow_mut() = Some(waker.clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::time::Duration;

    use runtime::Runtime;

    use crate::{BlockingStream, Builder, Dispatcher};
    use net::TcpStream;

    const LIMIT: Duration = Duration::from_secs(60);

    fn one_worker() -> Runtime {
        runtime::Builder::new().ignore_environment().workers(1).build().unwrap()
    }

    async fn connect() -> (TcpStream, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (stream, listener.accept().unwrap().0)
    }

    /// A thread that waits for a byte, and tells what it has read.
    fn read_one(
        dispatcher: &Dispatcher,
        stream: TcpStream,
    ) -> (impl Future<Output = std::io::Result<()>> + use<>, mpsc::Receiver<u8>) {
        let (told, read) = mpsc::channel();
        let running = dispatcher.run(stream, move |mut stream: BlockingStream| {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            told.send(byte[0]).unwrap();
        });
        // So that it waits when the byte comes.
        std::thread::sleep(Duration::from_millis(20));
        (running, read)
    }

    #[test]
    fn a_second_runtime_on_the_thread_wakes_its_own_threads() {
        let dispatcher = Builder::new().build();
        let mut first = one_worker();
        let (_waiting, _peer) = first.block_on(async {
            let (stream, peer) = connect().await;
            let (running, read) = read_one(&dispatcher, stream);
            drop(runtime::spawn(running));
            runtime::yield_now().await;
            (read, peer)
        });
        one_worker().block_on(async {
            let (stream, mut peer) = connect().await;
            let (running, read) = read_one(&dispatcher, stream);
            peer.write_all(b"b").unwrap();
            runtime::timeout(LIMIT, running).await.expect("the thread is woken").unwrap();
            assert_eq!(read.try_recv(), Ok(b'b'));
        });
    }

    #[test]
    fn threads_are_woken_also_if_block_on_returns_in_the_turn_of_their_bytes() {
        let dispatcher = Builder::new().build();
        let mut runtime = one_worker();
        let (_running, read, _peer) = runtime.block_on(async {
            let (stream, mut peer) = connect().await;
            let (running, read) = read_one(&dispatcher, stream);
            let mut running = Box::pin(running);
            peer.write_all(b"a").unwrap();
            std::future::poll_fn(|context| {
                assert!(running.as_mut().poll(context).is_pending());
                let metrics = dispatcher.metrics();
                match metrics.wakes + metrics.found_running {
                    0 => std::task::Poll::Pending,
                    _ => std::task::Poll::Ready(()),
                }
            })
            .await;
            (running, read, peer)
        });
        assert_eq!(read.recv_timeout(LIMIT), Ok(b'a'));
    }
}
