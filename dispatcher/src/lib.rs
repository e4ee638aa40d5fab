//! Blocking, thread-per-connection code on connections that a worker receives for.
//!
//! For code that expects a thread for each connection and blocking reads: the pool of a database client, a server ported from
//! Java, a parser that pulls its bytes. The worker that polls a connection's NAPI receives for all threads of its connections.
//! It puts the bytes into a slot that belongs to one connection, and wakes the thread of that connection, and no other, by the
//! futex behind [`std::thread::park`]. No run queue is shared, and no thread waits in the kernel's network stack.
//!
//! ```
//! use std::io::{BufRead, Read, Write};
//!
//! use dispatcher::BlockingStream;
//! use net::{TcpListener, TcpStream};
//!
//! #[runtime::main]
//! async fn main() -> std::io::Result<()> {
//!     let dispatcher = dispatcher::Builder::new().max_threads(1000).build();
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     let serving = listener.serve(move |stream: TcpStream| {
//!         let running = dispatcher.run(stream, |mut stream: BlockingStream| -> std::io::Result<()> {
//!             // A thread of this connection's own, in which everything may block.
//!             let mut line = String::new();
//!             while stream.read_line(&mut line)? > 0 {
//!                 stream.write_all(line.to_uppercase().as_bytes())?;
//!                 line.clear();
//!             }
//!             Ok(())
//!         });
//!         async move {
//!             if let Err(error) = running.await {
//!                 eprintln!("no thread for a connection: {error}");
//!             }
//!         }
//!     })?;
//!
//!     let client = runtime::spawn_blocking(move || {
//!         let mut client = std::net::TcpStream::connect(address)?;
//!         client.write_all(b"hello\n")?;
//!         let mut answer = [0; 6];
//!         client.read_exact(&mut answer)?;
//!         std::io::Result::Ok(answer)
//!     });
//!     assert_eq!(&client.await.unwrap()?, b"HELLO\n");
//!     serving.shutdown(std::time::Duration::from_secs(1)).await;
//!     Ok(())
//! }
//! ```
//!
//! # What happens to a packet
//!
//! The worker's turn receives what has come for all of its connections, by the stream's driver. Each connection's task copies
//! its bytes to the connection's slot. The worker wakes the threads in the order in which their bytes came, in batches of at
//! most 16 ([`Builder::wake_batch`]), after each of which it yields them the core (`sched_yield(2)`). A thread writes with
//! `send(2)` on its own, and sleeps in `poll(2)` if the send buffer is full: that needs no worker.
//!
//! A slot holds at most [`Builder::buffer_size`] unread bytes. Above that the worker stops reading the connection, and TCP's
//! window stops the peer; the thread's next read wakes the worker.
//!
//! # Scheduling
//!
//! By default the threads of a connection run on the worker's core ([`Placement::SameCore`]): its caches hold the bytes, and no
//! interrupt between cores is needed to wake them. They are `SCHED_BATCH` threads, which share the core like others but do not
//! preempt the worker when it wakes them. So a worker hands out a whole batch, and the threads have the core after it.
//!
//! What bounds the delay of a wake:
//!
//! - In the worker: a turn runs at most 128 tasks under kernel polling (as many as are ready, within 5 ms, under other policies),
//!   in the order in which they were woken. A connection has one task, which hands out at most one buffer's worth in a turn. A
//!   busy connection can't keep a quiet one waiting for more than its share.
//! - In the kernel: threads that compute without pause share the core with the worker by Linux's fair scheduler. With `n` of
//!   them the worker, which yields after each batch, waits for about `n` slices a batch (some milliseconds each,
//!   `/sys/kernel/debug/sched/base_slice_ns`). Run such work with [`Placement::OtherCores`], or on other threads.
//!
//! # When not to use it
//!
//! Where code can be async, tasks serve more requests: a thread costs a context switch for every wake, its kernel stack of 16 KiB,
//! and the pages that it touches. At low rates, and without a policy that polls, ordinary blocking threads are better: the kernel
//! wakes them directly. See the book's page *Blocking threads* for figures.

#![forbid(unsafe_code)]

mod batch;
mod blocking_stream;
mod builder;
mod connection;
mod metrics;
mod pump;
mod slot;
mod state;
mod thread_start;

pub use crate::blocking_stream::BlockingStream;
pub use crate::builder::{Builder, Placement};
pub use crate::connection::Dispatcher;
pub use crate::metrics::DispatcherMetrics;
