//! The futures-io traits of streams and their halves.

/// Implements `AsyncRead`, `AsyncBufRead`, and reading without waiting, for a type with the fields
/// `io` and `unread`.
macro_rules! impl_async_read {
    ($type:ty) => {
        impl<K> $type {
            /// Waits until a read would not block: there are bytes, the stream has ended, or the
            /// connection is broken. On a ring this starts the receive. One task may wait to read a
            /// stream.
            ///
            /// # Errors
            /// None: an error of the connection is returned by the read that follows.
            pub async fn readable(&self) -> std::io::Result<()> {
                self.io.readable(&self.unread).await;
                Ok(())
            }

            /// Reads what has come, without waiting; 0 at the end of the stream. The bytes that the
            /// stream has buffered come first. After them it is a `recv(2)` on epoll. On a ring it
            /// returns what the worker's turns have received. The first call starts the receive,
            /// and finds nothing: wait for [`readable`](Self::readable) before.
            ///
            /// # Errors
            /// `WouldBlock` if there is nothing to read, else as a read.
            pub fn try_read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.io.try_read(&mut self.unread, buffer)
            }

            /// Waits until there are bytes, and copies them without taking them: the next read
            /// returns them, too. 0 at the end of the stream. Later calls return more once more has
            /// come; on a ring at most the 128 KiB that it receives ahead of the reader.
            ///
            /// # Errors
            /// As a read; the error is taken by that.
            #[doc(alias = "MSG_PEEK")]
            pub async fn peek(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                std::future::poll_fn(|context| self.io.poll_peek(context, &mut self.unread, buffer)).await
            }
        }

        impl<K> futures_io::AsyncRead for $type {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffer: &mut [u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let this = self.get_mut();
                this.io.poll_read(context, &mut this.unread, buffer)
            }

            fn poll_read_vectored(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffers: &mut [std::io::IoSliceMut<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let this = self.get_mut();
                this.io.poll_read_vectored(context, &mut this.unread, buffers)
            }
        }

        impl<K> futures_io::AsyncBufRead for $type {
            fn poll_fill_buf(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<&[u8]>> {
                let this = self.get_mut();
                std::task::ready!(this.io.poll_fill(context, &mut this.unread))?;
                std::task::Poll::Ready(Ok(this.unread.unread()))
            }

            fn consume(self: std::pin::Pin<&mut Self>, amount: usize) {
                self.get_mut().unread.consume(amount);
            }
        }
    };
}

/// Implements `AsyncWrite`, `write_owned`, and writing without waiting, for a type with the field
/// `io`.
macro_rules! impl_async_write {
    ($type:ty) => {
        impl<K> $type {
            /// Waits until a write would accept a byte, or fail. One task may wait to write to a
            /// stream.
            ///
            /// # Errors
            /// None: an error of the connection is returned by the write that follows.
            pub async fn writable(&self) -> std::io::Result<()> {
                self.io.writable().await;
                Ok(())
            }

            /// Writes as many bytes as there is room for, without waiting. On epoll that is the
            /// room in the kernel's send buffer. On a ring, writes below 16 KiB are copied and sent
            /// at the end of the turn; larger ones go out at once if nothing is unsent. There is
            /// room while fewer than 64 KiB are unsent.
            ///
            /// # Errors
            /// `WouldBlock` if there is no room, else as a write.
            pub fn try_write(&self, bytes: &[u8]) -> std::io::Result<usize> {
                self.io.try_write(bytes)
            }

            /// Writes bytes whose ownership it takes, without a copy in user space: for large ones.
            /// Returns when the kernel has taken all of them. On a ring, from 64 KiB on, the kernel
            /// makes no copy either where the route allows it (`IORING_OP_SEND_ZC`); the memory is
            /// freed when the peer has acknowledged it.
            ///
            /// If the future is dropped before it is ready, a ring still sends all of the bytes if
            /// it has begun to; on epoll only those are sent that were written by then, as with any
            /// write.
            ///
            /// # Errors
            /// The socket's, for example `BrokenPipe` after the writing side was shut down.
            #[doc(alias = "IORING_OP_SEND_ZC")]
            pub async fn write_owned(&mut self, bytes: bytes::Bytes) -> std::io::Result<()> {
                self.io.write_owned(bytes).await
            }
        }

        impl<K> futures_io::AsyncWrite for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffer: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.io.poll_write(context, &[std::io::IoSlice::new(buffer)])
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffers: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.io.poll_write(context, buffers)
            }

            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.io.poll_flush(context)
            }

            fn poll_close(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.io.poll_close(context)
            }
        }
    };
}

pub(super) use {impl_async_read, impl_async_write};
