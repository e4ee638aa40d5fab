//! Requests in UDP datagrams: a frame header of eight bytes, then a request (`protocol.txt`, "UDP
//! protocol").
//!
//! Each datagram is a session with one request. Requests of several datagrams are ignored.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use net::{BindOptions, OutgoingDatagram, RecvBatch, SendOptions, UdpServing, UdpSocket};

use super::context::ServerContext;
use super::session::{Session, SessionStep};
use super::stats::counters::WorkerCounters;

/// Bytes of a frame header: request ID, sequence number, number of datagrams, reserved; 16 bits
/// each.
const FRAME_HEADER: usize = 8;
/// The largest datagram that is sent, in bytes, as in memcached.
const MAX_DATAGRAM: usize = 1400;
/// The largest reply, in bytes. The sender of a datagram may be forged: this bounds what a forger
/// can make the server send to somebody else.
const MAX_REPLY: usize = 16 << 10;

/// How many requests one call receives at most, each into a buffer of the largest datagram's size.
const REQUESTS_AT_ONCE: usize = 16;

pub fn serve(address: SocketAddr, context: &Arc<ServerContext>) -> io::Result<UdpServing> {
    let context = Arc::clone(context);
    let socket = UdpSocket::bind_with(address, &BindOptions::new().only_v6(true))?;
    socket.serve(move |socket| serve_socket(socket, Arc::clone(&context)))
}

async fn serve_socket(socket: UdpSocket, context: Arc<ServerContext>) {
    let mut requests = RecvBatch::new(REQUESTS_AT_ONCE, 64 << 10);
    let counters = context.counters.worker(runtime::current_worker());
    let mut replies = Vec::new();
    let mut served = 0;
    loop {
        // The error belongs to an earlier reply whose port is closed. The next datagram may be
        // fine.
        let Ok(received) = socket.recv_batch(&mut requests).await else {
            runtime::yield_now().await;
            continue;
        };
        for (info, request) in requests.iter() {
            // The panic hook has reported a panic. The datagrams after it are served.
            match AssertUnwindSafe(answer(request, &context, counters)).catch_unwind().await {
                Ok(datagrams) => {
                    replies.extend(datagrams.into_iter().map(|datagram| (datagram, info.sender)));
                }
                Err(payload) => std::mem::forget(payload),
            }
        }
        send(&socket, &replies, counters).await;
        replies.clear();
        served += received;
        if served >= context.config.requests_per_turn as usize {
            served = 0;
            runtime::yield_now().await;
        }
    }
}

async fn send(socket: &UdpSocket, replies: &[(Vec<u8>, SocketAddr)], counters: &WorkerCounters) {
    let options = SendOptions::new();
    let outgoing = replies.iter().map(|(bytes, to)| OutgoingDatagram { bytes, to: *to, options });
    let outgoing: Vec<_> = outgoing.collect();
    let mut unsent = &outgoing[..];
    while !unsent.is_empty() {
        // Delivery is not guaranteed in any case: the client retries.
        let sent = socket.send_batch(unsent).await;
        let (taken, rest) = unsent.split_at(*sent.as_ref().unwrap_or(&1));
        if sent.is_ok() {
            counters.bytes_written.add(taken.iter().map(|datagram| datagram.bytes.len() as u64).sum());
        }
        unsent = rest;
    }
}

/// Executes the request of a datagram. Returns the datagrams that reply to it, if any.
pub async fn answer(datagram: &[u8], context: &ServerContext, counters: &WorkerCounters) -> Vec<Vec<u8>> {
    let Some((frame, request)) = datagram.split_at_checked(FRAME_HEADER) else { return Vec::new() };
    counters.bytes_read.add(datagram.len() as u64);
    if frame[4..6] != [0, 1] {
        return Vec::new();
    }
    let mut session = Session::new(context, counters);
    session.gets_only = !context.config.udp_all_commands;
    let bytes = execute(request, session).await;
    // Errors are not sent: they might be replies to another server's errors, and a forged sender
    // could make two servers exchange errors forever.
    if bytes.starts_with(b"ERROR") || bytes.starts_with(b"CLIENT_ERROR") {
        return Vec::new();
    }
    let parts = bytes.chunks(MAX_DATAGRAM - FRAME_HEADER);
    let [high, low] = (parts.len() as u16).to_be_bytes();
    let datagrams = parts.enumerate().map(|(number, part)| {
        let number = (number as u16).to_be_bytes();
        [&frame[..2], &number, &[high, low, 0, 0], part].concat()
    });
    datagrams.collect()
}

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
            SessionStep::NeedInput | SessionStep::Close => return reply,
        }
    }
}
