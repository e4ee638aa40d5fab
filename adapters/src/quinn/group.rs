//! The endpoints of a server, one for each worker, which hand datagrams over to each other.
//!
//! The kernel spreads datagrams over the sockets by their receive queues if the runtime aligns
//! workers with them, otherwise by a hash of their addresses; network cards choose the queue by
//! such a hash. A client's address may change (RFC 9000, section 9), and its datagrams then come to
//! another worker. So which worker has a connection is a keyed hash of its ids: each endpoint draws
//! ids until one is its own. Nobody else can tell by them which connections belong together, as
//! section 5.1 asks for.
//!
//! A program for the kernel could not compute such a hash. It would also read one id of several
//! datagrams that were received as one (`UDP_GRO`), where those of several connections of one
//! client may be.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::IoSliceMut;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use ::quinn::udp::RecvMeta;
use ::quinn::{ConnectionId, ConnectionIdGenerator};
use tokio::sync::mpsc;

/// The length of connection ids.
const ID: usize = 8;
/// How many datagrams may wait for a worker. More are lost, as those that overflow a socket.
const WAITING: usize = 1024;

struct Group {
    key: RandomState,
    workers: Vec<mpsc::Sender<Datagram>>,
}

impl Group {
    fn worker_of(&self, id: [u8; ID]) -> usize {
        (self.key.hash_one(id) % self.workers.len() as u64) as usize
    }
}

/// An endpoint's part of its group.
pub(super) struct Member {
    group: Arc<Group>,
    worker: usize,
    /// Taken by the socket on its worker.
    handed_over: Mutex<Option<HandedOver>>,
}

impl Member {
    pub(super) fn new(workers: usize) -> Vec<Self> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(WAITING)).unzip();
        let group = Arc::new(Group { key: RandomState::new(), workers: senders });
        let member = |(worker, receiver)| Self {
            group: Arc::clone(&group),
            worker,
            handed_over: Mutex::new(Some(HandedOver(receiver))),
        };
        receivers.into_iter().enumerate().map(member).collect()
    }

    pub(super) fn ids(&self) -> OwnIds {
        OwnIds { group: Arc::clone(&self.group), worker: self.worker }
    }

    pub(super) fn handed_over(&self) -> Option<HandedOver> {
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Hands the datagrams of other workers over, and leaves the own ones in the buffer.
    pub(super) fn hand_over(&self, buffer: &mut [u8], meta: &mut RecvMeta) {
        let (mut at, mut kept) = (0, 0);
        while at < meta.len {
            let end = meta.len.min(at + meta.stride.max(1));
            let datagram = &buffer[at..end];
            match id_of(datagram).map(|id| self.group.worker_of(id)) {
                Some(worker) if worker != self.worker => {
                    let meta = RecvMeta { len: datagram.len(), stride: datagram.len(), ..*meta };
                    let _ = self.group.workers[worker].try_send(Datagram { meta, bytes: datagram.into() });
                }
                _ => {
                    buffer.copy_within(at..end, kept);
                    kept += end - at;
                }
            }
            at = end;
        }
        meta.len = kept;
    }
}

/// The id in a datagram, if an endpoint of the group has made it (RFC 8999; RFC 9000, section 17):
/// the client makes that of its first packets, `Initial` and `0-RTT`, which the kernel leaves with
/// one worker as long as its address is the same.
fn id_of(datagram: &[u8]) -> Option<[u8; ID]> {
    let at = match datagram.first()? {
        // A short header.
        0..0x80 => 1,
        // `Handshake`, after version and length.
        first if first & 0x30 == 0x20 => 6,
        _ => return None,
    };
    datagram.get(at..)?.first_chunk().copied()
}

struct Datagram {
    meta: RecvMeta,
    bytes: Box<[u8]>,
}

pub(super) struct HandedOver(mpsc::Receiver<Datagram>);

impl HandedOver {
    /// As quinn's sockets receive.
    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<usize> {
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(metas) {
            let Poll::Ready(Some(datagram)) = self.0.poll_recv(context) else { break };
            let length = datagram.bytes.len().min(buffer.len());
            buffer[..length].copy_from_slice(&datagram.bytes[..length]);
            *meta = RecvMeta { len: length, ..datagram.meta };
            count += 1;
        }
        if count == 0 { Poll::Pending } else { Poll::Ready(count) }
    }
}

/// Makes the ids of a worker's connections.
#[derive(Clone)]
pub(super) struct OwnIds {
    group: Arc<Group>,
    worker: usize,
}

impl ConnectionIdGenerator for OwnIds {
    fn generate_cid(&mut self) -> ConnectionId {
        loop {
            let id: [u8; ID] = rand::random();
            if self.group.worker_of(id) == self.worker {
                return ConnectionId::new(&id);
            }
        }
    }

    fn cid_len(&self) -> usize {
        ID
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}
