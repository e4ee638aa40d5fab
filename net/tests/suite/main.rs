//! Sockets over loopback. One program, since each has to be linked.

mod accepting;
mod cancellation;
mod common;
mod conveniences;
mod floods;
mod owned_writes;
mod ring;
mod send_file;
mod shares;
mod sockets;
mod stream_contract;
mod udp;
mod unix;
mod without_waiting;

#[path = "../../../runtime/tests/suite/drivers.rs"]
mod drivers;
