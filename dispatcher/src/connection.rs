//! Gives connections their threads.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use runtime::JoinHandle;

use crate::blocking_stream::BlockingStream;
use crate::builder::Builder;
use crate::metrics::DispatcherMetrics;
use crate::pump::Pump;
use crate::slot::Slot;
use crate::state::{CountedThread, DispatcherState};
use crate::thread_start;
use net::Stream;

/// Runs blocking code, a thread for each connection. Clones share their threads' limit and counts.
#[derive(Clone)]
pub struct Dispatcher(Arc<DispatcherState>);

impl Builder {
    /// Makes the dispatcher. It has no thread before the first connection.
    pub fn build(self) -> Dispatcher {
        Dispatcher(Arc::new(DispatcherState::new(self)))
    }
}

impl Dispatcher {
    /// Starts a thread that runs `body` with a connection of the calling worker, and a task of the worker that receives for
    /// it. Awaiting the handle gives what the closure returns; a panic of the closure closes its connection, and is the
    /// [`JoinError`](runtime::JoinError)'s. Aborting the handle closes the connection: the thread's reads and writes
    /// fail, and it is not waited for. Dropping the handle leaves both running. The thread's writes don't wait for earlier ones of
    /// the stream: flush it before.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use futures_util::{AsyncReadExt, AsyncWriteExt};
    /// use net::{TcpListener, TcpStream};
    ///
    /// # #[runtime::main]
    /// # async fn main() -> std::io::Result<()> {
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?).await?;
    /// let client = dispatcher::Builder::new().build().spawn_thread(stream, |mut stream| {
    ///     stream.write_all(b"2 + 2")?;
    ///     let mut answer = String::new();
    ///     stream.read_to_string(&mut answer)?;
    ///     std::io::Result::Ok(answer)
    /// })?;
    ///
    /// let (mut server, _) = listener.accept().await?;
    /// server.read_exact(&mut [0; 5]).await?;
    /// server.write_all(b"4").await?;
    /// drop(server);
    /// assert_eq!(client.await.unwrap()?, "4");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `QuotaExceeded` above [`Builder::max_threads`]; `InvalidInput` if [`Builder::thread_name`] has a NUL byte; the system's
    /// error if it has no thread. The connection is closed then.
    #[track_caller]
    pub fn spawn_thread<K, T, F>(&self, stream: Stream<K>, body: F) -> io::Result<JoinHandle<T>>
    where
        K: 'static,
        T: Send + 'static,
        F: FnOnce(BlockingStream<K>) -> T + Send + 'static,
    {
        let (pump, result) = self.start(stream, body)?;
        let task = runtime::task::Builder::new().location(Location::caller());
        Ok(task.spawn(finish(pump, result)))
    }

    /// Like [`Dispatcher::spawn_thread`], within the calling task: the thread starts now, and the future receives for it until
    /// it has ended. For handlers of [`Listener::serve`](net::Listener::serve), whose shutdown then reaches the connection.
    /// Dropping the future closes the connection, as aborting does.
    ///
    /// # Errors
    /// The future returns those of [`Dispatcher::spawn_thread`].
    ///
    /// # Panics
    /// Outside of a runtime. The future panics if the closure does.
    pub fn run<K, T, F>(
        &self,
        stream: Stream<K>,
        body: F,
    ) -> impl Future<Output = io::Result<T>> + use<K, T, F>
    where
        K: 'static,
        T: Send + 'static,
        F: FnOnce(BlockingStream<K>) -> T + Send + 'static,
    {
        let started = self.start(stream, body);
        async move {
            let (pump, result) = started?;
            Ok(finish(pump, result).await)
        }
    }

    /// What the dispatcher has counted.
    pub fn metrics(&self) -> DispatcherMetrics {
        DispatcherMetrics {
            threads: self.0.threads.load(Ordering::Relaxed),
            started: self.0.started.load(Ordering::Relaxed),
            refused: self.0.refused.load(Ordering::Relaxed),
            ..self.0.counters.read()
        }
    }

    fn start<K, T, F>(&self, stream: Stream<K>, body: F) -> io::Result<(Pump<K>, ThreadResult<T>)>
    where
        T: Send + 'static,
        F: FnOnce(BlockingStream<K>) -> T + Send + 'static,
        K: 'static,
    {
        let state = &self.0;
        let worker = runtime::current_worker();
        let slot = Arc::new(Slot::new(state.settings.buffer_size));
        let result = ThreadResult::default();
        let started = CountedThread::new(state).and_then(|counted| {
            let socket = stream.shared_socket();
            let blocking = BlockingStream::new(Arc::clone(&slot), socket, Arc::clone(state), worker);
            let (slot, result) = (Arc::clone(&slot), Arc::clone(&result));
            thread_start::start(&state.settings, move || {
                // The panic hook has reported a panic; the stream is dropped by it.
                let returned = catch_unwind(AssertUnwindSafe(|| body(blocking)));
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(returned);
                drop(counted);
                slot.end_thread();
            })
        });
        if let Err(error) = started {
            state.refused.fetch_add(1, Ordering::Relaxed);
            return Err(error);
        }
        state.started.fetch_add(1, Ordering::Relaxed);
        Ok((Pump::new(stream, slot, Arc::clone(state), worker), result))
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dispatcher").field(&self.metrics()).finish()
    }
}

type ThreadResult<T> = Arc<Mutex<Option<thread::Result<T>>>>;

/// Receives for a thread until it has ended. Panics if that has.
async fn finish<K, T>(mut pump: Pump<K>, result: ThreadResult<T>) -> T {
    std::future::poll_fn(|context| pump.poll(context)).await;
    drop(pump);
    let returned = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    match returned {
        Some(Ok(value)) => value,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("a thread stores its result before it ends"),
    }
}
