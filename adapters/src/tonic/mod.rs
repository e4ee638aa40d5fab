//! gRPC by tonic: servers on [`net`]'s listeners, and client channels.
//!
//! Generated servers and clients are used as they are. [`serve`] replaces
//! `tonic::transport::Server`, and [`Channel`] replaces `tonic::transport::Channel`; tonic's
//! feature `transport`, which needs tokio's runtime, is not used.
//!
//! Methods of services are `Send` futures, also here: what is not `Send` goes into a task of
//! `runtime::spawn`.

mod broken_connection;
mod channel;
mod deadline;
mod deadline_body;
mod grpc_timeout;
mod serve;

pub use self::channel::{Channel, Responding};
pub use self::deadline::{Deadline, DeadlineLayer};
pub use self::deadline_body::DeadlineBody;
pub use self::serve::serve;
