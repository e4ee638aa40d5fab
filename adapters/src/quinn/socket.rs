//! A worker's UDP socket as quinn's, whose traits ask for `Send` and `Sync`.
//!
//! The socket's readiness stays on its worker. quinn asks for it only in the tasks that [`Runtime`]
//! spawns there. Sending without waiting is a system call, and works on every thread.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use ::quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use ::quinn::{AsyncUdpSocket, UdpPoller};
use runtime::io::{AsyncFd, Direction, SourceKind};

use super::group::{HandedOver, Member};
use super::home::{Local, Runtime, elsewhere};

pub(super) struct Socket {
    socket: Arc<std::net::UdpSocket>,
    state: UdpSocketState,
    home: Runtime,
    group: Option<Member>,
    /// Made by the first poll, which is on the worker.
    local: OnceLock<Local<LocalSocket>>,
}

struct LocalSocket {
    fd: Rc<AsyncFd<Arc<std::net::UdpSocket>>>,
    handed_over: Option<RefCell<HandedOver>>,
    /// Which of the two is received from first: either may never be empty.
    own_first: Cell<bool>,
}

impl Socket {
    pub(super) fn new(socket: std::net::UdpSocket, home: Runtime, group: Option<Member>) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { socket: Arc::new(socket), state, home, group, local: OnceLock::new() })
    }

    fn local(&self) -> io::Result<&LocalSocket> {
        if self.local.get().is_none() {
            let fd = Rc::new(AsyncFd::new(Arc::clone(&self.socket), SourceKind::Datagrams)?);
            let handed_over = self.group.as_ref().and_then(Member::handed_over).map(RefCell::new);
            let local = Local::new(LocalSocket { fd, handed_over, own_first: Cell::new(true) }, &self.home);
            // Nobody else sets it: it is the worker's.
            let _ = self.local.set(local);
        }
        self.local.get().ok_or_else(elsewhere)?.get()
    }

    /// Receives from the socket, and hands over what other workers have to receive.
    fn poll_own(
        &self,
        local: &LocalSocket,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let receive =
                |socket: &Arc<std::net::UdpSocket>| self.state.recv((&**socket).into(), buffers, metas);
            let count = ready!(local.fd.poll_io(Direction::Read, context, receive))?;
            let received = metas.iter().take(count);
            let datagrams = received.clone().map(|meta| meta.len.div_ceil(meta.stride.max(1))).sum();
            local.fd.record_datagrams(datagrams, received.map(|meta| meta.len).sum());
            if count < buffers.len() {
                // It has found no more. The next datagram is an event.
                local.fd.clear_ready(Direction::Read);
            }
            let Some(group) = &self.group else { return Poll::Ready(Ok(count)) };
            for (buffer, meta) in buffers.iter_mut().zip(&mut *metas).take(count) {
                group.hand_over(buffer, meta);
            }
            if metas.iter().take(count).any(|meta| meta.len > 0) {
                return Poll::Ready(Ok(count));
            }
        }
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller { socket: self, waiting: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let send = |socket: &Arc<std::net::UdpSocket>| self.state.send((&**socket).into(), transmit);
        match self.local.get().and_then(|local| local.get().ok()) {
            Some(local) => local.fd.try_io(Direction::Write, send),
            None => send(&self.socket),
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let local = self.local()?;
        let Some(handed_over) = &local.handed_over else {
            return self.poll_own(local, context, buffers, metas);
        };
        let own_first = local.own_first.get();
        local.own_first.set(!own_first);
        if own_first && let Poll::Ready(received) = self.poll_own(local, context, buffers, metas) {
            return Poll::Ready(received);
        }
        if let Poll::Ready(count) = handed_over.borrow_mut().poll_receive(context, buffers, metas) {
            return Poll::Ready(Ok(count));
        }
        if own_first { Poll::Pending } else { self.poll_own(local, context, buffers, metas) }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Waits for one connection until the socket has room.
struct Poller {
    socket: Arc<Socket>,
    waiting: Option<Local<Pin<Box<dyn Future<Output = ()>>>>>,
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, waiting } = &mut *self;
        if waiting.is_none() {
            let fd = &socket.local()?.fd;
            // It remembers one connection only, so one that has to wait does it by a future.
            if let Poll::Ready(result) = fd.poll_io(Direction::Write, context, |_| Ok(())) {
                return Poll::Ready(result);
            }
            let fd = Rc::clone(fd);
            let room: Pin<Box<dyn Future<Output = ()>>> =
                Box::pin(async move { fd.ready(Direction::Write).await });
            *waiting = Some(Local::new(room, &socket.home));
        }
        if let Some(room) = waiting {
            ready!(room.get_mut()?.as_mut().poll(context));
        }
        *waiting = None;
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("waits", &self.waiting.is_some()).finish_non_exhaustive()
    }
}
