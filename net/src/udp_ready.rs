//! Datagrams for `poll` functions, and without waiting.

use std::io;
use std::net::{SocketAddr, UdpSocket as Std};
use std::task::{Context, Poll, ready};

use runtime::io::Direction;

use crate::udp::UdpSocket;

/// The `poll` functions of one direction are for one task at a time: a second one that waits
/// replaces the first.
impl UdpSocket {
    /// Waits until a datagram has come, or an error. Any number of tasks may wait.
    pub async fn readable(&self) {
        self.fd.ready(Direction::Read).await;
    }

    /// Waits until there is room for a datagram. Any number of tasks may wait.
    pub async fn writable(&self) {
        self.fd.ready(Direction::Write).await;
    }

    /// Receives a datagram that has come.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, or as [`UdpSocket::recv_from`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.fd.try_io(Direction::Read, |socket| socket.recv_from(buffer))?;
        self.fd.record_datagrams(1, received.0);
        Ok(received)
    }

    /// Receives a datagram that has come.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, or as [`UdpSocket::recv`].
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fd.try_io(Direction::Read, |socket| socket.recv(buffer))?;
        self.fd.record_datagrams(1, length);
        Ok(length)
    }

    /// Sends a datagram if there is room for it.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, or as [`UdpSocket::send_to`].
    pub fn try_send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |socket| socket.send_to(datagram, to))
    }

    /// Sends a datagram to the connected address if there is room for it.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, or as [`UdpSocket::send`].
    pub fn try_send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |socket| socket.send(datagram))
    }

    /// [`UdpSocket::recv_from`] for use in a `poll` function.
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        let received =
            ready!(self.fd.poll_io(Direction::Read, context, |socket: &Std| socket.recv_from(buffer)))?;
        self.fd.record_datagrams(1, received.0);
        Poll::Ready(Ok(received))
    }

    /// [`UdpSocket::recv`] for use in a `poll` function.
    pub fn poll_recv(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let length = ready!(self.fd.poll_io(Direction::Read, context, |socket: &Std| socket.recv(buffer)))?;
        self.fd.record_datagrams(1, length);
        Poll::Ready(Ok(length))
    }

    /// [`UdpSocket::send_to`] for use in a `poll` function.
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        datagram: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, context, |socket| socket.send_to(datagram, to))
    }

    /// [`UdpSocket::send`] for use in a `poll` function.
    pub fn poll_send(&self, context: &mut Context<'_>, datagram: &[u8]) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, context, |socket| socket.send(datagram))
    }
}
