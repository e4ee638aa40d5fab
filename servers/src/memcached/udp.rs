//! Requests in UDP datagrams: a frame header of eight bytes, then a request (`protocol.txt`, "UDP protocol").
//!
//! Each datagram is a session with one request. Requests of several datagrams are ignored.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use net::{BindOptions, UdpSocket};
use runtime::JoinHandle;

use super::context::ServerContext;
use super::session::{Session, SessionStep};
use super::stats::counters::WorkerCounters;

/// Bytes of a frame header: request ID, sequence number, number of datagrams, reserved; 16 bits each.
const FRAME_HEADER: usize = 8;
/// The largest datagram that is sent, in bytes, as in memcached.
const MAX_DATAGRAM: usize = 1400;
/// The largest reply, in bytes. The sender of a datagram may be forged: this bounds what a forger can make the server
/// send to somebody else.
const MAX_REPLY: usize = 16 << 10;

/// A served UDP address. Serving ends when it is dropped.
#[derive(Debug)]
pub struct UdpService {
    address: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

impl UdpService {
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for UdpService {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Serves an address on every worker.
pub fn serve(address: SocketAddr, context: &Arc<ServerContext>) -> io::Result<UdpService> {
    let sockets = UdpSocket::bind_group_with(address, runtime::workers(), &BindOptions::new().only_v6(true))?;
    let address = sockets.first().map_or(Ok(address), |socket| socket.local_addr())?;
    let tasks = sockets.into_iter().enumerate().map(|(worker, socket)| {
        let context = Arc::clone(context);
        runtime::spawn_on(worker, move || async move {
            match UdpSocket::from_std(socket) {
                Ok(socket) => serve_socket(socket, context).await,
                Err(error) => tracing::warn!(worker, %error, "cannot serve UDP"),
            }
        })
    });
    Ok(UdpService { address, tasks: tasks.collect() })
}

async fn serve_socket(socket: UdpSocket, context: Arc<ServerContext>) {
    let mut buffer = vec![0; 64 << 10];
    let mut requests = 0u32;
    loop {
        // The error belongs to an earlier reply whose port is closed. The next datagram may be fine.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            runtime::yield_now().await;
            continue;
        };
        let serving = serve_datagram(&socket, &buffer[..length], from, &context);
        // The panic hook has reported a panic. The datagrams after it are served.
        if let Err(payload) = AssertUnwindSafe(serving).catch_unwind().await {
            std::mem::forget(payload);
        }
        requests += 1;
        if requests.is_multiple_of(context.config.requests_per_turn.max(1)) {
            runtime::yield_now().await;
        }
    }
}

async fn serve_datagram(socket: &UdpSocket, datagram: &[u8], from: SocketAddr, context: &ServerContext) {
    let counters = context.counters.worker(runtime::current_worker());
    let Some(reply) = answer(datagram, context, counters).await else { return };
    for datagram in reply.datagrams() {
        // Delivery is not guaranteed in any case: the client retries.
        if socket.send_to(&datagram, from).await.is_ok() {
            counters.bytes_written.add(datagram.len() as u64);
        }
    }
}

/// The reply to a request.
pub struct DatagramReply {
    request_id: [u8; 2],
    bytes: Vec<u8>,
}

impl DatagramReply {
    /// The reply in datagrams, each with its frame header. There is none if the reply is empty.
    pub fn datagrams(&self) -> impl Iterator<Item = Vec<u8>> {
        let parts = self.bytes.chunks(MAX_DATAGRAM - FRAME_HEADER);
        let total = (parts.len() as u16).to_be_bytes();
        let [high, low] = self.request_id;
        parts.enumerate().map(move |(number, part)| {
            let number = (number as u16).to_be_bytes();
            let header = [high, low, number[0], number[1], total[0], total[1], 0, 0];
            [&header[..], part].concat()
        })
    }
}

/// Executes the request of a datagram. `None` if it is not replied to.
pub async fn answer(
    datagram: &[u8],
    context: &ServerContext,
    counters: &WorkerCounters,
) -> Option<DatagramReply> {
    let (frame, request) = datagram.split_at_checked(FRAME_HEADER)?;
    counters.bytes_read.add(datagram.len() as u64);
    // memcached also ignores requests of several datagrams.
    if frame[4..6] != [0, 1] {
        return None;
    }
    let mut session = Session::new(context, counters);
    session.gets_only = !context.config.udp_all_commands;
    let bytes = execute(request, session).await;
    // Errors are not sent: they might be replies to another server's errors, and a forged sender could make
    // two servers exchange errors forever.
    if bytes.starts_with(b"ERROR") || bytes.starts_with(b"CLIENT_ERROR") {
        return None;
    }
    Some(DatagramReply { request_id: [frame[0], frame[1]], bytes })
}

/// Executes a request and returns the whole reply.
async fn execute(request: &[u8], mut session: Session<'_>) -> Vec<u8> {
    let (mut reply, mut used) = (Vec::new(), 0);
    loop {
        let (more, step) = session.feed(&request[used..]);
        used += more;
        while session.has_replies() {
            reply.append(&mut session.take_buffer());
            let large = session.take_large_value();
            if reply.len() + large.as_ref().map_or(0, |large| large.bytes().len()) > MAX_REPLY {
                return b"SERVER_ERROR response too large\r\n".to_vec();
            }
            large.iter().for_each(|large| reply.extend_from_slice(large.bytes()));
        }
        match step {
            SessionStep::Send | SessionStep::Yield => runtime::yield_now().await,
            SessionStep::RefreshPolicy => {
                let context = session.context;
                Box::pin(context.policy_section.refresh(&context.counters)).await;
            }
            SessionStep::NeedInput | SessionStep::Close => return reply,
        }
    }
}
