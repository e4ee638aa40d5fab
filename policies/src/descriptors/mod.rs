//! What the kernel keeps about polling in descriptors: the parameters of an epoll instance, and the options of a
//! socket. Their owner may be another process.

#![expect(unsafe_code, reason = "neither rustix nor std has these ioctls and socket options")]

mod duplicate;
mod epoll_params;
mod socket_options;

pub use duplicate::duplicate;
pub use epoll_params::EpollParams;
pub use socket_options::{incoming_napi_id, steer_by_queue, stop_steering};
