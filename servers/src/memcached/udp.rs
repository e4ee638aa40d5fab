//! Requests in UDP datagrams: a frame of eight bytes, then a request, answered in frames.
//!
//! Each datagram holds one request (`protocol.txt`, "UDP protocol"): it is answered as if it came by a
//! connection of its own. What would take more than one datagram to ask is refused.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use net::UdpSocket;
use runtime::JoinHandle;

use super::session::{Session, Step};
use super::shared::Shared;

/// Bytes of a frame: request number, datagram number, datagrams, reserved; 16 bits each.
const FRAME: usize = 8;
/// The largest datagram that is sent, as memcached has it.
const LARGEST: usize = 1400;
/// The largest answer: its datagrams are counted with 16 bits. memcached's largest item is one of 1 MiB.
const LARGEST_ANSWER: usize = 2 << 20;

/// A UDP address that is served. Ends when it is dropped.
#[derive(Debug)]
pub struct Service {
    address: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

impl Service {
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Serves an address on every worker.
pub fn serve(address: SocketAddr, shared: &Arc<Shared>) -> io::Result<Service> {
    let sockets = UdpSocket::bind_group(address, runtime::workers())?;
    let address = sockets.first().map_or(Ok(address), |socket| socket.local_addr())?;
    let tasks = sockets.into_iter().enumerate().map(|(worker, socket)| {
        let shared = Arc::clone(shared);
        runtime::spawn_on(worker, move || async move {
            match UdpSocket::from_std(socket) {
                Ok(socket) => answer_all(socket, shared).await,
                Err(error) => tracing::warn!(worker, %error, "cannot serve UDP"),
            }
        })
    });
    Ok(Service { address, tasks: tasks.collect() })
}

async fn answer_all(socket: UdpSocket, shared: Arc<Shared>) {
    let mut buffer = vec![0; 64 << 10];
    let mut requests = 0u32;
    loop {
        // An error is another client's: that nobody listened for an answer. The next may be well.
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            runtime::yield_now().await;
            continue;
        };
        answer(&socket, &buffer[..length], from, &shared).await;
        requests += 1;
        if requests.is_multiple_of(shared.settings.requests_per_turn.max(1)) {
            runtime::yield_now().await;
        }
    }
}

async fn answer(socket: &UdpSocket, datagram: &[u8], from: SocketAddr, shared: &Shared) {
    let Some((frame, request)) = datagram.split_at_checked(FRAME) else { return };
    let stats = shared.stats.worker(runtime::current_worker());
    stats.bytes_read.add(datagram.len() as u64);
    // memcached drops requests of several datagrams, too.
    if frame[4..6] != [0, 1] {
        return;
    }
    let answer = respond(request, &mut Session::new(shared, stats));
    // An error is no answer to a client's get, but may be one to another server's error: without this two
    // servers, set on each other by a forged sender, would never stop.
    if answer.starts_with(b"ERROR") || answer.starts_with(b"CLIENT_ERROR") {
        return;
    }
    let parts = answer.chunks(LARGEST - FRAME);
    let total = (parts.len() as u16).to_be_bytes();
    for (number, part) in parts.enumerate() {
        let number = (number as u16).to_be_bytes();
        let header = [frame[0], frame[1], number[0], number[1], total[0], total[1], 0, 0];
        // UDP promises nothing; the client asks again.
        if socket.send_to(&[&header[..], part].concat(), from).await.is_ok() {
            stats.bytes_written.add((FRAME + part.len()) as u64);
        }
    }
}

/// The whole answer to a request.
fn respond(request: &[u8], session: &mut Session<'_>) -> Vec<u8> {
    let (mut answer, mut used) = (Vec::new(), 0);
    loop {
        let (more, step) = session.feed(&request[used..]);
        used += more;
        while session.has_answers() {
            answer.append(&mut session.take_buffer());
            let large = session.take_large();
            if answer.len() + large.as_ref().map_or(0, |large| large.bytes().len()) > LARGEST_ANSWER {
                return b"SERVER_ERROR response too large\r\n".to_vec();
            }
            large.iter().for_each(|large| answer.extend_from_slice(large.bytes()));
        }
        match step {
            Step::Send | Step::Yield => {}
            Step::More | Step::Close => return answer,
        }
    }
}
