//! Child processes, as in `tokio::process`.
//!
//! ```
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//! use runtime::process::{Command, Stdio};
//!
//! # #[runtime::main(driver = "epoll", workers = 1)]
//! # async fn main() -> std::io::Result<()> {
//! let output = Command::new("echo").arg("hello").output().await?;
//! assert!(output.status.success() && output.stdout == b"hello\n");
//!
//! let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
//! if let (Some(mut stdin), Some(mut stdout)) = (cat.stdin.take(), cat.stdout.take()) {
//!     stdin.write_all(b"through a pipe").await?;
//!     stdin.close().await?;
//!     let mut copied = String::new();
//!     stdout.read_to_string(&mut copied).await?;
//!     assert_eq!(copied, "through a pipe");
//! }
//! assert!(cat.wait().await?.success());
//! # Ok(())
//! # }
//! ```
//!
//! # How a child is waited for
//! Each child has a pidfd (`pidfd_open(2)`, Linux 5.3), which its worker's driver polls. No SIGCHLD
//! handler and no thread is used. A program that ignores SIGCHLD (`SIG_IGN`) has no children to
//! wait for, as the kernel reaps them at once: waiting returns an error then.
//!
//! # A child that is dropped
//! Dropping a [`Child`] leaves its process running, unless [`Command::kill_on_drop`] is set. Nobody
//! has to wait for it: a task of the worker does, so that it leaves no zombie. If the runtime ends
//! before the child, the next [`Command::spawn`] of the program reaps it, or else `init`, once the
//! program has ended.
//!
//! # What a child inherits
//! As with [`std::process::Command`], the environment, the working folder, and standard input,
//! output and error, unless the command says otherwise. It doesn't inherit a worker's core and
//! timer slack: it has those of the thread that called [`block_on`](crate::Runtime::block_on), or
//! that built the runtime.
//!
//! A child and its pipes stay on the worker that spawned them. [`Command::spawn`] blocks the worker
//! until the child runs its program, as tokio's does: about as long as `fork` takes.

mod child;
mod command;
mod orphans;
mod watched_process;

pub use std::process::{ExitStatus, Output, Stdio};

pub use self::child::Child;
pub use self::command::Command;
use crate::pipe::{Receiver, Sender};

/// A pipe to a child's standard input.
pub type ChildStdin = Sender;
/// A pipe from a child's standard output.
pub type ChildStdout = Receiver;
/// A pipe from a child's standard error.
pub type ChildStderr = Receiver;
