//! What the compiler names when something of a worker is to be sent to another thread.

use std::marker::PhantomData;

/// No trait to implement: the compiler names it where a socket would leave its worker's thread. A
/// socket belongs to its worker's driver. Give the code that uses it to
/// [`runtime::spawn`](crate::spawn), which takes futures that are not `Send`, or send what makes it
/// to a worker by [`runtime::spawn_on`](crate::spawn_on). A `JoinHandle` of either is `Send` if the
/// result is.
pub trait StaysOnItsWorkerUseRuntimeSpawn: Unpin {}

/// The first field of types that belong to a worker. Of what is not `Send` the compiler reports
/// first what is nested least, and then in the order of the fields. The other fields are insides of
/// these crates.
pub type OnItsWorker = PhantomData<dyn StaysOnItsWorkerUseRuntimeSpawn>;
