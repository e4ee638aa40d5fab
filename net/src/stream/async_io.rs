//! The futures-io traits of streams and their halves.

/// Implements `AsyncRead` and `AsyncBufRead` for a type with the fields `io` and `unread`.
macro_rules! impl_async_read {
    ($type:ty) => {
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

/// Implements `AsyncWrite` and `write_owned` for a type with the field `io`.
macro_rules! impl_async_write {
    ($type:ty) => {
        impl<K> $type {
            /// Writes bytes whose ownership it takes, without a copy in user space: for large ones. Returns
            /// when the kernel has taken all of them. On a ring, from 64 KiB on, the kernel makes no copy
            /// either where the route allows it (`IORING_OP_SEND_ZC`); the memory is freed when the peer has
            /// acknowledged it.
            ///
            /// If the future is dropped before it is ready, a ring still sends all of the bytes if it has
            /// begun to; on epoll only those are sent that were written by then, as with any write.
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
